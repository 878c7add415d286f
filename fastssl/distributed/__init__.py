"""Several processes as one: collectives, the process group, BatchNorm over all ranks.

What belongs here knows torch.distributed and nothing of algorithms, runs or files. In a single
process every function here does nothing.
"""
