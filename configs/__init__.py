"""The configurations that ship with fastssl: one YAML a data set."""
