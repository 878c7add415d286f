"""Weak and strong views: random parameters sampled on the host, applied by one of the kernels.

Here belong the table of operations (`ops`), the recipes of views, the draw of their random
parameters (`sample`) and the kernels that apply drawn parameters: numba on a CPU (`kernel_cpu`),
torch on any device (`kernel_torch`). All kernels are bit-exact to Pillow. Reading images, sampling
images and moving batches to a device do not belong here.

`kernel_torch` is not imported here, so that views on a CPU need no torch.
"""

from pipelines.views.apply_views import apply, apply_op, centered
from pipelines.views.defaults import default_recipes
from pipelines.views.ops import OPS, Recipe, recipes
from pipelines.views.sample import draw, names

__all__ = [
    "OPS",
    "Recipe",
    "apply",
    "apply_op",
    "centered",
    "default_recipes",
    "draw",
    "names",
    "recipes",
]
