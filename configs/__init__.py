"""Configurations that ship with fastssl, one YAML per dataset; installed as fastssl.configs."""
