"""The walk over a folder of images: sorted, regular files only, links that stay inside."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipelines.errors import DataError
from pipelines.image_formats import suffixes
from pipelines.sources import Skipped


def _has_image_suffix(entry: os.DirEntry[str]) -> bool:
    return os.path.splitext(entry.name)[1].lower() in suffixes()


def _broken(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)


@dataclass
class Scan:
    """Finds images under a folder and records what it skipped."""

    root: Path
    follow: bool = False
    skipped: list[Skipped] = field(default_factory=list)
    apart: frozenset[str] = frozenset()  # folders, by their real paths, that are skipped

    def __post_init__(self) -> None:
        self._real = os.path.realpath(self.root)

    def at(self, folder: Path) -> "Scan":
        """Return a scan of another folder that records in the same list what it skipped."""
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder.absolute()}", "look at its name")
        return replace(self, root=folder.absolute())

    def images(self, folder: Path | None = None) -> Iterator[str]:
        """Yield the images under a folder and its subfolders, sorted by name."""
        start = os.fspath(folder or self.root)
        stack: list[tuple[str, tuple[str, ...]]] = [(start, (os.path.realpath(start),))]
        while stack:
            path, above = stack.pop()
            below: list[tuple[str, tuple[str, ...]]] = []
            for entry in self._entries(path):
                if entry.is_dir():
                    real = os.path.realpath(entry.path)
                    if real not in above:  # a link to a folder above would never end
                        below.append((entry.path, (*above, real)))
                elif _has_image_suffix(entry) and (entry.is_file() or _broken(entry)):
                    yield entry.path
            stack.extend(reversed(below))

    def folders(self) -> list[Path]:
        """Return the folders directly under the root, sorted by name."""
        return [Path(entry.path) for entry in self._entries(os.fspath(self.root)) if entry.is_dir()]

    def loose(self) -> list[str]:
        """Return the images directly under the root."""
        return [
            entry.path
            for entry in self._entries(os.fspath(self.root))
            if entry.is_file() and _has_image_suffix(entry)
        ]

    def _entries(self, path: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(path) as listing:
                entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            raise DataError(
                f"{path} cannot be read: {error.strerror}", "look at its name and permissions"
            ) from None
        return [entry for entry in entries if self._includes(entry)]

    def _includes(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith("."):
            return False
        if self.apart and entry.is_dir() and os.path.realpath(entry.path) in self.apart:
            return False
        if self.follow or not entry.is_symlink():
            return True
        target = os.path.realpath(entry.path)
        if target == self._real or target.startswith(self._real + os.sep):
            return True
        skipped = Skipped(entry.path, "a link that leaves the folder; --follow includes it")
        if skipped not in self.skipped:
            self.skipped.append(skipped)
        return False
