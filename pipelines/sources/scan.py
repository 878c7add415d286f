"""The walk over a folder of images: sorted, regular files only, links that stay inside."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipelines.errors import DataError
from pipelines.image_formats import HEIF_SUFFIXES, suffixes
from pipelines.sources import Skipped
from pipelines.text import for_terminal

KINDS = 5  # of files that are not images, named in a note


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _broken(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)


@dataclass
class Scan:
    """Finds images under a folder and records what it passed over."""

    root: Path
    follow: bool = False
    apart: frozenset[str] = frozenset()  # folders, by their real paths, that are skipped
    links: dict[str, Skipped] = field(default_factory=dict)  # that leave the folder, by path
    others: Counter[str] = field(default_factory=Counter)  # files by suffix, not images

    def __post_init__(self) -> None:
        self._real = os.path.realpath(self.root)

    def at(self, folder: Path) -> "Scan":
        """Return a scan of another folder that records what it passed over together with this."""
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder.absolute()}", "look at its name")
        return replace(self, root=folder.absolute())

    def images(self, folder: Path | None = None) -> Iterator[str]:
        """Yield the images under a folder and its subfolders, sorted by name."""
        known = suffixes()
        start = os.fspath(folder or self.root)
        above: tuple[str, ...] = (self._real, os.path.realpath(start))
        stack = [(start, above)]
        while stack:
            path, above = stack.pop()
            below = []
            for entry in self._entries(path):
                if entry.is_dir():
                    real = os.path.realpath(entry.path)
                    if real not in above:  # a link to a folder above would never end
                        below.append((entry.path, (*above, real)))
                elif entry.is_file() or _broken(entry):
                    if _suffix(entry.name) in known:
                        yield entry.path
                    else:
                        self.others[_suffix(entry.name)] += 1
            stack.extend(reversed(below))

    def folders(self) -> list[Path]:
        """Return the folders directly under the root, sorted by name."""
        return [Path(entry.path) for entry in self._entries(os.fspath(self.root)) if entry.is_dir()]

    def loose(self) -> list[str]:
        """Return the images directly under the root."""
        return [
            entry.path
            for entry in self._entries(os.fspath(self.root))
            if entry.is_file() and _suffix(entry.name) in suffixes()
        ]

    def notes(self) -> list[str]:
        """Return what was passed over, and how to include it."""
        notes = self.notes_on_files()
        if self.links:
            notes.insert(
                0,
                f"{len(self.links):,} links leave the folder and were passed over; --follow "
                "includes them",
            )
        return notes

    def notes_on_files(self) -> list[str]:
        """Return which files were passed over because of their suffix."""
        notes = []
        heif = sum(self.others[suffix] for suffix in HEIF_SUFFIXES)
        if heif:
            notes.append(
                f"{heif:,} HEIC images were passed over; to include them: pip install pillow-heif"
            )
        rest = Counter({key: n for key, n in self.others.items() if key not in HEIF_SUFFIXES})
        if rest:
            kinds = [
                f"{n:,} {for_terminal(key) or 'no suffix'}" for key, n in rest.most_common(KINDS)
            ]
            more = " and others" if len(rest) > KINDS else ""
            notes.append(
                f"{rest.total():,} files whose suffix is not that of an image were passed over: "
                f"{', '.join(kinds)}{more}"
            )
        return notes

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
        why = "a link that leaves the folder; --follow includes it"
        self.links[entry.path] = Skipped(entry.path, why)
        return False
