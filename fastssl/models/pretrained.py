"""Weights to start from: a file, or a library's download, loaded as far as they fit a network."""

from __future__ import annotations

import logging
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fastssl.models import backbones
from pipelines.errors import ConfigError, DataError
from pipelines.text import listed

logger = logging.getLogger(__name__)
PREFIXES = ("module.", "_orig_mod.", "backbone.", "body.")
INSIDE = ("ema", "state_dict", "model")  # where files keep the state dict
SHOWN = 6  # names of tensors in a line
STEM = "_conv_stem.weight"  # first in the files of efficientnet-pytorch and efficientnet-lite
# The lite networks were trained on (pixel - 127) / 128; the others have squeeze and excitation.
SQUEEZE = "_blocks.0._se_reduce.weight"
LITE_MEAN, LITE_STD = 127 / 255, 128 / 255

Tensors = Mapping[str, Tensor]


class Normalization(NamedTuple):
    """Mean and deviation of each channel that weights expect, for pixels in 0..1."""

    mean: list[float]
    std: list[float]


def read_file(path: Path) -> dict[str, Tensor]:
    """Return the state dict in a file; never executes code of the file."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file", "check the path in pretrained=")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(path)
        else:
            _check_unpacked_size(path)
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (DataError, MemoryError):
        raise
    except ImportError as error:
        raise ConfigError(f"{path} needs safetensors", "pip install safetensors") from error
    except Exception as error:  # a foreign file may fail in torch's reader with any exception
        raise DataError(
            f"{path} is refused: it holds more than tensors, or is damaged",
            "give a state dict: torch.save(model.state_dict(), FILE)",
        ) from error
    while isinstance(found, Mapping):
        inner = next((found[key] for key in INSIDE if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        found = inner
    tensors = stripped(found) if isinstance(found, Mapping) else {}
    if not tensors:
        raise DataError(f"{path} holds no tensors by name", "give the file of a state dict")
    return tensors


def _check_unpacked_size(path: Path) -> None:
    """Raise if parts of an archive claim more bytes than the file has, which would fill memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            claimed = sum(part.file_size for part in archive.infolist())
        if claimed > path.stat().st_size:
            raise DataError(
                f"{path} is refused: it is compressed, and unpacks to {claimed:,} bytes",
                "give a file as torch.save writes it",
            )


def stripped(found: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Return the tensors by their names without the prefixes of wrappers."""
    return {_bare(str(key)): value for key, value in found.items() if isinstance(value, Tensor)}


def _bare(name: str) -> str:
    while prefix := next((one for one in PREFIXES if name.startswith(one)), ""):
        name = name.removeprefix(prefix)
    return name


def normalization_of(tensors: Tensors) -> Normalization | None:
    """Return what the names in a file show about the images it was trained on, if anything."""
    lite = STEM in tensors and SQUEEZE not in tensors
    return Normalization([LITE_MEAN] * 3, [LITE_STD] * 3) if lite else None


def download(model: str, size: tuple[int, int]) -> dict[str, Tensor]:
    """Return the weights that timm or torchvision publish for a network."""
    reference = backbones.parse(model)
    assert reference is not None
    problem = ""
    try:
        with _reached_hub() if reference.library == "timm" else nullcontext("") as problem:
            made = backbones.body(reference, size, pretrained=True)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join((problem or str(error)).split())[:200]
        raise DataError(
            f"the weights of {model} cannot be downloaded: {reason}",
            "get them where there is a network, then type pretrained=FILE",
        ) from error
    return dict(made.state_dict())


@contextmanager
def _reached_hub() -> Iterator[str]:
    """Use only the cache of huggingface_hub if the Hub cannot be reached; yield the reason.

    The library has no setting for its attempts: it would make 14 of them, log each and take 50 s.
    """
    from huggingface_hub import constants, get_session

    problem, offline = "", constants.HF_HUB_OFFLINE
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # of the HTTP library, which differs among versions
        problem = str(error) or type(error).__name__
    constants.HF_HUB_OFFLINE = offline or bool(problem)
    try:
        yield problem
    finally:
        constants.HF_HUB_OFFLINE = offline


def load(model: nn.Module, tensors: Tensors, source: str) -> None:
    """Load what fits into a network and log the rest; raise if less than half of its body is found.

    Its classifier does not count: of a tiny network it is half of the tensors.
    """
    own = model.state_dict()
    given = _own_names(model, own, _as_in_timm(model, tensors))
    found = {name: tensor for name, tensor in given.items() if _fits(tensor, own.get(name))}
    body = [name for name in own if name.split(".")[0] not in ("classifier", "heads")] or list(own)
    fitting = sum(name in found for name in body)
    if 2 * fitting < len(body):
        raise ConfigError(
            f"{source} has {fitting} of the {len(body)} tensors of this model. Names there: "
            f"{listed(list(tensors), 3)}; names here: {listed(body, 3)}",
            "give the weights of the same model",
        )
    model.load_state_dict({**own, **found})
    logger.info(f"weights {source}: {len(found):,} of the {len(own):,} tensors of the model")
    fresh = [f"{name} {list(own[name].shape)}" for name in own if name not in found]
    unused = [f"{name} {list(given[name].shape)}" for name in given if name not in found]
    for what, names in (("not in them, or of another shape", fresh), ("not used", unused)):
        if names:
            logger.info(f"  {what}: {listed(names, SHOWN)}")


def _fits(tensor: Tensor, own: Tensor | None) -> bool:
    return own is not None and own.shape == tensor.shape


def _as_in_timm(model: nn.Module, tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors under the names and in the shapes of timm, for a body of timm's."""
    body: Any = getattr(model, "body", None)
    module = sys.modules[type(body).__module__]
    if not module.__name__.startswith("timm."):
        return dict(tensors)
    if STEM in tensors:  # the same layers in the same order; only the names differ
        names = [*body.state_dict(), "classifier.weight", "classifier.bias"]
        return dict(zip(names, tensors.values(), strict=False))
    # timm's own translation: other names of the same model, position embeddings of another size.
    translate = getattr(module, "checkpoint_filter_fn", None)
    try:
        return dict(translate(dict(tensors), body)) if translate else dict(tensors)
    except Exception:  # it expects weights of this model, and may fail on others with any exception
        return dict(tensors)


def _own_names(model: nn.Module, own: Tensors, tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors under the names of our network: those of its body, and of its classifier.

    Prefixes of wrappers are removed from the names of both sides. The classifier has another name
    in each library. It is recognized by its shape, if no other tensor of a file that has no place
    in the body is like it.
    """
    names = [name for name in own if not name.startswith("classifier.")]
    bodies = {_bare(name): name for name in names if _bare(name) in tensors}
    heads = [
        name.removesuffix(".weight")
        for name, tensor in tensors.items()
        if name not in bodies and _fits(tensor, own.get("classifier.weight"))
    ]
    if len(heads) == 1:
        bodies |= {f"{heads[0]}.{part}": f"classifier.{part}" for part in ("weight", "bias")}
    return {bodies.get(name, name): tensor for name, tensor in tensors.items()}
