"""Fetching a standard data set where its publisher allows it; nothing that came is opened here."""

from pathlib import Path

from pipelines.errors import ConfigError, ResourceError
from pipelines.sources.checksums import MD5, PAGES
from pipelines.store.manifest import file_digest

ARCHIVES = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "stl10": "STL10"}  # torchvision's classes


def download(name: str, root: Path, *, extra: bool = True) -> None:
    """Put the publisher's files of a data set under `root`, unless they are there."""
    if name == "digits":
        return
    if name == "imagenet":
        raise ConfigError(
            "ImageNet may not be downloaded by a program: its terms want a person to agree",
            f"get it from {PAGES['imagenet']} and say where with --root",
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        _fetch(name, root, extra)
    except (OSError, RuntimeError) as error:
        raise ResourceError(
            f"{name} could not be downloaded: {error}",
            f"get it from {PAGES[name]} by hand and say where with --root",
        ) from None


def _fetch(name: str, root: Path, extra: bool) -> None:
    """Fetch from the addresses that torchvision knows, with its checksums.

    Its data sets are never made: they would unpickle what came, or load it whole.
    """
    from torchvision import datasets
    from torchvision.datasets import utils

    if name == "svhn":
        for split in ("train", "test", "extra") if extra else ("train", "test"):
            url, file, md5 = datasets.SVHN.split_list[split]
            utils.download_url(url, str(root), file, md5)
        return
    kind = getattr(datasets, ARCHIVES[name])
    if not _there(name, root / kind.base_folder):
        utils.download_and_extract_archive(
            kind.url, str(root), filename=kind.filename, md5=kind.tgz_md5
        )


def _there(name: str, folder: Path) -> bool:
    """Tell whether every published file is in its place already."""
    files = {folder / file: md5 for file, md5 in MD5[name].items()}
    return all(path.is_file() and file_digest(path, "md5") == md5 for path, md5 in files.items())
