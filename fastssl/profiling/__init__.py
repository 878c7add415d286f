"""Rates of our own stages, and the plan of a run.

Each module named in `subjects.SUBJECTS` measures one stage and returns one record. Comparisons with
other libraries and with other implementations of the same work belong to `tools/bench`, which
adds its cases to the same interleaved measurement. So do subjects that need the photos of a user
or several processes.
"""
