"""Whatever stands in a file or on the command line: an answer or two lines, never a traceback."""

from __future__ import annotations

import io
import random
import shutil
import sys
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import strategies as st

from fastssl.cli import command as cli
from fastssl.cli.listing import configuration
from fastssl.config.resolve import load, parse_overrides
from fastssl.config.schema import RunConfig
from fastssl.errors import UserError
from fastssl.tracking.metrics import read_metrics, trim
from fastssl.tracking.run_dir import RunFolder
from pipelines.convert import Options, convert, open_source
from pipelines.sampling.split import read_indices
from pipelines.sources.label_file import read_list
from pipelines.store.verify import verify
from tests.faults.fuzzing import bounded, corrupted, fuzz

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


def command(*words: str) -> int:
    """Run the command here; return its exit code, or let a traceback through."""
    before = sys.argv, sys.stdout, sys.stderr
    sys.argv, sys.stdout, sys.stderr = ["fastssl", *words], io.StringIO(), io.StringIO()
    try:
        with bounded():
            cli.main()
    except SystemExit as ended:
        code = ended.code or 0  # None where all is well
        assert isinstance(code, int), code
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
    assert parse_overrides(["lr=!!python/object/apply:os.getcwd []"])["lr"].startswith("!!python")


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
                assert read_list(file, tmp_path)
            except UserError as error:
                assert error.exit_code == 3


def test_files_of_labeled_indices(tmp_path, tally, times):
    """The files that `label_file` names: text, CSV and .npy."""
    count = tally("fuzzed files of labeled indices")
    labels = np.arange(50) % 5
    sound = io.BytesIO()
    np.save(sound, np.arange(20))
    cells = st.sampled_from(["3", "-1", "9" * 30, "9" * 5000, "\t", ",", "#", " ", "a", "\n", "\0"])
    texts = st.lists(cells, max_size=12).map(lambda found: "".join(found).encode())
    dice = random.Random(11)
    arrays = st.builds(lambda: corrupted(sound.getvalue(), dice))

    @fuzz(
        times(60, 500),
        content=st.one_of(texts, st.binary(max_size=100), arrays),
        suffix=st.sampled_from(["txt", "csv", "npy"]),
    )
    def _(content: bytes, suffix: str) -> None:
        file = tmp_path / f"indices.{suffix}"
        file.write_bytes(content)
        with count, bounded():
            try:
                assert len(read_indices(file, labels))
            except UserError as error:
                assert error.exit_code == 3


def test_arrays_for_convert(tmp_path, tally, times):
    """A .npz after an accident, and one of sound arrays that do not fit."""
    count = tally("fuzzed .npz through convert")
    dice = random.Random(12)
    shapes = [
        (6, 8, 8, 3),
        (6, 8, 8),
        (6, 8, 8, 1),
        (6, 8),
        (0, 8, 8, 3),
        (5, 8, 8, 3),
        (6, 0, 8, 3),
    ]
    labels: list[Any] = [
        np.arange(6) % 2, np.array(list("ababab")), np.full(6, -1), np.full(6, 2 * 10**9),
        np.full(6, 2**63, np.uint64), np.arange(6.0), np.array(0), np.array([""] * 6),
        np.array([b"a"] * 6), np.arange(6)[:, None], np.array([True] * 6), np.array([]),
    ]  # fmt: skip
    for _ in range(times(60, 500)):
        file = io.BytesIO()
        save = dice.choice([np.savez, np.savez_compressed])
        more: dict[str, Any] = {}
        if dice.random() < 0.3:
            more = {"class_names": np.array(dice.choice([["a", "b"], ["a", "a"], [], ["a\x1b"]]))}
        if dice.random() < 0.3:
            more |= {"test_images": np.zeros((2, 8, 8, 3), np.uint8), "test_labels": labels[0][:2]}
        pixels = np.zeros(dice.choice(shapes), dice.choice([np.uint8, np.uint8, np.int16]))
        save(file, images=pixels, labels=dice.choice(labels[:2] + labels), **more)
        content = file.getvalue()
        path = tmp_path / "mine.npz"
        path.write_bytes(corrupted(content, dice) if dice.random() < 0.6 else content)
        with count, bounded():
            try:
                raw = open_source(str(path), Options())
                convert(raw, tmp_path / "out", Options(workers=1))
            except UserError as error:
                assert error.exit_code == 3 and "\x1b" not in str(error)
            else:
                assert verify(tmp_path / "out").problems == []
                shutil.rmtree(tmp_path / "out")


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
