"""Which images a step sees: the labeled split, the order of both streams, keyed random numbers.

Everything here is a pure function of the seed and the step and needs no torch. Reading images and
drawing the random parameters of views do not belong here.
"""

from pipelines.sampling.order import Order, Positions, check_divisible
from pipelines.sampling.split import Indices, Split, make_split

__all__ = ["Indices", "Order", "Positions", "Split", "check_divisible", "make_split"]
