"""The loader: order, reader and views combined into the batches of a run, made in advance."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipelines.errors import ConfigError, DataError, ResourceError
from pipelines.loader.batch import Batch
from pipelines.loader.transfer import Transfer
from pipelines.prefetch import PATIENCE, Ring, StalledError
from pipelines.readers import READERS, Indices, Pixels
from pipelines.readers.auto import choose
from pipelines.sampling.order import Order, Positions, check_divisible
from pipelines.sampling.rng import random_uint64
from pipelines.sampling.split import Split
from pipelines.views import apply, draw

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from pipelines.store.store import Store
    from pipelines.views import Recipe
    from pipelines.views.normalize import Triple

LABELED, UNLABELED = 0, 1  # numbers of the streams in the key of the draw


@dataclass(frozen=True)
class Plan:
    """The positions of a step's global batch, and the store's indices of this rank's share."""

    step: int
    labeled: Positions
    unlabeled: Positions
    indices: Indices


@dataclass(frozen=True)
class Prepared:
    """A batch, and the event after which it is complete on the device (None on a CPU)."""

    batch: Batch
    event: Any


class Loader(AbstractContextManager["Loader"]):
    """The batches of a run; batch k is a pure function of the seed and k.

    Args:
        store: the converted dataset.
        split: the labeled and the unlabeled images of its training split.
        order: which of them a step uses.
        views: name in the batch → recipe, for the unlabeled images.
        recipes: the recipes by name.
        labeled_view: the recipe of the labeled images.
        seed: the seed of the views.
        device: where the batches are needed.
        reader: a name in READERS, or "auto".
        threads: threads that decode and make views; the model's threads are set elsewhere.
        prefetch: number of batches made in advance.
        rank: the slice of the global batch that this loader makes.
        world: the number of slices.
        mean, std: of the normalization; by default those of the store.
    """

    def __init__(
        self,
        store: Store,
        split: Split,
        order: Order,
        *,
        views: Mapping[str, str],
        recipes: Mapping[str, Recipe],
        seed: int,
        labeled_view: str = "weak",
        device: str = "cpu",
        reader: str = "auto",
        threads: int = 1,
        prefetch: int = 2,
        rank: int = 0,
        world: int = 1,
        mean: Triple | None = None,
        std: Triple | None = None,
    ) -> None:
        for size in (order.batch, order.unlabeled_batch):
            check_divisible(size, world)
        self.store, self.split, self.order = store, split, order
        self.seed, self.threads, self.prefetch = seed, threads, prefetch
        self.mean, self.std = mean or store.mean, std or store.std
        unknown = sorted({labeled_view, *views.values()} - set(recipes))
        if unknown:
            raise ConfigError(
                f"no view recipe is named {unknown[0]!r}; there are: {', '.join(sorted(recipes))}",
                "correct `views` in the algorithm's file",
            )
        self.labeled_view = recipes[labeled_view]
        self.views = {name: recipes[recipe] for name, recipe in views.items()}
        self.waited = 0.0
        """Seconds for which the consumer of `iterate` waited for batches."""
        self.patience = PATIENCE
        """Seconds without a batch after which ResourceError is raised."""
        self._labels = store.labels("train")
        self._rank, self._world = rank, world
        found = choose(store, "train", wanted=reader, device=device, world=world)
        self.choice = found.sentence
        self.reader = READERS[found.name].open(store, "train", threads=threads, device=device)
        self._transfer = Transfer(device)
        self._rings: list[Ring[dict[str, Tensor], Prepared]] = []

    def batch(self, step: int) -> Batch:
        """Return the batch of one step, made in this thread."""
        plan = self._plan(step)
        with self._transfer.working():
            for images in self.reader.stream([plan.indices]):
                made = self._make(plan, images, self._buffers())
        return self._receive(made)

    def iterate(
        self, first: int, last: int, stop: Callable[[], object] = lambda: False
    ) -> Iterator[Batch]:
        """Yield the batches of the steps from `first` up to `last`, made in the background.

        If the reader is stalled when `stop` returns True, the batches end early.

        On a CPU the images of a batch lie in buffers that are reused: those of step k are valid
        until the batch of step k + 2 is requested.
        """
        ring = Ring(
            lambda acquire: self._produce(first, last, acquire),
            self._buffers,
            ahead=self.prefetch,
            patience=self.patience,
            stop=stop,
        )
        self._rings.append(ring)
        try:
            while True:
                start = time.perf_counter()
                made = self._next(ring)
                self.waited += time.perf_counter() - start  # the only measurement of data_wait
                if made is None:
                    return
                yield self._receive(made)
        finally:
            ring.close()
            self._rings.remove(ring)

    def _next(self, ring: Ring[dict[str, Tensor], Prepared]) -> Prepared | None:
        try:
            return next(ring, None)
        except StalledError as error:
            raise ResourceError(
                f"the reader {type(self.reader).__name__} produced no batch: {error}",
                "check the disk of the store and the system log; then add --resume",
            ) from error
        except (OSError, EOFError) as error:
            raise DataError(
                f"the store {self.store.path} became unreadable: {error}",
                "check its disk; then add --resume",
            ) from error

    def close(self) -> None:
        """End the background threads and close the reader."""
        for ring in self._rings:
            ring.close()
        self.reader.close()

    def __exit__(self, *error: object) -> None:
        """Close the loader."""
        self.close()

    def _own(self, size: int) -> slice:
        """Return this rank's slice of a global batch."""
        share = size // self._world
        return slice(self._rank * share, (self._rank + 1) * share)

    def _plan(self, step: int) -> Plan:
        labeled, unlabeled = self.order.labeled(step), self.order.unlabeled(step)
        indices = np.concatenate(
            [
                self.split.labeled[labeled[self._own(len(labeled))]],
                self.split.unlabeled[unlabeled[self._own(len(unlabeled))]],
            ]
        )
        return Plan(step, labeled, unlabeled, indices)

    def _produce(self, first: int, last: int, acquire: Any) -> Iterator[Prepared]:
        plans: deque[Plan] = deque()  # a reader may consume its plan some steps ahead

        def indices() -> Iterator[Indices]:
            for step in range(first, last):
                plans.append(self._plan(step))
                yield plans[-1].indices

        stream = closing(self.reader.stream(indices()))  # type: ignore[type-var]
        with self._transfer.working(), stream as batches:
            for images in batches:
                yield self._make(plans.popleft(), images, acquire())

    def _buffers(self) -> dict[str, Tensor]:
        """Allocate the images of one batch on a CPU: [n, h, w, 3] by view, "" for the labeled."""
        if self._transfer.cuda:
            return {}
        labeled = self.order.batch // self._world
        unlabeled = self.order.unlabeled_batch // self._world
        made = {"": torch.empty(labeled, *self.labeled_view.size, 3)}
        for name, recipe in self.views.items():
            made[name] = torch.empty(unlabeled, *recipe.size, 3)
        return made

    def _draw(self, recipe: Recipe, plan: Plan, stream: int, view: int) -> npt.NDArray[Any]:
        size = len(plan.labeled if stream == LABELED else plan.unlabeled)
        height, width, _ = self.reader.shape
        return draw(
            recipe,
            seed=self.seed,
            step=plan.step,
            stream=stream,
            slots=np.arange(size)[self._own(size)],
            view=view,
            size=(height, width),
        )

    def _make(self, plan: Plan, images: Pixels | Tensor, out: dict[str, Tensor]) -> Prepared:
        """Make this rank's batch of its images [n, H, W, 3]: labeled ones first, then unlabeled."""
        count = self.order.batch // self._world
        if self._transfer.cuda and isinstance(images, np.ndarray):
            images = self._transfer.send(images)
        first = [self._draw(self.labeled_view, plan, LABELED, 0)]
        views = self.views if len(plan.unlabeled) else {}  # the first steps may have none
        drawn = [
            self._draw(recipe, plan, UNLABELED, view) for view, recipe in enumerate(views.values())
        ]
        (labeled,) = self._apply(images[:count], first, [self.labeled_view], [out.get("")])
        unlabeled = self._apply(
            images[count:], drawn, list(views.values()), [out.get(name) for name in views]
        )
        send = self._transfer.send_small
        own = plan.labeled[self._own(len(plan.labeled))]
        batch = Batch(
            images=labeled,
            labels=send(self._labels[self.split.labeled[own]]),
            views=dict(zip(views, unlabeled, strict=True)),
            position=send(plan.unlabeled[self._own(len(plan.unlabeled))]),
            global_positions=send(plan.unlabeled),
            key=send(random_uint64(self.seed, "step", plan.step, 2).view(np.int64)),
        )
        return Prepared(batch, self._transfer.mark())

    def _apply(
        self,
        images: Pixels | Tensor,
        drawn: list[npt.NDArray[Any]],
        recipes: list[Recipe],
        out: list[Tensor | None],
    ) -> list[Tensor]:
        """Apply drawn views on the device of the images; return [n, 3, h, w], channels last."""
        if isinstance(images, np.ndarray):
            filled = [tensor for tensor in out if tensor is not None]
            if len(images) and drawn:
                apply(
                    images,
                    drawn,
                    recipes,
                    mean=self.mean,
                    std=self.std,
                    out=[tensor.numpy() for tensor in filled],
                    threads=self.threads,
                )
            return [tensor.permute(0, 3, 1, 2) for tensor in filled]
        from pipelines.views.kernel_torch import apply as apply_torch

        rows = [self._transfer.send_small(one) for one in drawn]
        return apply_torch(images, rows, recipes, mean=self.mean, std=self.std)

    def _receive(self, made: Prepared) -> Batch:
        batch = made.batch
        tensors = [batch.images, batch.labels, batch.position, batch.global_positions, batch.key]
        self._transfer.receive(made.event, [*tensors, *batch.views.values()])
        return batch
