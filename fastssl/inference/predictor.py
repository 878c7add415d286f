"""A trained model for prediction; images are preprocessed exactly as in evaluation."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from torch import Tensor

from fastssl.config.resolve import ResolvedConfig
from fastssl.engine import devices
from fastssl.engine.checkpoint import CheckpointContent
from fastssl.engine.evaluation import predict_batches
from fastssl.errors import DataError
from fastssl.inference.inputs import is_many, to_image
from fastssl.inference.trained_model import open_model, open_run
from fastssl.models.classifier import features_of
from pipelines.convert.images import BadImageError, fit, interpolation_option, open_image
from pipelines.cpus import available_cpus
from pipelines.loader.evaluation import EvaluationBatches
from pipelines.store.store import Store
from pipelines.views import centered

Pixels = npt.NDArray[np.uint8]
Network = Callable[[Tensor], Tensor]
TOP = 5
CPU_BATCH = 32  # activations of more images do not fit into the caches and are slower


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted class of one image."""

    label: str
    probability: float
    top5: list[tuple[str, float]]  # label and probability, the most probable first


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """The preprocessing of the store that the model was trained on."""

    size: tuple[int, int]  # height and width of the network's input
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    stored: int  # side to which an image is resized first
    resize: str  # squash, crop or pad
    interpolation: str = "bicubic"  # or bilinear

    @classmethod
    def of(cls, content: CheckpointContent) -> Preprocessing:
        """Return the preprocessing that a checkpoint holds."""
        found = content["preprocessing"].items()
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in found})  # type: ignore[arg-type]

    def convert_options(self) -> list[str]:
        """Return the options of `convert` that resize images in the same way."""
        options = ["--size", str(self.stored), "--resize", self.resize]
        return options + interpolation_option(self.interpolation)

    def pixels(self, image: Any) -> Pixels:
        """Resize an RGB image to the stored size, uint8 [H, W, 3]."""
        return np.asarray(fit(image, self.stored, self.resize, self.interpolation))

    def tensor(self, pixels: Pixels) -> Tensor:
        """Crop the center and normalize: uint8 [n, H, W, 3] to float32 [n, 3, h, w]."""
        made = centered(pixels, self.size, self.mean, self.std)
        return torch.from_numpy(made).permute(0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One file: its logits, or the reason why it could not be read."""

    path: str
    logits: npt.NDArray[np.float32] | None
    reason: str = ""


class Predictor:
    """The EMA model of a run, ready for prediction.

    >>> import fastssl
    >>> model = fastssl.load("runs/a")
    >>> len(model.classes)
    10
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        which: str = "best",
        device: str | None = None,
        *,
        trust_code: bool = False,
    ) -> None:
        self.run, self.which, self.trusts_code = Path(run), which, trust_code
        self.resolved, self.content = open_run(self.run, which, trust_code=trust_code)
        self.device = device_for(self.resolved, device)
        self.classes: list[str] = list(self.content["classes"])
        self.preprocessing = Preprocessing.of(self.content)
        self.model = open_model(self.resolved, self.content, self.device)
        self.batch = self.resolved.config.eval_batch

    def __repr__(self) -> str:
        step, names = self.content["trip"]["step"], self.resolved.config
        return (
            f"<Predictor of {self.run}: {names.model}, {self.which} checkpoint (step {step:,}), "
            f"{len(self.classes)} classes, on {self.device.device}>"
        )

    def predict(self, x: Any) -> Prediction | list[Prediction]:
        """Return the prediction for an image, or one for each image of a list or batch.

        An image is a path, a PIL image, an array or tensor (uint8, or floats in 0..1).

        >>> import fastssl
        >>> model = fastssl.load("runs/a")
        >>> prediction = model.predict("digit.png")
        >>> prediction.label in model.classes, len(prediction.top5)
        (True, 5)
        >>> [type(one).__name__ for one in model.predict(["digit.png", "digit.png"])]
        ['Prediction', 'Prediction']
        """
        found = [self.prediction(row) for row in self._outputs(x, self.model)]
        return found if is_many(x) else found[0]

    def features(self, x: Any) -> npt.NDArray[np.float32]:
        """Return the pooled features of an image, [F], or of a list or batch of images, [n, F].

        >>> import fastssl
        >>> fastssl.load("runs/a").features("digit.png").shape
        (64,)
        """
        found = np.stack(self._outputs(x, lambda images: features_of(self.model, images)))
        return found if is_many(x) else found[0]

    def prediction(self, logits: npt.NDArray[np.float32]) -> Prediction:
        """Return the labels and probabilities for the logits of one image, [C]."""
        probability = probabilities(logits)
        # A stable sort puts the first of equal values first, as argmax does.
        order = np.argsort(-probability, kind="stable")[:TOP]
        top = [(self.classes[c], float(probability[c])) for c in order]
        return Prediction(top[0][0], top[0][1], top)

    def files(self, paths: Iterable[str], batch: int | None = None) -> Iterator[Outcome]:
        """Yield the outcomes of files in their order; an unreadable file raises nothing.

        If `batch` is the run's eval_batch, the logits equal those of an evaluation bit by bit.
        """
        size = batch or self.batch
        if not batch and self.device.device.type == "cpu":
            size = min(size, CPU_BATCH)
        opened = self._opened(paths, 4 * size)
        while group := list(itertools.islice(opened, size)):
            good = [pixels for _, pixels, _ in group if pixels is not None]
            rows = iter(self._forward(good, self.model) if good else ())
            for path, pixels, reason in group:
                yield Outcome(path, None if pixels is None else next(rows), reason)

    def store(
        self, store: Store, split: str, indices: npt.NDArray[np.int64]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the logits of images of a store, [n, C], in the same batches as an evaluation."""
        expected, info = self.preprocessing, store.splits[split]
        # The splits of the run's own store may differ in size; it was trained on them as they are.
        if not self.trained_on(store) and {info.height, info.width} != {expected.stored}:
            raise DataError(
                f"the images of {store.path} have {info.height} x {info.width} pixels, "
                f"those of the model {expected.stored} x {expected.stored}",
                " ".join(["fastssl convert SOURCE OUT", *expected.convert_options()]),
            )
        with EvaluationBatches(
            store,
            split,
            indices,
            size=expected.size,
            mean=expected.mean,
            std=expected.std,
            reader=self.resolved.config.reader,
            device=str(self.device.device),
            batch=self.batch,
            threads=self.device.threads,
        ) as batches:
            for logits, _ in predict_batches(self.model, batches, self.device):
                yield self._finite(logits.cpu().numpy())

    @property
    def store_fingerprint(self) -> str:
        """The fingerprint of the store that the run was trained on."""
        return self.content.get("inputs", {}).get("store", self.content["store"])

    def trained_on(self, store: Store) -> bool:
        """Return True if a store is the one that the run was trained on."""
        return store.matches(self.store_fingerprint)

    def _opened(self, paths: Iterable[str], ahead: int) -> Iterator[tuple[str, Pixels | None, str]]:
        """Decode in threads, at most `ahead` images ahead of the model."""
        waiting: deque[Future[tuple[str, Pixels | None, str]]] = deque()
        cores = available_cpus()
        with ThreadPoolExecutor(cores, thread_name_prefix="decode") as pool:
            for path in paths:
                waiting.append(pool.submit(self._open, path))
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
            for done in waiting:
                yield done.result()

    def _open(self, path: str) -> tuple[str, Pixels | None, str]:
        if os.path.exists(path) and not os.path.isfile(path):
            return path, None, "not a regular file"
        try:
            return path, self.preprocessing.pixels(open_image(path)), ""
        except BadImageError as error:
            return path, None, str(error)

    def _outputs(self, x: Any, network: Network) -> list[npt.NDArray[np.float32]]:
        """Return the network's output for one image or for each of several."""
        items = list(x) if is_many(x) else [x]
        rows: list[npt.NDArray[np.float32]] = []
        for start in range(0, len(items), self.batch):
            part = items[start : start + self.batch]
            pixels = [self.preprocessing.pixels(to_image(one)) for one in part]
            rows.extend(self._forward(pixels, network))
        return rows

    @torch.inference_mode()
    def _forward(self, pixels: list[Pixels], network: Network) -> npt.NDArray[np.float32]:
        images = self.preprocessing.tensor(np.stack(pixels)).to(self.device.device)
        with self.device.autocast():
            return self._finite(network(images).float().cpu().numpy())

    def _finite(self, outputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return outputs of the network; raise if they are no numbers to choose a class by."""
        if not np.isfinite(outputs).all():
            raise DataError(
                f"the model of {self.run} gives outputs that are not finite numbers",
                "use another checkpoint, or train again",
            )
        return outputs


def probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the softmax of logits [..., C] in double precision."""
    found: npt.NDArray[np.float64] = softmax(logits.astype(np.float64), axis=-1)
    return found


def device_for(resolved: ResolvedConfig, wanted: str | None) -> devices.Device:
    """Return the device for prediction, which need not be the one of the training."""
    # Not with the threads of the training: a sweep divides the cores among its runs.
    changed = {"threads": 0, "device": wanted or resolved.config.device}
    config = resolved.config.model_copy(update=changed)
    if config.device.startswith("cuda") and not wanted and not torch.cuda.is_available():
        config = config.model_copy(update={"device": "cpu"})
    kind = devices.choose_device(config.device, 0).type
    if kind == "cpu" and config.precision == "fp16":
        config = config.model_copy(update={"precision": "fp32"})
    return devices.resolve(config)
