import importlib.util
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.fake_runs import write_run

PATH = Path(__file__).resolve().parents[3] / "tools" / "sweep_record.py"


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Run the tool on a folder, with its results beside it."""
    spec = importlib.util.spec_from_file_location("sweep_record", PATH)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.setattr(tool, "RESULTS", tmp_path)
    monkeypatch.setattr(tool, "IMAGES", tmp_path)

    def run(folder, *words):
        monkeypatch.setattr(sys, "argv", ["sweep_record.py", str(folder), *words])
        tool.main()
        return json.loads((tmp_path / "a-sweep.json").read_text()), tmp_path / "a-sweep.svg"

    return run


def write(folder, commit="abc", keys=None, **options):
    lines = {}
    for algorithm in ("fixmatch", "flexmatch"):
        for seed in (0, 1):
            place = folder / f"{algorithm}-s{seed}"
            whole = {"algorithm": algorithm, "seed": seed, **(keys or {})}
            lines[algorithm, seed] = write_run(place, whole, **options)
            (place / "environment.json").write_text(json.dumps({"commit": commit}))
    return lines


def test_the_record_holds_what_the_runs_measured(tmp_path, make):
    lines = write(tmp_path / "a_sweep", keys={"image_size": 16})
    record, _ = make(tmp_path / "a_sweep")
    assert [row["name"] for row in record["results"]] == ["fixmatch", "flexmatch"]
    assert (record["settings"]["image_size"], record["settings"]["steps"]) == (16, 1000)
    for row in record["results"]:
        errors = [
            [line["error"] for line in lines[row["name"], seed] if line["kind"] == "eval"]
            for seed in (0, 1)
        ]
        assert row["best"] == pytest.approx([min(seed) for seed in errors], abs=1e-4)
        means = [sum(both) / 2 for both in zip(*errors, strict=True)]
        assert row["curve"]["y"] == pytest.approx(means, abs=0.01)
        assert row["curve"]["hi"] == pytest.approx(
            [max(b) for b in zip(*errors, strict=True)], 0.01
        )


def test_the_figure_has_a_named_line_for_every_algorithm(tmp_path, make):
    write(tmp_path / "a_sweep")
    record, figure = make(tmp_path / "a_sweep")
    drawn = ElementTree.parse(figure).getroot()
    space = "{http://www.w3.org/2000/svg}"
    lines = [path for path in drawn.iter(f"{space}path") if path.get("stroke-width")]
    assert len(lines) == 2
    points = len(record["results"][0]["curve"]["x"])
    assert all(line.get("d").count("L") == points - 1 for line in lines)
    names = [text.text.split()[0] for text in drawn.iter(f"{space}text") if text.get("fill")]
    assert sorted(names) == ["fixmatch", "flexmatch"]


def test_a_sweep_that_is_not_done_has_no_record(tmp_path, make):
    write(tmp_path / "a_sweep")
    (tmp_path / "a_sweep" / "fixmatch-s1" / "summary.json").unlink()
    with pytest.raises(SystemExit, match="not all cells are done"):
        make(tmp_path / "a_sweep")


def test_settings_of_the_algorithm_and_the_command_are_reported(tmp_path, make):
    write(tmp_path / "a_sweep", keys={"algo.forward": "split"})
    record, _ = make(tmp_path / "a_sweep")
    assert [row["algo"] for row in record["results"]] == [{"forward": "split"}] * 2
    message = record["environment"]
    assert message["commit"] == "abc"
    assert message["command"] == "fastssl sweep a_sweep --jobs 2 --out runs/a_sweep"
    record, _ = make(tmp_path / "a_sweep", "--command", "fastssl sweep mine --jobs 1")
    assert record["environment"]["command"] == "fastssl sweep mine --jobs 1"


@pytest.mark.parametrize("commit", ["", None])
def test_runs_of_an_unknown_commit_have_no_record(tmp_path, make, commit):
    write(tmp_path / "a_sweep", commit=commit)
    with pytest.raises(SystemExit, match="does not say which commit"):
        make(tmp_path / "a_sweep")
