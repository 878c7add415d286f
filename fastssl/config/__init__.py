"""The configuration of a run: its schema, how it is resolved, and what is said of mistakes in it.

Defaults, a YAML file and `key=value` overrides become one checked `ResolvedConfig`. Nothing here
builds a model or opens data.
"""
