"""The verbs `convert` and `verify`, what they say, and the tool that converts all standard sets."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastssl.api import convert
from fastssl.conversion import verify
from fastssl.errors import ConfigError
from fastssl.tracking import progress_bar
from fastssl.tracking.console import clock, messages
from fastssl.tracking.progress_bar import Progress
from pipelines.datasets import DATASETS
from tests import publishers
from tests.image_files import write_flat, write_folder

TOOL = Path(__file__).resolve().parents[2] / "tools" / "convert_standard.py"


def test_a_conversion_says_what_it_did_on_stderr(tmp_path, capsys):
    pets = write_folder(tmp_path / "pets", per_class=10)
    (pets / "class0" / "bad.jpg").touch()
    store = convert(str(pets), tmp_path / "out", formats=("dali",), on_error="skip", size=24)
    message = capsys.readouterr()
    assert message.out == ""
    assert "10% of every class is held out" in message.err
    assert "converting pets: 31/31 images" in message.err
    assert "27 train images of 24 x 24 (raw), 3 test images" in message.err
    assert "1 files left out" in message.err
    assert store.splits["train"].count == 27


def test_the_terms_of_a_standard_set_are_named_once(tmp_path, capsys):
    convert("digits", tmp_path / "out", formats=("dali",))
    assert capsys.readouterr().err.count("CC BY 4.0") == 1
    assert "CC BY 4.0" in (tmp_path / "out" / "dataset.json").read_text()


def test_every_option_reaches_the_store(tmp_path):
    pets = write_folder(tmp_path / "pets", per_class=4)
    store = convert(
        str(pets),
        tmp_path / "out",
        formats=("dali",),
        size=50,
        resize="pad",
        quality=60,
        workers=1,
        unlabeled=write_flat(tmp_path / "loose", count=3),
        test=write_folder(tmp_path / "test", per_class=1, seed=5),
        progress=False,
    )
    info = store.splits["train"]
    assert (info.count, info.height, info.encoding) == (15, 50, "jpeg")
    assert store.manifest.resize == "pad"
    assert store.manifest.quality == {"train": 60, "test": 60}
    raw = convert(str(pets), tmp_path / "raw", formats=("dali",), size=120, quality=0)
    assert raw.splits["train"].encoding == "raw"


def test_the_default_place(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path / "data"))
    pets = write_folder(tmp_path / "pets", per_class=2)
    assert convert(str(pets), formats=("dali",)).path == tmp_path / "data" / "pets"


def test_a_store_is_not_written_into_its_own_source(tmp_path):
    pets = write_folder(tmp_path / "pets", per_class=2)
    for out in (pets, pets / "store", pets / "class0" / "store"):
        with pytest.raises(ConfigError, match="inside"):
            convert(str(pets), out)


def test_verify_reports(tmp_path, data, capsys):
    report = verify(data / "digits")
    assert (report.images, report.problems) == (1797, [])
    copy = shutil.copytree(data / "digits", tmp_path / "copy")
    content = bytearray((copy / "test.npy").read_bytes())
    content[-1] ^= 1
    (copy / "test.npy").write_bytes(content)
    assert "test.npy" in verify(copy).problems[0]


def fastssl(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "fastssl", *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_verbs(tmp_path):
    pets = write_folder(tmp_path / "pets", per_class=3)
    done = fastssl("convert", str(pets), str(tmp_path / "out"), "--format", "dali")
    assert (done.returncode, "fastssl verify" in done.stdout) == (0, True), done.stderr
    assert fastssl("verify", str(tmp_path / "out")).returncode == 0
    with (tmp_path / "out" / "index.csv").open("ab") as file:
        file.write(b"x")
    damaged = fastssl("verify", str(tmp_path / "out"))
    assert damaged.returncode == 3 and "index.csv" in damaged.stdout
    refused = fastssl("convert", str(pets), str(tmp_path / "out"), "--format", "dali")
    assert refused.returncode == 2 and "not empty" in refused.stderr


def test_convert_and_verify_end_quietly_when_nobody_reads_their_output(tmp_path):
    pets = write_folder(tmp_path / "pets", per_class=3)
    out = tmp_path / "the store"
    for words in (["convert", str(pets), str(out)], ["verify", str(out)]):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "fastssl", *words]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
        os.close(writer)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert verify(out).problems == []


def test_the_next_command_is_quoted_and_names_are_safe_to_print(tmp_path):
    pets = write_folder(tmp_path / "pets\x1b]0;title\x07", per_class=3, suffixes=(".jpg",))
    (pets / "class0").rename(pets / "\x1b[31mred")
    (pets / "class1" / "bad\x1b[2J.jpg").touch()
    (pets / "empty\x1b").mkdir()
    out = str(tmp_path / "the store\x1b[1m")
    refused = fastssl("convert", str(pets), out)
    assert refused.returncode == 3 and "bad\\x1b[2J.jpg" in refused.stderr
    done = fastssl("convert", str(pets), out, "--on-error", "skip", "--test-fraction", "0.4")
    assert done.returncode == 0, done.stderr
    assert f"fastssl verify '{tmp_path}/the store\\x1b[1m'" in done.stdout
    checked = fastssl("verify", out)
    for text in (refused.stderr, done.stdout, done.stderr, checked.stdout, checked.stderr):
        assert "\x1b" not in text and "\x07" not in text
    (tmp_path / "the store\x1b[1m" / "test.npy").write_bytes(b"")
    assert "\x1b" not in fastssl("verify", out).stdout


def test_the_tool_converts_what_is_there(tmp_path, monkeypatch, capsys):
    import importlib.util

    spec = importlib.util.spec_from_file_location("convert_standard", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    publishers.write_cifar(tmp_path / "raw", "cifar10")
    publishers.publish(monkeypatch, "cifar10", tmp_path / "raw" / "cifar-10-batches-py")
    words = ["--root", str(tmp_path / "raw"), "--out", str(tmp_path / "data"), "--format", "dali"]
    assert tool.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    table = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert table["cifar10"][0] == "42"
    assert table["digits"][0] == "1,797"
    assert DATASETS["svhn"].files["train_32x32.mat"] in " ".join(table["svhn"])
    assert tool.main([*words, "--only", "cifar10"]) == 0
    assert "not empty" in capsys.readouterr().out

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "convert", interrupted)
    assert tool.main([*words, "--only", "svhn", "cifar100"]) == 130
    assert capsys.readouterr().err.count("interrupted") == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with messages(), Progress(10, "baking", "cakes") as bar:
        bar.advance(4)
    assert "baking" in sys.stderr.getvalue()


def test_progress_is_a_line_now_and_then_in_a_log(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    with messages(), Progress(100, "baking", "cakes") as bar:
        for _ in range(50):
            now[0] += 0.5
            bar.advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "baking: 20/100 cakes, 2 cakes/s, 0:40 left"
    assert len(lines) == 3 and lines[-1].startswith("baking: 50/100")


def test_progress_can_be_silent_and_says_nothing_after_an_error(capsys):
    with messages(quiet=True), Progress(10, "baking") as bar:
        bar.advance(10)
    with pytest.raises(KeyError), messages(), Progress(10, "baking"):
        raise KeyError
    assert capsys.readouterr().err == ""


def test_the_clock():
    assert [clock(seconds) for seconds in (5, 75, 3700)] == ["0:05", "1:15", "1:01:40"]
