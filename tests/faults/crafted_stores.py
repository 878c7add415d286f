"""Stores made by somebody else: every checksum agrees, and the tables lie.

    python -m tests.faults.crafted_stores BASES FIRST LAST

crafts the stores with these numbers from the sound ones in the folder BASES and does with each
what training and the verbs do. It prints a line of JSON for each. A crash ends this process, and
the caller sees which store it was.
"""

from __future__ import annotations

import io
import json
import random
import resource
import shutil
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pipelines.errors import UserError
from pipelines.readers import READERS
from pipelines.store import manifest
from pipelines.store.store import open_store
from pipelines.store.verify import verify
from tests.faults.fuzzing import corrupted

ODD = [None, -1, 0, 1, 7, 3.5, 1e30, 10**40, "", "../../x", "\0", "\udcff", [], {}, [[]], True]
ODD += [float("nan"), "raw", "jpeg", "train.beton", "dataset.json", 16384, 2**31, 2**63]


class Crafted:
    """A copy of a sound store that is changed and sealed anew."""

    def __init__(self, base: Path, folder: Path, dice: random.Random) -> None:
        self.base, self.folder, self.dice = base, folder, dice
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        self.content: dict[str, Any] = json.loads((base / manifest.NAME).read_bytes())

    def file(self, *endings: str) -> Path:
        found = [path for path in sorted(self.folder.iterdir()) if path.name.endswith(endings)]
        return self.dice.choice(found)

    def seal(self) -> None:
        """Write a manifest that agrees with the files."""
        files = self.content.get("files")
        for path in self.folder.iterdir():
            entry = files.get(path.name) if isinstance(files, dict) else None
            if isinstance(entry, dict):
                entry |= {"size": path.stat().st_size, "sha256": manifest.digest(path)}
        (self.folder / manifest.NAME).write_bytes(manifest.render(self.content))


def change_records(store: Crafted) -> None:
    """Write extreme values into the index of a split."""
    path, dice = store.file(".npy"), store.dice
    records = np.load(path)
    for _ in range(dice.choice([1, 1, 4])):
        field = dice.choice(records.dtype.names)
        rows = slice(None) if dice.random() < 0.3 else dice.randrange(len(records))
        top = int(np.iinfo(records.dtype[field]).max)
        size = store.file(".tar", ".beton").stat().st_size
        values = [0, 1, top, top - 1, top // 2, top // 2 + 1, size, size - 1, size + 1, -1]
        records[field][rows] = np.uint64(dice.choice(values) % 2**64).astype(records.dtype[field])
    np.save(path, records)


def change_table(store: Crafted) -> None:
    """Change type, shape or header of the index of a split."""
    path, dice = store.file(".npy"), store.dice
    records = np.load(path)
    made: list[Callable[[], Any]] = [
        lambda: records[: dice.randrange(len(records))],
        lambda: np.concatenate([records] * 3),
        lambda: records.reshape(2, -1),
        lambda: records.view(np.uint8),
        lambda: records.astype(records.dtype.newbyteorder(">")),
        lambda: records[["offset", "size"]].copy(),
        lambda: np.float64(3.5),
        lambda: np.array([None, {}], dtype=object),
    ]
    if dice.random() < 0.5:
        np.save(path, dice.choice(made)(), allow_pickle=True)
    else:
        path.write_bytes(corrupted(path.read_bytes(), dice))


def change_manifest(store: Crafted) -> None:
    """Change entries of the manifest, most of all those of a split."""
    dice, content = store.dice, store.content
    split = content["splits"][dice.choice(sorted(content["splits"]))]
    kind = dice.randrange(5)
    if kind == 0:
        key = dice.choice(["count", "height", "width", "encoding", "shards"])
        split[key] = dice.choice([*ODD, 12, 16, 32, 4096, ["train.beton"], ["test-00000.tar"] * 3])
    elif kind == 1:  # the same number of bytes in another shape
        split["height"], split["width"] = split["height"] * 2, split["width"] // 2
    elif kind == 2:
        split["encoding"] = "jpeg" if split["encoding"] == "raw" else "raw"
    elif kind == 3:
        key = dice.choice(sorted(content))
        content[key] = dice.choice([*ODD, ["ffcv"], ["dali"], {"train": split}])
    else:
        del content[dice.choice(sorted(content))]


def change_bytes(store: Crafted) -> None:
    """Damage a file anywhere."""
    path = store.file(".tar", ".beton", ".idx", ".csv")
    path.write_bytes(corrupted(path.read_bytes(), store.dice))


def cut(store: Crafted) -> None:
    """Shorten or lengthen a file."""
    path, dice = store.file(".tar", ".beton", ".idx", ".csv", ".npy"), store.dice
    data = path.read_bytes()
    path.write_bytes(
        data + bytes(4096) if dice.random() < 0.3 else data[: dice.randrange(len(data))]
    )


def change_beton(store: Crafted) -> None:
    """Change FFCV's own tables: header, fields, modes, pointers, allocations."""
    dice = store.dice
    path = store.file(".beton")
    records = np.load(path.with_suffix(".npy"))
    data = bytearray(path.read_bytes())
    first = int(records["beton"].min())
    filled = len(data) - len(records) * 24
    for _ in range(dice.choice([1, 3, 30])):
        place = dice.randrange(first) if dice.random() < 0.7 else dice.randrange(filled, len(data))
        data[place] = dice.choice([0, 1, 2, 0x7F, 0xFF])
    path.write_bytes(data)


def hostile_image(store: Crafted) -> bytes:
    """Return a JPEG that is not what the manifest says."""
    dice = store.dice
    pixels = np.random.default_rng(dice.randrange(99)).integers(0, 256, (32, 32, 3), np.uint8)
    photo = Image.fromarray(pixels)
    kind = dice.randrange(7)
    if kind == 0:
        photo = photo.resize(dice.choice([(16, 16), (64, 64), (32, 31), (1, 1), (16, 64)]))
    elif kind == 1:
        photo = photo.convert(dice.choice(["L", "CMYK"]))
    file = io.BytesIO()
    photo.save(file, "JPEG", progressive=kind == 2)
    data = bytearray(file.getvalue())
    frame = data.find(b"\xff\xc2" if kind == 2 else b"\xff\xc0")
    if kind == 3:  # a bomb: a header of up to 65,535 x 65,535 pixels
        data[frame + 5 : frame + 9] = dice.choice([b"\xff\xff\xff\xff", b"\x40\x00\x40\x00"])
    elif kind == 4:
        data = data[: dice.randrange(len(data))]
    elif kind == 5:
        data = bytearray(corrupted(bytes(data), dice))
    elif kind == 6:  # two frame headers: the first fits, the second does not
        second = bytearray(data[frame : frame + 19])
        second[5:9] = b"\x20\x00\x20\x00"
        data[frame + 19 : frame + 19] = second
    return bytes(data)


def replace_image(store: Crafted) -> None:
    """Put a hostile image into every format, with the right checksum."""
    path, dice = store.file(".npy"), store.dice
    records = np.load(path)
    row = dice.randrange(len(records))
    room = int(records["size"][row])
    image = hostile_image(store)[:room]
    for file, start in (
        (path.with_name(f"{path.stem}-00000.tar"), int(records["offset"][row])),
        (path.with_suffix(".beton"), int(records["beton"][row])),
    ):
        if file.exists():
            data = bytearray(file.read_bytes())
            data[start : start + len(image)] = image
            file.write_bytes(data)
    if image:
        records["size"][row], records["crc"][row] = len(image), zlib.crc32(image)
    np.save(path, records)


CHANGES = [
    change_records, change_records, change_table, change_manifest, change_manifest, change_bytes,
    cut, change_beton, replace_image, replace_image,
]  # fmt: skip


def use(path: Path) -> None:
    """Do with a store what training and the verbs do."""
    store = open_store(path)
    first: UserError | None = None

    def attempt(action: Callable[[], Any]) -> None:
        nonlocal first
        try:
            action()
        except UserError as error:
            first = first or error

    def read(name: str, split: str) -> None:
        info = store.splits[split]
        reader = READERS[name].open(store, split, threads=1)
        try:
            plan = [np.arange(min(info.count, 64)), np.array([0, info.count - 1, 0])]
            for images in reader.stream(plan):
                assert images.shape[1:] == (info.height, info.width, 3)
        finally:
            reader.close()

    for split in store.splits:
        attempt(lambda: store.labels(split))  # noqa: B023
        attempt(lambda: store.source_paths(split))  # noqa: B023
        attempt(lambda: store.image(split, 0))  # noqa: B023
        for name in READERS:
            if READERS[name].format in (None, *store.formats) and READERS[name].installed:
                attempt(lambda: read(name, split))  # noqa: B023
    if first:
        raise first


def try_one(base: Path, folder: Path, number: int) -> dict[str, Any]:
    """Craft one store, use it, and return what became of it."""
    dice = random.Random(number)
    store = Crafted(base, folder, dice)
    names = []
    for change in dice.choices(CHANGES, k=dice.choice([1, 1, 2, 3])):
        try:
            change(store)
        except Exception:
            continue  # an earlier change has taken away what this one changes
        names.append(change.__name__)
    store.seal()
    code, message = 0, ""
    try:
        use(folder)
    except UserError as error:
        code, message = error.exit_code, str(error)
    except Exception:  # what a user would see as a traceback
        code, message = 1, traceback.format_exc()
    problems = verify(folder).problems if (folder / manifest.NAME).exists() else []
    assert all(isinstance(problem, str) for problem in problems)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"number": number, "by": names, "code": code, "message": message, "peak": peak}


def main() -> None:
    """Try a range of numbers."""
    bases, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sound = sorted(path for path in bases.iterdir() if not path.name.startswith("."))
    folder = bases / f".crafted-{first}"
    for base in sound:
        use(base)  # whatever is compiled or allocated once
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps({"start": peak}), flush=True)
    for number in range(first, last):
        print(json.dumps({"begins": number}), flush=True)
        print(json.dumps(try_one(sound[number % len(sound)], folder, number)), flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
