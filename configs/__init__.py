"""Configurations that ship with fastssl, one YAML per data set; installed as fastssl.configs."""
