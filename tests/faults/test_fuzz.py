"""Whatever stands in a file or on the command line: an answer or two lines, never a traceback."""

from __future__ import annotations

import io
import json
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from fastssl import cli
from fastssl.config import RunConfig
from fastssl.config_files import load, parse_words
from fastssl.errors import UserError
from fastssl.folder import RunFolder
from fastssl.listing import configuration
from fastssl.record import read_metrics, trim
from pipelines import index, manifest
from pipelines.convert.pictures import BadPictureError
from pipelines.convert.pictures import load as load_picture
from pipelines.sources.label_file import read_labels
from pipelines.store import open_store
from pipelines.verify import verify
from tests.small_stores import make_store

SECONDS = 60  # nothing that is fuzzed here may take so long, even on a busy machine

KEYS = st.sampled_from([*RunConfig.model_fields, "algo.threshold", "algorithms", "stpes", ""])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 10**30, 1e-300, 1e308]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["all", "auto", "digits", "flexmatch", "../../etc", "a.py:B", "wrn-1-1", "~"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
BOMB = "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nlr: [*c,*c]\n"
LINES = st.lists(st.tuples(KEYS | st.text(max_size=12), VALUES), max_size=6)
FILES = st.one_of(
    LINES.map(lambda rows: yaml.safe_dump(dict(rows), allow_unicode=True).encode()),
    st.binary(max_size=200),
    st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from(list("{}[]:,-&*!|>'\"%@`#?\n \tab1")), max_size=60).map(
        lambda found: "".join(found).encode()
    ),
    st.sampled_from(
        [b"!!python/object/apply:os.system ['false']", BOMB.encode(), b"[" * 3000, b"a: " * 2000]
    ),
)
WORDS = st.lists(
    st.one_of(
        st.tuples(KEYS, VALUES).map(lambda pair: f"{pair[0]}={pair[1]}"),
        st.text(max_size=30),
        st.sampled_from(
            ["steps=[", "lr=!!python/name:os.system", "seed=0x_", "batch=1_0", "a=b=c"]
        ),
    ),
    max_size=4,
)

# What hypothesis tries depends on what is imported, so a finding here is a matter of chance:
# `make faults` looks for them, and each becomes an example in the unit tests.
pytestmark = pytest.mark.faults


@contextmanager
def bounded() -> Iterator[None]:
    """Fail what hangs, and refuse what allocates out of proportion."""

    def late(number: int, frame: Any) -> None:
        raise AssertionError(f"hangs for {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(tries: int, **inputs: Any) -> Callable[[Callable[..., None]], None]:
    """Run a function on so many inputs, the same ones every time."""

    def run(function: Callable[..., None]) -> None:
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
        chosen = settings(
            max_examples=tries, derandomize=True, database=None, deadline=None,
            suppress_health_check=checks,
        )  # fmt: skip
        chosen(given(**inputs)(function))()

    return run


def command(*words: str) -> int:
    """Run the command here; return its exit code, or let a traceback through."""
    before = sys.argv, sys.stdout, sys.stderr
    sys.argv, sys.stdout, sys.stderr = ["fastssl", *words], io.StringIO(), io.StringIO()
    try:
        with bounded():
            cli.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        lines = sys.stderr.getvalue().strip().splitlines()
        assert code == 0 or len(lines) >= 2, lines
        return code
    finally:
        sys.argv, sys.stdout, sys.stderr = before
    return 0


def test_configuration_files(tmp_path, tally, times):
    count = tally("fuzzed configuration files")
    file = tmp_path / "fuzzed.yaml"

    @fuzz(times(40, 500), content=FILES)
    def _(content: bytes) -> None:
        file.write_bytes(content)
        with count, bounded():
            try:
                assert configuration(load(file))
            except UserError as error:
                assert error.exit_code == 2
            if count.tried % 25 == 1:
                assert command("config", str(file)) in (0, 2)


def test_words_of_the_command_line(tally, times):
    count = tally("fuzzed key=value words")

    @fuzz(times(40, 500), words=WORDS)
    def _(words: list[str]) -> None:
        with count, bounded():
            try:
                load("digits", words)
            except UserError as error:
                assert error.exit_code == 2


def test_words_are_values_never_code():
    assert parse_words(["lr=!!python/object/apply:os.getcwd []"])["lr"].startswith("!!python")


def corrupted(picture: bytes, dice: random.Random) -> bytes:
    """Return a picture's bytes after an accident."""
    data = bytearray(picture)
    for _ in range(dice.choice([1, 1, 3, 20])):
        place = dice.randrange(len(data)) if dice.random() < 0.6 else dice.randrange(64) % len(data)
        kind = dice.randrange(4)
        if kind == 0:
            data[place] = dice.randrange(256)
        elif kind == 1:
            del data[place : place + dice.randrange(1, 40)]
        elif kind == 2:
            data[place:place] = dice.randbytes(dice.randrange(1, 40))
        else:
            data[place : place + 4] = b"\xff\xff\xff\xff"
        if not data:
            break
    return bytes(data)


def seeds() -> dict[str, bytes]:
    """Return sound pictures in many formats."""
    random_ = np.random.default_rng(0)
    picture = Image.fromarray(random_.integers(0, 256, (24, 20, 3), dtype=np.uint8))
    found = {}
    for name in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"):
        file = io.BytesIO()
        picture.save(file, name)
        found[name.lower()] = file.getvalue()
    return found


def test_pictures_through_the_decoder_of_convert(tmp_path, tally, times):
    count = tally("fuzzed images through convert's decoder")
    dice = random.Random(5)
    pictures = seeds()
    for _ in range(times(40, 500)):
        name = dice.choice(sorted(pictures))
        path = tmp_path / f"fuzzed.{name}"
        path.write_bytes(corrupted(pictures[name], dice))
        with count, bounded():
            try:
                assert load_picture(str(path)).mode == "RGB"
            except BadPictureError as error:
                assert "\n" not in str(error)


def test_pictures_through_predict(trained, tmp_path, tally, times):
    from fastssl.predicting import Predictor

    count = tally("fuzzed images through predict")
    dice = random.Random(6)
    pictures, paths = seeds(), []
    for number in range(times(40, 500)):
        name = dice.choice(sorted(pictures))
        path = tmp_path / f"{number}.{name}"
        path.write_bytes(corrupted(pictures[name], dice))
        paths.append(str(path))
    good = tmp_path / "good.png"
    good.write_bytes(pictures["png"])
    answers = Predictor(trained, device="cpu").files([*paths, str(good)], batch=32)
    for path in paths:
        with count, bounded():
            found = next(answers)
            assert found.path == path
            assert (found.logits is None) == bool(found.why)
    assert next(answers).logits is not None  # the bad ones did not take the good one with them


def test_label_files(tmp_path, tally, times):
    count = tally("fuzzed label files")
    file = tmp_path / "labels.csv"
    cells = st.text(max_size=10) | st.sampled_from(["path", "label", "a/b.png", "..", '"', ""])
    rows = st.lists(st.lists(cells, max_size=4).map(",".join), max_size=8).map("\n".join)
    texts = rows.map(lambda text: text.encode("utf-8", "surrogatepass"))

    @fuzz(times(40, 300), content=texts | st.binary(max_size=100))
    def _(content: bytes) -> None:
        file.write_bytes(content)
        with count, bounded():
            try:
                assert read_labels(file)
            except UserError as error:
                assert error.exit_code == 3


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    return make_store(folder / "small", count=24, size=8, formats=("dali",)).path


def changed(content: Any, dice: random.Random) -> Any:
    """Change one thing, anywhere in nested data."""
    if isinstance(content, dict) and content and ("kind" in content or dice.random() < 0.9):
        key = dice.choice(sorted(content))
        copy = dict(content)
        if dice.random() < 0.15:
            del copy[key]
        else:
            copy[key] = changed(content[key], dice)
        return copy
    if isinstance(content, list) and content and dice.random() < 0.7:
        place = dice.randrange(len(content))
        return [*content[:place], changed(content[place], dice), *content[place + 1 :]]
    odd = [None, -1, 0, 1e30, 10**40, "", "../../x", "\0", [], {}, [[]], True, float("nan"), "raw"]
    return dice.choice(odd)


def use(path: Path) -> None:
    """Do with a store what training and the verbs do."""
    from pipelines.readers import READERS

    store = open_store(path)
    for split in store.splits:
        store.labels(split)
        store.source_paths(split)
        READERS["resident"].open(store, split).read(np.arange(2), np.empty((2, 8, 8, 3), np.uint8))


def test_manifests_sealed_by_somebody_else(small, tmp_path, tally, times):
    count = tally("fuzzed manifests, sealed anew")
    store = shutil.copytree(small, tmp_path / "store")
    sound = json.loads((small / manifest.NAME).read_bytes())
    del sound["sha256"]
    dice = random.Random(7)
    for _ in range(times(60, 500)):
        (store / manifest.NAME).write_bytes(manifest.render(changed(sound, dice)))
        with count, bounded():
            try:
                use(store)
            except UserError as error:
                assert error.exit_code in (3, 5), error
            except (ValueError, IndexError) as error:
                assert "shape" in str(error), error  # of our own array, in `use`
            assert isinstance(verify(store).problems, list)


def test_indices_sealed_by_somebody_else(small, tmp_path, tally, times):
    count = tally("fuzzed shard indices, sealed anew")
    store = shutil.copytree(small, tmp_path / "store")
    content = json.loads((small / manifest.NAME).read_bytes())
    sound = np.load(small / "train.npy")
    rows = (small / index.NAME).read_bytes()
    dice = random.Random(8)
    for number in range(times(40, 300)):
        if number % 2:
            records = sound.copy()
            field = dice.choice(records.dtype.names)
            top = np.iinfo(records.dtype[field]).max
            records[field][dice.randrange(len(records))] = dice.choice([0, 1, top, top // 2])
            np.save(store / "train.npy", records)
        else:
            (store / index.NAME).write_bytes(corrupted(rows, dice))
        for name in ("train.npy", index.NAME):
            file = store / name
            content["files"][name] = {"size": file.stat().st_size, "sha256": manifest.digest(file)}
        (store / manifest.NAME).write_bytes(manifest.render(content))
        with count, bounded():
            try:
                use(store)
            except UserError as error:
                assert error.exit_code == 3, error
            assert isinstance(verify(store).problems, list)
        for name in ("train.npy", index.NAME):
            shutil.copy(small / name, store / name)


def test_run_folders(whole, tmp_path, tally, times):
    count = tally("fuzzed metrics.jsonl and config.yaml of a run")
    sound = {name: (whole / name).read_bytes() for name in ("metrics.jsonl", "config.yaml")}
    dice = random.Random(9)
    folder = RunFolder(tmp_path)
    for _ in range(times(40, 300)):
        for name, content in sound.items():
            (tmp_path / name).write_bytes(corrupted(content, dice))
        with count, bounded():
            trim(folder.metrics, 5)
            assert all(line["step"] <= 5 for line in read_metrics(folder.metrics, "eval"))
            try:
                folder.read_config()
                load(folder.config)
            except UserError as error:
                assert error.exit_code in (2, 3)
