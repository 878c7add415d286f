"""The default weak and strong recipe of a dataset's images."""

from __future__ import annotations

from pipelines.datasets import DATASETS
from pipelines.views.ops import Recipe, recipes


def default_recipes(
    dataset: str,
    stored: tuple[int, int],
    *,
    size: int | None = None,
    flip: bool | None = None,
    padding: int | None = None,
    ops: int = 3,
    augment_first: bool = True,
) -> dict[str, Recipe]:
    """Return the weak and the strong recipe for images of `stored` height and width.

    What is None is taken from the table of datasets. For a dataset that is not in the table a
    view has the size of the stored images, is flipped, and is padded by an eighth of its side.
    """
    known = DATASETS[dataset] if dataset in DATASETS else None  # noqa: SIM401  (not a dict)
    side = size or (known.size if known else None)
    shape = (side, side) if side else stored
    if padding is None:
        padding = known.padding if known else max(1, min(shape) // 8)
    if flip is None:
        flip = known.flip if known else True
    return recipes(flip=flip, padding=padding, size=shape, ops=ops, augment_first=augment_first)
