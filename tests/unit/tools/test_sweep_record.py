import json
import shutil
import statistics
import sys
from xml.etree import ElementTree

import pytest

from tests.fake_runs import write_run
from tests.rules import test_records
from tools import readme_tables, sweep_record

# Of a short run by the fast recipe, whatever values the recipe has.
FAST = {"labels": 250, "steps": 3000, "batch": 32, "ratio": 14, "supervised_steps": 110}
SPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Run the tool on a folder, with its results beside it."""
    monkeypatch.setattr(sweep_record, "RESULTS", tmp_path)
    monkeypatch.setattr(sweep_record, "IMAGES", tmp_path)

    def run(folder, *words):
        monkeypatch.setattr(sys, "argv", ["sweep_record.py", str(folder), *words])
        sweep_record.main()
        return json.loads((tmp_path / "a-sweep.json").read_text()), tmp_path / "a-sweep.svg"

    return run


def write(folder, commit="abc", keys=None, seeds=(0, 1), **options):
    lines = {}
    for algorithm in ("fixmatch", "flexmatch"):
        for seed in seeds:
            place = folder / f"{algorithm}-s{seed}"
            whole = {"algorithm": algorithm, "seed": seed, **(keys or {})}
            lines[algorithm, seed] = write_run(place, whole, **options)
            found = {"commit": commit, "processor": "a processor", "cores": 2, "load_1m": 1.5}
            (place / "environment.json").write_text(json.dumps(found))
    return lines


def write_list(folder, names):
    cells = [{"name": name, "data": "digits", "labels": 40, "algorithm": "x"} for name in names]
    (folder / "sweep.json").write_text(json.dumps({"name": folder.name, "cells": cells}))


def evaluations(lines, algorithm, seed):
    return [line for line in lines[algorithm, seed] if line["kind"] == "eval"]


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
    lines = [path for path in drawn.iter(f"{SPACE}path") if path.get("stroke-width")]
    assert len(lines) == 2
    points = len(record["results"][0]["curve"]["x"])
    assert all(line.get("d").count("L") == points - 1 for line in lines)
    names = [text.text.split()[0] for text in drawn.iter(f"{SPACE}text") if text.get("fill")]
    assert sorted(names) == ["fixmatch", "flexmatch"]


def test_a_sweep_that_is_not_done_has_no_record(tmp_path, make):
    write(tmp_path / "a_sweep")
    (tmp_path / "a_sweep" / "fixmatch-s1" / "summary.json").unlink()
    with pytest.raises(SystemExit, match="not all cells are done: fixmatch-s1\n  fix: "):
        make(tmp_path / "a_sweep")
    assert not list(tmp_path.glob("a-sweep.*"))


def test_every_finished_run_has_an_entry_with_what_it_measured(tmp_path, make):
    keys = FAST | {"algo.unlabeled_weight": 3.0, "threads": 1}
    lines = write(tmp_path / "a_sweep", keys=keys, config="fast/cifar10", evals=8)
    record, _ = make(tmp_path / "a_sweep")
    assert [run["run"] for run in record["runs"]] == [
        f"{name}-s{seed}" for name in ("fixmatch", "flexmatch") for seed in (0, 1)
    ]
    for run in record["runs"]:
        settings = {**record["settings"], **run["settings"]}
        found = evaluations(lines, settings["algorithm"], settings["seed"])
        assert run["evaluations"] == {
            "step": [line["step"] for line in found],
            "minutes": pytest.approx([line["seconds"] / 60 for line in found], abs=1e-4),
            "error": pytest.approx([line["error"] for line in found], abs=1e-4),
        }
        assert run["final_error"] == pytest.approx(found[-1]["error"], abs=1e-4)
        assert run["best_error"] == pytest.approx(min(e["error"] for e in found), abs=1e-4)
        last = [line for line in lines[settings["algorithm"], settings["seed"]] if "lr" in line][-1]
        measured = [run["trusted"], run["pseudo_label_accuracy"], run["ms_per_step"], run["steps"]]
        expected = [last["trusted"], last["pseudo/accuracy"], 100, 3000]
        assert measured == pytest.approx(expected, rel=1e-4)
        # 32 labeled images a step, and 14 times as many unlabeled ones after the first 110.
        assert run["images"] == 32 * 3000 + 448 * (3000 - 110)
        machine = [run["commit"], run["machine"], run["cores"], run["load_1m"]]
        assert machine == ["abc", "a processor", 2, 1.5]
        assert (settings["threads"], settings["algo.unlabeled_weight"]) == (1, 3.0)
        assert "store" not in settings and "log_every" not in settings
    assert record["settings"].keys().isdisjoint(record["runs"][0]["settings"])
    test_records.test_a_record_can_be_made_again_by_what_it_says(tmp_path / "a-sweep.json")


def test_differences_are_taken_seed_by_seed_and_times_to_fixmatchs_final_error(tmp_path, make):
    seeds = (0, 1, 2, 3)
    lines = write(tmp_path / "a_sweep", keys=FAST, seeds=seeds, config="fast/cifar10", evals=8)
    for name in ("fixmatch-s3", "flexmatch-s0"):
        shutil.rmtree(tmp_path / "a_sweep" / name)
    record, _ = make(tmp_path / "a_sweep")
    final = {cell: evaluations(lines, *cell)[-1]["error"] for cell in lines}
    pairs = [final["flexmatch", seed] - final["fixmatch", seed] for seed in (1, 2)]
    (row,) = record["differences"]
    assert (row["name"], row["minus"]) == ("flexmatch", "fixmatch")
    assert (row["seeds"], row["n"]) == ([1, 2], 2)
    assert row["mean"] == pytest.approx(statistics.fmean(pairs), abs=1e-4)
    assert row["std"] == pytest.approx(statistics.stdev(pairs), abs=1e-4)
    goal = sum(final["fixmatch", seed] for seed in range(3)) / 3
    hits = []
    for seed in (1, 2, 3):
        found = evaluations(lines, "flexmatch", seed)
        hits.append(next(line for line in found if line["error"] <= goal))
    _, flex = record["results"]
    assert flex["to_fixmatch"]["error"] == pytest.approx(goal, abs=1e-4)
    steps = statistics.fmean(line["step"] for line in hits)
    minutes = statistics.fmean(line["seconds"] for line in hits) / 60
    found = [flex["to_fixmatch"][key] for key in ("steps", "minutes", "seeds")]
    assert found == pytest.approx([steps, minutes, 3], rel=1e-3)
    assert flex["to_fixmatch"]["images"] == pytest.approx(32 * steps + 448 * (steps - 110), abs=1)
    mean = sum(final["flexmatch", seed] for seed in (1, 2, 3)) / 3
    assert flex["rate"] == pytest.approx(mean, abs=1e-4)
    assert (flex["baseline"], flex["seeds"]) == ("fixmatch", [1, 2, 3])


def test_parts_of_a_sweep_are_recorded_one_after_the_other(tmp_path, make, capsys):
    folder = tmp_path / "a_sweep"
    write(folder, seeds=(0,))
    names = [f"{name}-s{seed}" for name in ("fixmatch", "flexmatch") for seed in (0, 1)]
    write_list(folder, [*names, "uda-s0"])
    (folder / "flexmatch-s0" / "summary.json").unlink()
    first, _ = make(folder, "--partial")
    assert [run["run"] for run in first["runs"]] == ["fixmatch-s0"]
    assert first["results"][0]["spread"] is None and first["differences"] == []
    left = ["fixmatch-s1", "flexmatch-s0", "flexmatch-s1", "uda-s0"]
    assert first["missing"] == {"a_sweep": left}
    assert f"missing of a_sweep: {', '.join(left)}\n" in capsys.readouterr().out
    shutil.rmtree(folder)
    write(folder, commit="def", seeds=(1,))
    write_list(folder, [*names, "uda-s0"])
    second, _ = make(folder, "--partial")
    assert [run["run"] for run in second["runs"]] == ["fixmatch-s0", "fixmatch-s1", "flexmatch-s1"]
    settings = [
        {**record["settings"], **record["runs"][0]["settings"]} for record in (first, second)
    ]
    assert settings[0] == settings[1]  # those of a run, whatever the others have
    assert second["missing"] == {"a_sweep": ["flexmatch-s0", "uda-s0"]}
    assert second["environment"]["commit"] == "abc, def"
    assert [row["seeds"] for row in second["results"]] == [[0, 1], [1]]
    assert second == {**make(folder, "--partial")[0], "environment": second["environment"]}


def test_a_run_that_another_folder_has_finished_is_not_missing(tmp_path, make):
    for name, seed in (("a_sweep", 0), ("a_copy", 1)):
        write(tmp_path / name, seeds=(seed,))
        cells = [
            f"{algorithm}-s{seed}" for algorithm in ("fixmatch", "flexmatch") for seed in (0, 1)
        ]
        write_list(tmp_path / name, cells)
    record, _ = make(tmp_path / "a_sweep", "--partial")
    assert record["missing"] == {"a_sweep": ["fixmatch-s1", "flexmatch-s1"]}
    assert make(tmp_path / "a_copy", "--partial", "--record", "a-sweep")[0]["missing"] == {}


def test_the_best_is_chosen_by_validation_where_there_is_one(tmp_path, make):
    write(tmp_path / "a_sweep", seeds=(0,), evals=3)
    for name in ("fixmatch", "flexmatch"):
        path = tmp_path / "a_sweep" / f"{name}-s0" / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        evaluated = [line for line in lines if line["kind"] == "eval"]
        for line, error in zip(evaluated, (30.0, 10.0, 20.0), strict=True):
            line["validation_error"] = error
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        second = evaluated[1]["error"]
    record, _ = make(tmp_path / "a_sweep")
    assert record["runs"][1]["evaluations"]["validation_error"] == [30.0, 10.0, 20.0]
    best = [record["runs"][1]["best_error"], *record["results"][1]["best"]]
    assert best == pytest.approx([second, second], abs=1e-4)


def test_a_recorded_run_is_not_replaced_by_another(tmp_path, make):
    write(tmp_path / "a_sweep")
    before, _ = make(tmp_path / "a_sweep")
    path = tmp_path / "a_sweep" / "flexmatch-s1" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[-1]["kind"] == "eval"
    lines[-1]["error"] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SystemExit) as caught:
        make(tmp_path / "a_sweep", "--partial")
    what, fix = str(caught.value).splitlines()
    assert "flexmatch-s1 is in a-sweep.json with another final_error" in what
    assert fix.startswith("  fix: ") and "--record" in fix
    assert json.loads((tmp_path / "a-sweep.json").read_text()) == before


def test_a_cell_that_was_trained_again_counts_by_its_new_folder(tmp_path, make):
    folder = tmp_path / "a_sweep"
    write(folder)
    write_list(folder, ["fixmatch-s0", "fixmatch-s1", "flexmatch-s0~2", "flexmatch-s1"])
    (folder / "flexmatch-s0").rename(folder / "flexmatch-s0~2")
    write_run(folder / "flexmatch-s0", {"algorithm": "flexmatch", "lr": 0.5})
    record, _ = make(folder)
    assert [run["run"] for run in record["runs"]][2:] == ["flexmatch-s0~2", "flexmatch-s1"]
    assert record["missing"] == {}


def test_another_sweep_joins_a_record_with_a_panel_for_each_task(tmp_path, make, monkeypatch):
    write(tmp_path / "a_sweep", keys=FAST, config="fast/cifar10", evals=8)
    write(tmp_path / "other", keys=FAST | {"labels": 100}, config="fast/cifar10", evals=8)
    for seed in (0, 1):
        (tmp_path / "other" / f"flexmatch-s{seed}").rename(tmp_path / "other" / f"more-s{seed}")
        shutil.rmtree(tmp_path / "other" / f"fixmatch-s{seed}")
    make(tmp_path / "a_sweep")
    record, figure = make(tmp_path / "other", "--record", "a-sweep")
    line = "fastssl sweep {0} --jobs 2 --out runs/{0}"
    lines = [line.format("a_sweep"), line.format("other")]
    assert record["environment"]["command"] == " && ".join(lines)
    tasks = ["cifar10, 100 labels", "cifar10, 250 labels"]
    assert sorted({row["task"] for row in record["results"]}) == tasks
    drawn = ElementTree.parse(figure).getroot()
    panels = drawn.findall(f"{SPACE}g")
    texts = [[text.text for text in panel.iter(f"{SPACE}text")] for panel in panels]
    assert [found[0] for found in texts] == tasks
    assert all("minutes" in found and "step" not in found for found in texts)
    colours = [
        {text.text.split()[0]: text.get("fill") for text in panel.iter(f"{SPACE}text")}
        for panel in panels
    ]
    assert colours[0]["flexmatch"] == colours[1]["flexmatch"] != colours[1]["fixmatch"]
    monkeypatch.setattr(readme_tables, "RESULTS", tmp_path)
    assert readme_tables.cifar10_grid() == "No run is recorded yet."
    (tmp_path / "a-sweep.json").rename(tmp_path / "cifar10-grid.json")
    rows = [line.split(" | ") for line in readme_tables.cifar10_grid().splitlines() if "`f" in line]
    assert [row[:2] for row in rows] == [
        ["| cifar10, 100 labels", "`flexmatch`"],
        ["| cifar10, 250 labels", "`fixmatch`"],
        ["| cifar10, 250 labels", "`flexmatch`"],
    ]
    means = [f"{row['rate']:.2f} ± {row['spread']:.2f}" for row in record["results"]]
    assert [row[2] for row in rows] == means
    (pair,) = record["differences"]
    assert [row[5] for row in rows[:2]] == ["-", "-"]
    assert rows[2][5] == f"{pair['mean']:+.2f} ± {pair['std']:.2f} (n = 2)"


def test_a_sweep_is_named_as_it_is_typed():
    names = {"cifar10_grid": "fast/cifar10_grid", "table1": "table1", "mine": "mine"}
    assert {name: sweep_record.typed(name) for name in names} == names


def test_settings_of_the_algorithm_and_the_command_are_reported(tmp_path, make):
    write(tmp_path / "a_sweep", keys={"algo.forward": "split"})
    record, _ = make(tmp_path / "a_sweep")
    assert [row["algo"] for row in record["results"]] == [{"forward": "split"}] * 2
    message = record["environment"]
    assert message["commit"] == "abc"
    assert message["command"] == "fastssl sweep a_sweep --jobs 2 --out runs/a_sweep"
    (tmp_path / "a-sweep.json").unlink()  # to which another command would be added
    record, _ = make(tmp_path / "a_sweep", "--command", "fastssl sweep mine --jobs 1")
    assert record["environment"]["command"] == "fastssl sweep mine --jobs 1"


@pytest.mark.parametrize("commit", ["", None])
def test_runs_of_an_unknown_commit_have_no_record(tmp_path, make, commit):
    write(tmp_path / "a_sweep", commit=commit)
    with pytest.raises(SystemExit, match="does not say which commit"):
        make(tmp_path / "a_sweep")
