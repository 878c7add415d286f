"""Which images a step sees: the labeled split, the order of both streams, keyed random numbers.

All of it is a pure function of the seed and the step, and needs no torch.
"""
