"""The files that publishers ship: found, fetched if allowed, and checked before they are read."""

from collections.abc import Mapping
from pathlib import Path

from pipelines.errors import ConfigError, DataError, ResourceError
from pipelines.sources import Dataset
from pipelines.store.manifest import digest


def find_folder(entry: Dataset, root: Path) -> Path:
    """Return the folder with a dataset's files: `root`, or the one its archive unpacks to."""
    first = next(iter(entry.files))
    for folder in (root / entry.folder, root):
        if (folder / first).exists():
            return folder
    return root / entry.folder


def checked(entry: Dataset, folder: Path, file: str) -> Path:
    """Return the path of a published file after comparing its checksum."""
    path, expected = folder / file, entry.files[file]
    if not path.is_file():
        raise DataError(
            f"{path} is missing (MD5 {expected})",
            f"get it from {entry.page} and give its folder by --root, or add --download",
        )
    found = digest(path, "md5")
    if found != expected:
        raise DataError(
            f"{path} is not the published file: its MD5 is {found}, not {expected}",
            f"remove it and get it again from {entry.page}, or with --download",
        )
    return path


def download(entry: Dataset, root: Path, *, extra: bool = True) -> None:
    """Fetch the publisher's files into `root`, unless they are there; none of them is read."""
    if entry.bundled:
        return
    if not entry.files:
        raise ConfigError(
            f"{entry.name} may not be downloaded by a program: a person must agree to its terms",
            f"get it from {entry.page} and give its folder by --root",
        )
    # Of torchvision only the download is used: its datasets unpickle what they fetched.
    from torchvision.datasets import utils

    files = {file: md5 for file, md5 in entry.files.items() if extra or file not in entry.optional}
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not entry.archive:
            for file, md5 in files.items():
                utils.download_url(f"{entry.page}/{file}", str(root), file, md5)
        elif not _complete(root / entry.folder, files):
            utils.download_and_extract_archive(entry.archive, str(root), md5=entry.archive_md5)
    except (OSError, RuntimeError) as error:
        raise ResourceError(
            f"{entry.name} could not be downloaded: {error}",
            f"get it from {entry.page} by hand and give its folder by --root",
        ) from None


def _complete(folder: Path, files: Mapping[str, str]) -> bool:
    """Return True if every published file is in the folder, unchanged."""
    paths = {folder / file: md5 for file, md5 in files.items()}
    return all(path.is_file() and digest(path, "md5") == md5 for path, md5 in paths.items())
