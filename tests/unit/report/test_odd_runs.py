"""Reports on odd, hostile and damaged runs."""

import csv
import json
import os
import re
import tracemalloc
from urllib.parse import unquote_to_bytes

import pytest
from markupsafe import escape

from fastssl import report
from fastssl.errors import ConfigError, DataError
from fastssl.report import load
from tests.fake_runs import write_run
from tests.unit.report.test_report import read, write_grid

EVIL = "<script>alert(\"x\")</script> & 'y'"


def test_names_are_escaped_everywhere(tmp_path):
    write_run(tmp_path / "runs" / "a", changes={"data": EVIL})
    write_run(tmp_path / "runs" / "<b>&")
    page = read(tmp_path / "runs", "html")
    assert "<script>alert" not in page
    assert escape(EVIL) in page
    assert 'href="%3Cb%3E%26/"' in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    assert "<" not in data
    assert EVIL in json.dumps(json.loads(data), ensure_ascii=False).replace('\\"', '"')
    assert "<script" not in read(tmp_path / "runs", "md")
    rows = list(csv.DictReader(read(tmp_path / "runs", "csv").splitlines()))
    assert {row["data"] for row in rows} == {EVIL, "digits"}


def test_classes_have_the_names_that_the_run_recorded(tmp_path):
    write_run(tmp_path / "a", changes={"data": "own"}, classes=2)
    path = tmp_path / "a" / "environment.json"
    path.write_text(json.dumps({"class_names": ["cat & co", EVIL]}))
    page = read(tmp_path, "html")
    assert "cat &amp; co" in page and escape(EVIL) in page and "<script>alert" not in page
    path.write_text(json.dumps({"class_names": ["cat & co"]}))  # not as many as the metrics have
    assert "cat &amp; co" not in read(tmp_path, "html")


def test_failed_missing_running_short_and_damaged_runs_are_reported(tmp_path):
    write_grid(tmp_path, seeds=2)
    keys = {"algorithm": "fixmatch", "labels": 40}
    write_run(tmp_path / "failed", {**keys, "seed": 5}, status="failed", until=0.4)
    write_run(tmp_path / "short", {**keys, "seed": 6}, status="out of time", until=0.5)
    write_run(tmp_path / "stopped", {**keys, "seed": 7}, status="interrupted", until=0.3)
    write_run(tmp_path / "new", {**keys, "seed": 8}, status=None, until=0.0)
    for name, text in (("yaml", "a: [1"), ("other", "a: 1\n"), ("list", "- 1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    cells_ = [{"name": "40-uda-s0", "data": "digits", "labels": 40, "algorithm": "uda"}]
    cells_ += [{**cells_[0], "name": "40-vat-s0", "algorithm": "vat", "exit": 3}, 7]
    (tmp_path / "sweep.json").write_text(json.dumps({"cells": cells_}))
    notes = "\n".join(json.loads(read(tmp_path))["notes"])
    for note in (
        "failed with exit 4: loss is not finite at step 7",
        "stopped: interrupted at step 300",
        "new: unfinished at step 0",
        "new: not evaluated yet",
        "missing, not trained yet: 40-uda-s0",
        "failed before they began: 40-vat-s0 (exit 3)",
        "runs of different lengths, 500 to 1,000 steps",
        "means over the 3 of 6 runs that ended",
        "yaml can't be read",
        "other can't be read",
        "list can't be read",
    ):
        assert note in notes
    page = read(tmp_path, "html")
    assert ">missing<" in page and ">failed (exit 3)<" in page


def test_a_damaged_metrics_file_does_not_stop_a_report(tmp_path):
    write_run(tmp_path / "a")
    path = tmp_path / "a" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    bad = ['{"step": 5, "ki', "7", "[]", '{"kind": "eval"}', '{"step": 1001, "kind": "eval"}']
    bad += ['{"step": 1002, "kind": "eval", "error": NaN, "class_accuracy": 3, "tables": 4}']
    path.write_text("\n".join([*lines, *bad, lines[0]]) + "\n\x00\xff")
    page = read(tmp_path, "html")
    assert "NaN" not in re.search(r'id="data">(.*?)</script>', page, re.S)[1]


def test_one_seed_two_classes_and_a_thousand(tmp_path):
    write_run(tmp_path / "two", changes={"data": "pets"}, classes=2)
    write_run(tmp_path / "many", changes={"data": "birds"}, classes=1000, evals=10)
    notes = "\n".join(json.loads(read(tmp_path))["notes"])
    assert "one seed only" in notes
    assert "birds, 40 labels: flexmatch: fewer than 20 evaluations, so the median" in notes
    assert "pets, 40 labels: flexmatch: fewer" not in notes
    assert "two classes, so no top-5: pets" in notes
    assert "more than 100 classes, so no AUC: birds" in notes
    page = read(tmp_path, "html")
    assert "1,000 classes: the 15 worst and the 15 best are shown" in page
    assert len(page) < 1_000_000
    found = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    thresholds = next(plot for plot in found["plots"] if plot["id"] == "thresholds")
    series = {choice["name"]: len(choice["series"]) for choice in thresholds["choices"]}
    assert sorted(series.values()) == [2, 12]
    for choice in thresholds["choices"]:
        many = "Of 1,000 classes, the 6 worst and the 6 best at the best evaluation."
        assert choice["note"] == (many if "birds" in choice["name"] else "")


def test_a_note_on_many_runs_is_written_once(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"s{seed}", {"seed": seed}, status="failed", until=0.4)
    notes = json.loads(read(tmp_path))["notes"]
    assert notes == ["s0; s1; s2: failed with exit 4: loss is not finite at step 7"]


def test_a_lone_run_folder_is_a_report_too(tmp_path):
    write_run(tmp_path / "mine")
    written = report.write([tmp_path / "mine"], tmp_path / "r.html")
    assert "1 run in 1 cell, " in written
    with pytest.raises(DataError, match="does not exist"):
        report.write([tmp_path / "nothing"], tmp_path / "r.html")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="there is no run in"):
        report.write([tmp_path / "empty"], tmp_path / "r.html")
    with pytest.raises(ConfigError, match="no report format 'pdf'"):
        report.write([tmp_path / "mine"], tmp_path / "r.pdf")
    with pytest.raises(ConfigError, match="is a folder"):
        report.write([tmp_path / "mine"], tmp_path / "empty", "html")
    assert report.write([tmp_path / "mine"], tmp_path / "r.txt", "csv")


def test_runs_of_one_name_get_unique_names(tmp_path):
    write_run(tmp_path / "a" / "x")
    write_run(tmp_path / "b" / "x", {"seed": 1})
    out = tmp_path / "r.json"
    report.write([tmp_path / "a", tmp_path / "b"], out)
    assert [row["run"] for row in json.loads(out.read_text())["runs"]] == ["a/x", "b/x"]


def test_code_that_a_run_names_is_not_run(tmp_path):
    mark = tmp_path / "ran"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(mark)!r}, 'w').close()\n")
    settings = tmp_path / "evil.yaml"
    settings.write_text(f"data: digits\nalgorithm: {evil}\n")
    write_run(tmp_path / "runs" / "algorithm", changes={"algorithm": str(evil)})
    write_run(tmp_path / "runs" / "data", changes={"data": str(settings)})
    write_run(tmp_path / "runs" / "both", changes={"data": f"{evil}:x", "algorithm": str(evil)})
    for format in report.FORMATS:
        assert read(tmp_path / "runs", format)
    assert not mark.exists()


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("summary.json", DEEP),
        ("environment.json", '{"a": ' + DEEP),
        ("metrics.jsonl", '{"step": 20, "kind": "eval", "error": ' + DEEP + "\n"),
        ("metrics.jsonl", '{"step": 25, "kind": "train", "loss": ' + DEEP + "\n"),
        ("metrics.jsonl", f'{{"step": 20, "kind": "eval", "error": 1{"0" * 400}}}\n'),
        ("metrics.jsonl", f'{{"step": 1{"0" * 400}, "kind": "eval", "error": 5}}\n'),
        ("metrics.jsonl", '{"step": true, "kind": "eval", "error": 5}\n'),
    ],
)
def test_a_damaged_file_affects_no_other_run(tmp_path, file, text):
    write_run(tmp_path / "bad")
    write_run(tmp_path / "good", {"seed": 1})
    (tmp_path / "bad" / file).write_text(text)
    for format in report.FORMATS:
        assert "good" in read(tmp_path, format) or format == "csv"


@pytest.mark.parametrize("every", [0.5, 0, -1, "often", [1], 1e300])
def test_a_report_survives_any_log_every(tmp_path, every):
    write_run(tmp_path / "a")
    path = tmp_path / "a" / "config.yaml"
    path.write_text(re.sub("log_every: .*", f"log_every: {every}", path.read_text()))
    (row,) = json.loads(read(tmp_path))["runs"]
    assert row["steps"] == 1000


def test_a_report_survives_a_list_instead_of_a_number(tmp_path):
    write_run(tmp_path / "a", changes={"labels": [4], "seed": []})
    path = tmp_path / "a" / "config.yaml"
    path.write_text(path.read_text().replace("steps: 1000", "steps: []"))
    assert json.loads(read(tmp_path))["runs"]


@pytest.mark.parametrize(
    "text",
    ["1: 2\n", "2001-01-01: 2\n", "lr2: {1: 2, a: 3}\n", "lr2: 2001-01-01\n", f"x: {DEEP}\n"],
)
def test_a_config_with_odd_keys_is_left_out_and_reported(tmp_path, text):
    write_run(tmp_path / "good")
    write_run(tmp_path / "bad", {"seed": 1})
    path = tmp_path / "bad" / "config.yaml"
    path.write_text(path.read_text() + text)
    written = json.loads(read(tmp_path))
    assert [row["run"] for row in written["runs"]] == ["good"]
    assert "bad can't be read and is left out" in "\n".join(written["notes"])


ODD = "a\x1b]0;x\x07b\u202ec\ud800"
SHOWN = r"a\x1b]0;x\x07b\u202ec\ud800"


def test_control_characters_are_shown_and_never_written(tmp_path):
    write_run(tmp_path / "runs" / "a\x1b[2Jb", changes={"data": ODD, "momentum": ODD}, classes=2)
    path = tmp_path / "runs" / "a\x1b[2Jb"
    config = (path / "config.yaml").read_text()
    for key in ("seed", "steps"):
        config = re.sub(
            f"^{key}: .*", lambda _, key=key: f"{key}: {json.dumps(ODD)}", config, flags=re.M
        )
    (path / "config.yaml").write_text(config)
    (path / "environment.json").write_text(json.dumps({"class_names": [ODD, "x"], "commit": ODD}))
    (path / "summary.json").write_text(json.dumps({"status": ODD, "what": ODD}))
    sweep = {"cells": [{"name": ODD, "data": ODD, "labels": ODD, "algorithm": ODD}]}
    (tmp_path / "runs" / "sweep.json").write_text(json.dumps(sweep))
    for format in report.FORMATS:
        written = read(tmp_path / "runs", format)
        assert not set("\x1b\x07\u202e") & set(written), format
        plain = written.replace("\\\\", "\\").replace("\\]", "]")
        assert SHOWN in plain, format


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff\xfe", "日本".encode()])
def test_names_that_are_not_utf_8_are_shown_and_linked(tmp_path, name):
    folder = tmp_path / os.fsdecode(name)
    write_run(folder / "runs" / os.fsdecode(name))
    for format in report.FORMATS:
        assert read(folder / "runs", format)
    page = read(folder / "runs", "html")
    link = re.search(r'<th scope="row"><a href="([^"]+)/"', page)[1]
    assert unquote_to_bytes(link) == name
    out = folder / "r.json"
    assert "1 run in 1 cell" in report.write([folder / "runs"], out)
    assert json.loads(out.read_text())["runs"][0]["folder"].startswith("runs/")


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    write_run(tmp_path / "a", changes={"data": "=HYPERLINK(0)", "labels": "@x"})
    write_run(tmp_path / "b", changes={"algorithm": "+1+1", "momentum": "-1+1|cmd"})
    rows = list(csv.reader(read(tmp_path, "csv").splitlines()))
    cells_ = [cell for row in rows[1:] for cell in row if not re.fullmatch(r"-?[\d.e-]+", cell)]
    assert "'=HYPERLINK(0)" in cells_ and "'+1+1" in cells_ and "'@x" in cells_
    assert not [cell for cell in cells_ if cell[:1] in tuple("=+-@\t\r")]


def test_markdown_makes_no_link_and_no_image_of_a_name(tmp_path):
    write_run(tmp_path / "a", changes={"data": "![x](http://x.example/y) `z`"})
    written = read(tmp_path, "md")
    assert r"!\[x\](http://x.example/y) \`z\`" in written
    assert "![x]" not in written


def bomb(levels=9):
    lines = ["x0: &x0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("file", "add"),
    [
        ("config.yaml", bomb()),
        ("config.yaml", f"lr2: {'9' * 70_000}\n"),
        ("environment.json", '{"a": [' + "[]," * (6 << 20)),
        ("summary.json", '{"a": "' + "x" * (17 << 20)),
        ("metrics.jsonl", '{"step": 1, "kind": "eval", "x": [' + "[]," * (12 << 20)),
    ],
)
def test_a_file_of_any_size_takes_little_memory(tmp_path, file, add):
    write_run(tmp_path / "good")
    write_run(tmp_path / "bad", {"seed": 1})
    path = tmp_path / "bad" / file
    path.write_text((path.read_text() if file == "config.yaml" else "") + add)
    tracemalloc.start()
    try:
        written = json.loads(read(tmp_path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "good" in [row["run"] for row in written["runs"]]
    assert ("bad can't be read" in str(written["notes"])) == (file == "config.yaml")
    assert peak < 256 << 20


@pytest.mark.parametrize(("limit", "value"), [("LARGEST_METRICS", 1000), ("MOST_LINES", 5)])
def test_more_metrics_than_a_run_writes_are_refused(tmp_path, monkeypatch, limit, value):
    write_run(tmp_path / "good", evals=2, logs=2)
    write_run(tmp_path / "bad", {"seed": 1})
    size = (tmp_path / "good" / "metrics.jsonl").stat().st_size
    monkeypatch.setattr(load, limit, max(value, size if limit == "LARGEST_METRICS" else 0))
    written = json.loads(read(tmp_path))
    assert [row["run"] for row in written["runs"]] == ["good"]
    assert "bad can't be read and is left out: metrics.jsonl has more than" in written["notes"][0]


@pytest.mark.parametrize("file", ["config.yaml", "summary.json", "environment.json"])
@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_a_file_that_is_none_does_not_hang_a_report(tmp_path, file, kind):
    write_run(tmp_path / "good")
    write_run(tmp_path / "bad", {"seed": 1})
    path = tmp_path / "bad" / file
    path.unlink()
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert "good" in [row["run"] for row in json.loads(read(tmp_path))["runs"]]


def test_a_run_that_is_given_twice_counts_once(tmp_path):
    write_run(tmp_path / "runs" / "a")
    out = tmp_path / "r.json"
    report.write([tmp_path / "runs", tmp_path / "runs" / "a", tmp_path / "runs"], out)
    assert json.loads(out.read_text())["cells"][0]["runs"] == 1
