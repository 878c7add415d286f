"""Fetching a standard data set, by torchvision, where its publisher allows it."""

from pathlib import Path

from pipelines.errors import ConfigError, ResourceError
from pipelines.sources.checksums import PAGES


def download(name: str, root: Path, *, extra: bool = True) -> None:
    """Put the publisher's files of a data set under `root`, unless they are there."""
    if name == "digits":
        return
    if name == "imagenet":
        raise ConfigError(
            "ImageNet may not be downloaded by a program: its terms want a person to agree",
            f"get it from {PAGES['imagenet']} and say where with --root",
        )
    from torchvision import datasets

    root.mkdir(parents=True, exist_ok=True)
    try:
        if name == "svhn":
            for split in ("train", "test", "extra") if extra else ("train", "test"):
                datasets.SVHN(str(root), split=split, download=True)
        else:
            kinds = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "stl10": "STL10"}
            getattr(datasets, kinds[name])(str(root), download=True)
    except (OSError, RuntimeError) as error:
        raise ResourceError(
            f"{name} could not be downloaded: {error}",
            f"get it from {PAGES[name]} by hand and say where with --root",
        ) from None
