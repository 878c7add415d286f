"""A grid of runs: which cells there are, how long they take, and training them.

Each cell is trained by a process of its own, started with the ordinary `train` command. How a
run trains belongs to `engine`, what its results mean to `report`.
"""
