"""YAML of other people: bounded in size, in what its aliases stand for, and in time."""

import os
import tracemalloc

import pytest

from fastssl.config.resolve import load, parse_overrides
from fastssl.config.yaml_files import LARGEST, read_yaml
from fastssl.errors import ConfigError, DataError
from tests.calls import count_calls


def aliases(first: str, step: str, levels: int) -> str:
    """Return YAML in which every line stands for several times the line before."""
    lines = [f"k0: &k0 {first}"]
    lines += [f"k{n}: &k{n} {step.replace('*', f'*k{n - 1}')}" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


BOMBS = {
    "lists": aliases("[x, x]", "[" + ", ".join("*" * 9) + "]", 9),
    "mappings": aliases("{a: x}", "{a: *, b: *, c: *, d: *}", 12),
    "merged mappings": aliases("{a: x}", "{<<: [*, *, *, *]}", 12),
    "a long text": aliases("x" * 9000, "[" + ", ".join("*" * 40) + "]", 3),
    "a list in itself": "lr: &a [*a]\n",
    "a mapping in itself": "lr: &a {b: *a}\n",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_aliases_that_stand_for_too_much_are_refused_at_once(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    refused = pytest.raises(ConfigError, match="aliases stand for too many values")
    tracemalloc.start()
    try:
        with count_calls() as calls, refused as caught:
            read_yaml(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.fix == "correct the file"
    assert peak < 64 << 20 and calls.number < 1_000_000


def test_a_few_aliases_are_fine(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("data: digits\nlr: &rate 0.1\nweight_decay: *rate\n")
    assert load(path).config.weight_decay == 0.1


def test_a_merged_mapping_gives_way_to_the_keys_beside_it(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "a: &a {x: 1, y: 2}\nb: &b {x: 3, z: 4}\nc: &c {<<: [*a, *b], y: 5}\nd: {<<: *c, w: 6}\n"
    )
    found = read_yaml(path)
    assert found["c"] == {"x": 1, "y": 5, "z": 4} and found["d"] == {**found["c"], "w": 6}
    assert found["a"] == {"x": 1, "y": 2}
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2, y: 3}\n")
    with pytest.raises(ConfigError, match="y occurs twice"):
        read_yaml(path)


def test_the_size_is_bounded_whatever_stat_says(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("#" * LARGEST)
    assert read_yaml(path) == {}
    path.write_text("#" * (LARGEST + 1))
    with pytest.raises(DataError, match=f"more than {LARGEST:,} bytes") as caught:
        read_yaml(path, DataError)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_is_not_a_file_is_not_read(tmp_path, kind):
    path = tmp_path / "config.yaml"
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    with pytest.raises(ConfigError, match="is not a file"):
        read_yaml(path)


def test_aliases_of_an_override_are_bounded_too():
    text = "[&a [x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a]"
    text += "".join(
        f", &{new} [{','.join([f'*{old}'] * 8)}]"
        for old, new in zip("bcdefg", "cdefgh", strict=True)
    )
    assert parse_overrides([f"lr={text}]"]) == {"lr": f"{text}]"}
