"""Damage anywhere in a store is found."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipelines.convert import Options, convert
from pipelines.convert.open import open_source
from pipelines.errors import ConfigError, DataError
from pipelines.store import manifest
from pipelines.store.store import open_store
from pipelines.store.verify import verify
from tests.image_files import write_folder
from tests.installed import INSTALLED_FORMATS


@pytest.fixture(scope="module")
def pets(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    source = write_folder(folder / "raw", per_class=6, size=(120, 110))
    options = Options(formats=INSTALLED_FORMATS, size=100, workers=1)
    convert(open_source(str(source), Options(test_fraction=0.3)), folder / "pets", options)
    return folder / "pets"


def flip(path: Path, random: np.random.Generator) -> int:
    """Change one byte of a file to any other value."""
    data = bytearray(path.read_bytes())
    place = int(random.integers(len(data)))
    data[place] ^= int(random.integers(1, 256))
    path.write_bytes(data)
    return place


def test_a_sound_store(pets, data):
    assert verify(pets).problems == []
    assert verify(pets).images == 18
    assert verify(pets, sample=5).images in (5, 6)
    assert verify(data / "digits").images == 1797


def flips_are_found(folder: Path, copy: Path, each: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    shutil.copytree(folder, copy)
    for original in sorted(folder.iterdir()):
        for _ in range(each):
            place = flip(copy / original.name, random)
            assert verify(copy).problems, f"{original.name}: byte {place} is changed, not found"
            shutil.copyfile(original, copy / original.name)
    assert verify(copy).problems == []


def test_a_changed_byte_in_any_file_is_found(pets, tmp_path):
    flips_are_found(pets, tmp_path / "copy", each=3, seed=0)


@pytest.mark.slow
def test_many_changed_bytes_in_any_file_are_found(pets, data, tmp_path):
    flips_are_found(pets, tmp_path / "pets", each=20, seed=1)
    flips_are_found(data / "digits", tmp_path / "digits", each=20, seed=2)


def test_every_byte_of_the_manifest_counts(pets):
    data = (pets / manifest.NAME).read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x20 if data[place] not in b" \n" else data[place] ^ 0x09
        with pytest.raises(DataError):
            manifest.parse(bytes(changed), pets / manifest.NAME)


def test_a_file_that_is_gone_or_longer_is_found(pets, tmp_path):
    for name in ("train.npy", "train-00000.idx", "index.csv"):
        copy = shutil.copytree(pets, tmp_path / name)
        with (copy / name).open("ab") as file:
            file.write(b"x")
        assert name in verify(copy).problems[0]
        (copy / name).unlink()
        assert name in verify(copy).problems[0]


def resealed(store: Path) -> None:
    """Write checksums that agree with damaged files, so that only decoding finds the damage."""
    content = json.loads((store / manifest.NAME).read_bytes())
    for name, entry in content["files"].items():
        entry["sha256"] = manifest.digest(store / name)
    (store / manifest.NAME).write_bytes(manifest.render(content))


def test_images_are_decoded_and_compared_not_only_summed(pets, tmp_path):
    copy = shutil.copytree(pets, tmp_path / "copy")
    store = open_store(copy)
    where = store.records("train")
    for place in (4, 7):
        size = int(where["size"][place])
        begins = [(store.shards("train")[0], int(where["offset"][place]))]
        if "ffcv" in store.formats:
            begins.append((store.beton("train"), int(where["beton"][place])))
        for path, begin in begins:
            data = bytearray(path.read_bytes())
            damage = begin if place == 4 else begin + size // 2  # the second keeps its header
            data[damage : begin + size] = bytes(begin + size - damage)
            path.write_bytes(data)
    resealed(copy)
    report = verify(copy)
    assert len(report.problems) == 2 and report.images == 18
    assert "train image 4" in report.problems[0] and "picture" in report.problems[0]
    assert "train image 7" in report.problems[1]


def test_an_index_that_disagrees_is_found(pets, tmp_path):
    copy = shutil.copytree(pets, tmp_path / "copy")
    text = (copy / "index.csv").read_text()
    (copy / "index.csv").write_text(text.replace("0,train,0", "0,train,1", 1))
    resealed(copy)
    assert "index.csv" in verify(copy).problems[0]


def test_what_cannot_be_verified(tmp_path, pets):
    with pytest.raises(DataError, match="no converted dataset"):
        verify(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="sample"):
        verify(pets, sample=0)
