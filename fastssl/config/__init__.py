"""The configuration of a run: schema, resolution, error messages, and translation of old files.

Defaults, a YAML file and `key=value` overrides become one checked `ResolvedConfig`. Nothing here
builds a model or opens data.
"""
