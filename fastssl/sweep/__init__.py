"""A grid of runs: which there are, how long they take, and running them one after another.

Each run is a process of its own, started with the ordinary `train` command.
"""
