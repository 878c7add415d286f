"""A trained model in use: pictures in, labels out, prepared exactly as in evaluation."""

from __future__ import annotations

import itertools
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastssl.config.resolve import ResolvedConfig
from fastssl.engine import devices
from fastssl.engine.checkpoint import CheckpointContent
from fastssl.engine.evaluation import predict_batches
from fastssl.errors import ConfigError, DataError
from fastssl.inference.inputs import is_many, to_image
from fastssl.inference.trained_model import open_model, open_run
from pipelines.convert.images import BadImageError, fit, open_image
from pipelines.store.store import Store
from pipelines.views import centered

Pixels = npt.NDArray[np.uint8]
TOP = 5
CPU_BATCH = 32  # pictures whose activations fit into caches; more are slower there


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model says of one picture."""

    label: str
    probability: float
    top5: list[tuple[str, float]]  # label and probability, the likeliest first


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How pixels are prepared: as those of the store the model was trained on."""

    size: tuple[int, int]  # of what the network sees
    mean: tuple[float, ...]
    std: tuple[float, ...]
    stored: int  # side to which a picture is brought first
    resize: str  # squash, crop or pad

    @classmethod
    def of(cls, content: CheckpointContent) -> Preprocessing:
        """Read what a checkpoint says."""
        found = content["preprocessing"]
        height, width = found["size"]
        mean, std = tuple(found["mean"]), tuple(found["std"])
        return cls((height, width), mean, std, found["stored"], found["resize"])

    def pixels(self, picture: Any) -> Pixels:
        """Bring an RGB picture to the stored size."""
        return np.asarray(fit(picture, self.stored, self.resize))

    def tensor(self, pixels: Pixels) -> Tensor:
        """Cut the middle and normalise: uint8 [n, H, W, 3] to float32 [n, 3, h, w]."""
        made = centered(pixels, self.size, self.mean, self.std)
        return torch.from_numpy(made).permute(0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One file: the model's answer, or why there is none."""

    path: str
    logits: npt.NDArray[np.float32] | None
    why: str = ""


class Predictor:
    """The averaged weights of a run, ready to be asked.

    >>> import fastssl
    >>> model = fastssl.load("runs/a")
    >>> len(model.classes)
    10
    """

    def __init__(
        self, run: str | os.PathLike[str], which: str = "best", device: str | None = None
    ) -> None:
        self.run = Path(run)
        self.resolved, self.content = open_run(self.run, which)
        self.device = device_for(self.resolved, device)
        self.classes: list[str] = list(self.content["classes"])
        self.preprocessing = Preprocessing.of(self.content)
        self.model = open_model(self.resolved, self.content, self.device)
        self.batch = self.resolved.config.eval_batch

    def predict(self, x: Any) -> Prediction | list[Prediction]:
        """Say what is on a picture, or on each of a list of them.

        A picture is a path, a PIL image, an array or tensor (uint8, or floats in 0..1).

        >>> import fastssl
        >>> model = fastssl.load("runs/a")
        >>> guess = model.predict("digit.png")
        >>> guess.label in model.classes, len(guess.top5)
        (True, 5)
        >>> [type(one).__name__ for one in model.predict(["digit.png", "digit.png"])]
        ['Prediction', 'Prediction']
        """
        many = is_many(x)
        found = [self.prediction(row) for row in self._ask(list(x) if many else [x])]
        return found if many else found[0]

    def features(self, x: Any) -> npt.NDArray[np.float32]:
        """Return the pooled features of a picture [F], or of each of a list of them [n, F].

        >>> import fastssl
        >>> fastssl.load("runs/a").features("digit.png").shape
        (64,)
        """
        many = is_many(x)
        found = np.stack(self._ask(list(x) if many else [x], features=True))
        return found if many else found[0]

    def prediction(self, logits: npt.NDArray[np.float32]) -> Prediction:
        """Turn a row of logits into labels and probabilities."""
        scores = logits.astype(np.float64) - logits.max()
        probability = np.exp(scores) / np.exp(scores).sum()
        # As argmax does it: of equal ones the first.
        order = np.argsort(-probability, kind="stable")[:TOP]
        top = [(self.classes[place], float(probability[place])) for place in order]
        return Prediction(top[0][0], top[0][1], top)

    def files(self, paths: Iterable[str], batch: int | None = None) -> Iterator[Outcome]:
        """Answer for many files in their order; what cannot be read is told, not raised.

        With `batch` the run's eval_batch the arithmetic is evaluation's to the last bit, whatever
        the network.
        """
        size = batch or self.batch
        if not batch and self.device.device.type == "cpu":
            size = min(size, CPU_BATCH)
        # What Pillow thinks of odd files is told by our own list, or does not matter.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        opened = self._opened(paths, 4 * size)
        while group := list(itertools.islice(opened, size)):
            good = [pixels for _, pixels, _ in group if pixels is not None]
            rows = iter(self._forward(np.stack(good))) if good else iter(())
            for path, pixels, why in group:
                yield Outcome(path, None if pixels is None else next(rows), why)

    def store(
        self, store: Store, split: str, places: npt.NDArray[np.int64]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Answer for images of a store, by the very batches of an evaluation: [n, C] each."""
        height, width = self.preprocessing.size
        if store.splits[split].height < height or store.splits[split].width < width:
            raise DataError(
                f"the images of {store.path} are smaller than those the model was trained on",
                f"convert them with --size {self.preprocessing.stored}",
            )
        for logits, _ in predict_batches(
            self.model,
            store,
            split,
            places,
            size=self.preprocessing.size,
            config=self.resolved.config,
            device=self.device,
        ):
            yield logits.cpu().numpy()

    def _opened(self, paths: Iterable[str], ahead: int) -> Iterator[tuple[str, Pixels | None, str]]:
        """Decode in threads, a bounded number of pictures ahead of the model."""
        cores = len(os.sched_getaffinity(0))
        waiting: deque[tuple[str, Future[tuple[Pixels | None, str]]]] = deque()
        with ThreadPoolExecutor(cores, thread_name_prefix="pictures") as pool:
            for path in paths:
                waiting.append((path, pool.submit(self._open, path)))
                if len(waiting) >= ahead:
                    name, done = waiting.popleft()
                    yield (name, *done.result())
            for name, done in waiting:
                yield (name, *done.result())

    def _open(self, path: str) -> tuple[Pixels | None, str]:
        if os.path.exists(path) and not os.path.isfile(path):
            return None, "not a regular file"
        try:
            return self.preprocessing.pixels(open_image(path)), ""
        except BadImageError as error:
            return None, str(error)

    def _ask(self, items: Sequence[Any], features: bool = False) -> list[npt.NDArray[np.float32]]:
        rows: list[npt.NDArray[np.float32]] = []
        for start in range(0, len(items), self.batch):
            part = items[start : start + self.batch]
            pixels = [self.preprocessing.pixels(to_image(one)) for one in part]
            rows.extend(self._forward(np.stack(pixels), features))
        return rows

    def _forward(self, pixels: Pixels, features: bool = False) -> Any:
        return self._answer(self.preprocessing.tensor(pixels), features)

    @torch.inference_mode()
    def _answer(self, images: Tensor, features: bool = False) -> npt.NDArray[np.float32]:
        with self.device.autocast():
            if features:
                out = with_features(self.model, images.to(self.device.device))
            else:
                out = self.model(images.to(self.device.device))
        return out.float().cpu().numpy()


def with_features(model: Any, images: Tensor) -> Tensor:
    """Return the pooled features of a network that gives them."""
    try:
        found: Tensor = model(images, heads=True)["features"]
    except TypeError as error:
        raise ConfigError(
            f"{type(model).__name__} gives no features: its forward takes no `heads`",
            "let forward(x, heads=True) return a dict with `logits` and `features`",
        ) from error
    return found


def device_for(resolved: ResolvedConfig, wanted: str | None) -> devices.Device:
    """Choose the device of a model in use, which need not be the one it was trained on."""
    config = resolved.config.model_copy(update={"device": wanted} if wanted else {})
    if config.device.startswith("cuda") and not wanted and not torch.cuda.is_available():
        config = config.model_copy(update={"device": "cpu"})
    kind = devices.choose_device(config.device, 0).type
    if kind == "cpu" and config.precision == "fp16":
        config = config.model_copy(update={"precision": "fp32"})
    return devices.choose(config)
