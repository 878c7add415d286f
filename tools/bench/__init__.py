"""Comparisons with other libraries and other implementations of the same work.

Each module adds its cases to the interleaved measurement of the module of the same name in
`fastssl.profiling`, and its ratios to the record. `tools/profile_throughput.py` runs them.
"""
