import json
import os
import re
import statistics

import pytest

from fastssl import report
from fastssl.report import cells, compare, load, plots, run_metrics
from fastssl.report.content import build
from fastssl.report.page import text_columns
from fastssl.report.published import PublishedResult
from fastssl.report.tables import Entry, Table
from tests.calls import count_calls
from tests.fake_runs import write_run


def write_grid(root, seeds=3, **options):
    """Write 2 algorithms x 2 label counts x seeds."""
    lines = {}
    for algorithm in ("fixmatch", "flexmatch"):
        for labels in (40, 100):
            for seed in range(seeds):
                name = f"{labels}-{algorithm}-s{seed}"
                keys = {"algorithm": algorithm, "labels": labels, "seed": seed}
                lines[name] = write_run(root / name, keys, **options)
    return lines


def read(root, format="json"):
    out = root / f"report.{format}"
    report.write([root], out)
    return out.read_text()


def test_best_and_median_of_20_and_their_spread_are_those_of_the_metrics(tmp_path):
    lines = write_grid(tmp_path)
    for row in json.loads(read(tmp_path))["cells"]:
        best, median = [], []
        for seed in range(3):
            run = lines[f"{row['labels']}-{row['algorithm']}-s{seed}"]
            errors = [line["error"] for line in run if line["kind"] == "eval"]
            assert len(errors) == 30
            best.append(min(errors))
            median.append(statistics.median(errors[-20:]))
        assert row["best_error"] == pytest.approx(sum(best) / 3, abs=1e-12)
        assert row["median_error"] == pytest.approx(sum(median) / 3, abs=1e-12)
        # the sample standard deviation: n - 1 below the line
        spread = (sum((value - sum(best) / 3) ** 2 for value in best) / 2) ** 0.5
        assert row["best_error_std"] == pytest.approx(spread, abs=1e-12)
        assert row["median_error_std"] == pytest.approx(statistics.stdev(median), abs=1e-12)


def test_the_best_is_chosen_by_validation_where_there_is_one(tmp_path):
    write_run(tmp_path / "a", evals=3)
    path = tmp_path / "a" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    evaluated = [line for line in lines if line["kind"] == "eval"]
    for line, error in zip(evaluated, (30.0, 10.0, 20.0), strict=True):
        line["validation_error"] = error
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = load.read_all([tmp_path]).runs[0]
    assert run_metrics.best_line(found).step == evaluated[1]["step"]


def test_convergence_shows_steps_time_and_the_share_of_fixmatch(tmp_path):
    lines = write_grid(tmp_path, seeds=2)
    last = [lines[f"40-fixmatch-s{seed}"][-1]["error"] for seed in range(2)]
    goal = 100 - sum(last) / 2
    hits = []
    for seed in range(2):
        run = lines[f"40-flexmatch-s{seed}"]
        evals = [line for line in run if line["kind"] == "eval"]
        hits.append(next(line["step"] for line in evals if 100 - line["error"] >= goal))
    rows = json.loads(read(tmp_path))["cells"]
    row = next(row for row in rows if row["algorithm"] == "flexmatch" and row["labels"] == 40)
    assert row["steps_to_fixmatch"] == sum(hits) / 2
    assert row["seconds_to_fixmatch"] == pytest.approx(0.1 * sum(hits) / 2)
    part = read(tmp_path, "md").split("## Steps and time to reach an accuracy: digits, 40 labels")[
        1
    ]
    assert f"| {goal:.2f} % (FixMatch's final) | of FixMatch's steps | " in part
    (line,) = [line for line in part.split("\n## ")[0].splitlines() if "| flexmatch |" in line]
    steps = sum(hits) / 2
    share = f"{steps / 10:.0f} %"  # of FixMatch's 1,000 steps
    assert line.startswith(f"| flexmatch | {steps:,.0f} (0:{steps / 10:02.0f}) | {share} |")


def write_fast_grid(root, changes=None):
    """Write runs of four algorithms by the fast recipe, whose settings differ between them."""
    for labels in (40, 250):
        for name in ("supervised", "fixmatch", "flexmatch", "softmatch"):
            for seed in range(2):
                keys = {"algorithm": name, "labels": labels, "seed": seed, "steps": 3000}
                keys |= {"batch": 32}
                keys |= {"ratio": 7} if name == "softmatch" else {}
                keys |= (changes or {}).get((labels, name), {})
                write_run(root / f"{labels}-{name}-s{seed}", keys, config="fast/cifar10")


def test_a_report_on_the_fast_recipe_knows_fixmatch_and_times_the_others_by_it(tmp_path):
    write_fast_grid(tmp_path)
    found = json.loads(read(tmp_path))["cells"]
    assert {row["settings"] for row in found} == {""}
    flex = [row for row in found if row["algorithm"] == "flexmatch"]
    assert all(300 <= row["steps_to_fixmatch"] < 3000 for row in flex)
    assert all(row["seconds_to_fixmatch"] == 0.1 * row["steps_to_fixmatch"] for row in flex)
    text = read(tmp_path, "md")
    for labels in (40, 250):
        part = text.split(f"an accuracy: cifar10, {labels} labels")[1].split("\n## ")[0]
        assert "(FixMatch's final) | of FixMatch's steps |" in part
        assert re.search(r"\| flexmatch \| [\d,]+ \(\d:\d\d\) \| \d\d % \|", part)
    drawn = plots.build(build([tmp_path], tmp_path / "x").cells, lambda run: "")
    accuracy = next(plot for plot in drawn if plot.id == "accuracy")
    assert [choice["name"] for choice in accuracy.choices] == [
        "cifar10, 40 labels",
        "cifar10, 250 labels",
    ]
    for choice in accuracy.choices:
        assert choice["t"] == pytest.approx([0.1 * step for step in choice["x"]])
        names = [series["name"] for series in choice["series"]]
        assert names == ["fixmatch", "flexmatch", "softmatch", "supervised"]


def test_fixmatch_with_the_only_settings_of_its_task_is_the_baseline(tmp_path):
    # 64 is the default: the runs of the other task are those that are set apart by their batch.
    write_fast_grid(tmp_path, {(250, "fixmatch"): {"batch": 64}})
    found = {(row["labels"], row["algorithm"]): row for row in json.loads(read(tmp_path))["cells"]}
    assert found[40, "fixmatch"]["settings"] == "batch=32"
    for labels in (40, 250):
        assert found[labels, "flexmatch"]["steps_to_fixmatch"]
        assert found[labels, "flexmatch"]["error_reduction"] > 0
        assert found[labels, "fixmatch"]["error_reduction"] is None
    text = read(tmp_path, "md")
    assert text.count("(FixMatch's final) | of FixMatch's steps |") == 2
    table = text.split("## Relative")[1].split("\n## ")[0]
    (line,) = [line for line in table.splitlines() if "| flexmatch" in line]
    assert len(re.findall(r"\d\d\.\d", line)) == 2


def test_without_usual_settings_two_fixmatch_cells_of_a_task_are_no_baseline(tmp_path):
    for weight in (0.5, 3.0):
        write_run(
            tmp_path / str(weight), {"algorithm": "fixmatch", "algo.unlabeled_weight": weight}
        )
    write_run(tmp_path / "usual", {"algorithm": "fixmatch", "labels": 100})
    write_run(tmp_path / "flex", {"algorithm": "flexmatch"})
    rows = json.loads(read(tmp_path))["cells"]
    assert [row["steps_to_fixmatch"] for row in rows if row["labels"] == 40] == [None] * 3


def test_relative_reduction_is_of_the_mean_best_errors(tmp_path):
    write_grid(tmp_path)
    rows = json.loads(read(tmp_path))["cells"]
    by = {(row["algorithm"], row["labels"]): row for row in rows}
    fix, flex = by["fixmatch", 40]["best_error"], by["flexmatch", 40]["best_error"]
    assert by["flexmatch", 40]["error_reduction"] == pytest.approx(100 * (fix - flex) / fix)
    assert by["fixmatch", 40]["error_reduction"] is None


@pytest.mark.parametrize(
    ("ours", "paper", "metric", "mark"),
    [
        ((5.20, 0.5), (4.97, 0.06), "best_error", "worse"),
        ((5.08, 0.0), (4.97, 0.06), "best_error", ""),
        ((4.80, 0.5), (4.97, 0.06), "best_error", "better"),
        ((42.0, 0.2), (43.66, None), "best_error", "better"),
        ((43.4, 0.2), (43.66, None), "best_error", ""),
        ((42.0, None), (43.66, None), "best_error", ""),
        ((0.99, 0.001), (0.95, None), "f1", "better"),
    ],
)
def test_a_difference_of_two_deviations_is_marked(ours, paper, metric, mark):
    result = PublishedResult(*paper, "table 1")
    assert compare.differs(run_metrics.Stat(*ours, 3), result, metric) == mark


def test_a_report_shows_published_results_and_names_settings_that_differ(tmp_path):
    for seed in range(3):
        write_run(tmp_path / str(seed), {"seed": seed, "labels": 40}, config="cifar10")
        keys = {"seed": seed, "labels": 40, "algo.mapping": "linear"}
        write_run(tmp_path / f"linear{seed}", keys, config="cifar10")
    rows = json.loads(read(tmp_path))["cells"]
    assert [row["published_best_error"] for row in rows] == [4.97, None]
    assert [row["settings"] for row in rows] == ["", "mapping=linear"]
    page = read(tmp_path, "html")
    assert "paper 4.97 ± 0.06" in page
    assert "steps 1000 instead of 1048576" in page


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"imbalance": 100.0}, "imbalance 100.0 instead of 1.0"),
        ({"weight_decay": 0.0}, "weight_decay 0.0 instead of 0.0005"),
        ({"ema": 0.99}, "ema 0.99 instead of 0.999"),
        ({"augment_ops": 2}, "augment_ops 2 instead of 3"),
        ({"validation": 0.1}, "validation 0.1 instead of 0.0"),
    ],
)
def test_a_setting_that_all_runs_share_is_noted_beside_the_published_result(tmp_path, keys, note):
    same = {"steps": 2**20, "log_every": 2**18, "precision": "bf16", "device": "cpu"}
    for seed in range(2):
        write_run(tmp_path / str(seed), {**same, **keys, "seed": seed}, config="cifar10", evals=2)
    written = json.loads(read(tmp_path))
    assert written["cells"][0]["published_best_error"] == 4.97
    about = [text for text in written["notes"] if "not the paper's settings" in text]
    assert about == [f"cifar10, 40 labels: flexmatch: not the paper's settings ({note})"]


def test_a_report_lists_what_the_runs_ran_on(tmp_path):
    for seed, commit in enumerate(("abc", "abc", "def+", None)):
        write_run(tmp_path / str(seed), {"seed": seed})
        if commit:
            machine = {"processor": "A <chip>", "cores": 2, "versions": {"torch": "2.9"}}
            path = tmp_path / str(seed) / "environment.json"
            path.write_text(json.dumps({**machine, "commit": commit}))
    (table,) = (
        table for table in build([tmp_path], tmp_path / "r.html").tables if table.id == "machines"
    )
    rows = [[entry.text for entry in row] for row in table.rows]
    assert rows == [["A <chip>", "2", "2.9", "abc", "2"], ["A <chip>", "2", "2.9", "def+", "1"]]
    assert "A &lt;chip>" in read(tmp_path, "md") and "A &lt;chip&gt;" in read(tmp_path, "html")


def test_links_go_from_the_report_to_the_runs(tmp_path):
    write_run(tmp_path / "runs" / "one run")
    out = tmp_path / "sub" / "page.html"
    report.write([tmp_path / "runs"], out)
    link = re.search(r'href="(\.\./[^"]+)"', out.read_text())[1]
    assert (out.parent / link.replace("%20", " ")).resolve() == tmp_path / "runs" / "one run"


def test_settings_that_differ_make_cells_and_seeds_and_threads_do_not(tmp_path):
    write_run(tmp_path / "a", {"seed": 0, "threads": 1, "compile": "off"})
    write_run(tmp_path / "b", {"seed": 1, "threads": 2, "device": "cpu"})
    write_run(tmp_path / "c", {"seed": 0, "algo.threshold": 0.9})
    write_run(tmp_path / "d", {"seed": 0, "steps": 2000})
    write_run(tmp_path / "e", {"seed": 0, "pretrained": "x"})
    found = cells.group(load.read_all([tmp_path]).runs)
    assert [(cell.name, len(cell.runs)) for cell in found] == [
        ("flexmatch", 2),
        ("flexmatch pretrained=x", 1),
        ("flexmatch steps=2000", 1),
        ("flexmatch threshold=0.9", 1),
    ]


def test_the_keys_that_do_not_tell_cells_apart_are_few():
    assert {
        # The name of a cell, or the hash of its content, tells them apart.
        *("data", "algorithm", "algo", "labels", "store", "label_file"),
        # A mean is taken over seeds.
        *("seed", "split_seed"),
        # They change the speed of a run or what it writes, not what it learns.
        *("reader", "device", "compile", "threads", "loader_threads", "eval_batch"),
        *("log_every", "checkpoint_every", "max_time", "tensorboard"),
    } == cells.IGNORED


def names_of(root):
    return {cell.full_name: len(cell.runs) for cell in build([root], root / "r.html").cells}


def test_runs_on_different_stores_are_different_tasks(tmp_path):
    for number, store in enumerate(["aaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"]):
        for algorithm in ("fixmatch", "flexmatch"):
            keys = {"seed": number, "algorithm": algorithm}
            changes = {"data": "own", "store": "data/cats" if store < "b" else "data/dogs"}
            folder = tmp_path / f"{algorithm}-{number}"
            write_run(folder, keys, changes=changes, inputs={"store": store})
    assert names_of(tmp_path) == {
        "own (store cats aaaaaaaa), 40 labels: fixmatch": 2,
        "own (store cats aaaaaaaa), 40 labels: flexmatch": 2,
        "own (store dogs bbbbbbbb), 40 labels: fixmatch": 1,
        "own (store dogs bbbbbbbb), 40 labels: flexmatch": 1,
    }
    rows = json.loads(read(tmp_path))["cells"]
    assert all(row["error_reduction"] for row in rows if row["algorithm"] == "flexmatch")
    assert {row["source"] for row in rows} == {"store cats aaaaaaaa", "store dogs bbbbbbbb"}


def test_runs_of_the_first_version_are_told_apart_by_the_path_of_the_store(tmp_path):
    for number, store in enumerate(["data/cats", "data/cats", "data/dogs"]):
        write_run(tmp_path / str(number), {"seed": number}, changes={"data": "own", "store": store})
    assert names_of(tmp_path) == {
        "own (store cats), 40 labels: flexmatch": 2,
        "own (store dogs), 40 labels: flexmatch": 1,
    }
    write_run(tmp_path / "x", {"seed": 4, "store": "a"})
    write_run(tmp_path / "y", {"seed": 5, "store": "b"})  # a known dataset in two places
    assert names_of(tmp_path)["digits, 40 labels: flexmatch"] == 2


def test_different_label_files_sizes_and_code_make_different_cells(tmp_path):
    store = {"store": "a" * 16}
    write_run(tmp_path / "0", inputs=store)
    write_run(tmp_path / "1", {"seed": 1}, inputs={**store, "label_file": "c" * 16})
    write_run(tmp_path / "2", {"seed": 2}, inputs={**store, "label_file": "d" * 16})
    write_run(tmp_path / "3", {"seed": 3, "image_size": 16}, inputs=store)
    write_run(tmp_path / "4", {"seed": 4, "eval_every": 7}, inputs=store)
    write_run(tmp_path / "5", {"seed": 5}, inputs={**store, "model": "e" * 16})
    write_run(tmp_path / "6", {"seed": 6}, inputs={**store, "model": "f" * 16})
    assert names_of(tmp_path) == {
        "digits (label_file none), 40 labels: flexmatch": 2,
        "digits (label_file none), 40 labels: flexmatch eval_every=7": 1,
        "digits (label_file none), 40 labels: flexmatch image_size=16": 1,
        "digits (label_file none), 40 labels: flexmatch model_code=ffffffff": 1,
        "digits (label_file cccccccc), 40 labels: flexmatch": 1,
        "digits (label_file dddddddd), 40 labels: flexmatch": 1,
    }


def test_a_run_whose_inputs_changed_is_set_apart(tmp_path):
    for seed in range(3):
        write_run(tmp_path / str(seed), {"seed": seed}, inputs={"store": "a", "model": "e" * 16})
    about = {"inputs": {"store": "a", "model": "e" * 16}, "changed_inputs": ["model"]}
    (tmp_path / "2" / "environment.json").write_text(json.dumps(about))
    assert names_of(tmp_path) == {
        "digits, 40 labels: flexmatch": 2,
        "digits, 40 labels: flexmatch changed_inputs=model": 1,
    }
    notes = "\n".join(build([tmp_path], tmp_path / "r.html").notes)
    assert "2: its inputs changed while it was trained: model" in notes


def test_a_missing_cell_of_a_sweep_belongs_to_the_store_of_its_siblings(tmp_path):
    own = {"data": "own", "labels": 40, "algorithm": "flexmatch"}
    for name in ("a", "b"):
        write_run(tmp_path / name / "s0", changes=own, inputs={"store": name * 16})
        rows = [{"name": f"s{seed}", **own, "keys": {"seed": seed}} for seed in (0, 1)]
        (tmp_path / name / "sweep.json").write_text(json.dumps({"cells": rows}))
    table = build([tmp_path], tmp_path / "r.html").tables[0]
    assert [entry.text[-8:] for entry in table.rows[0][1:]] == ["(1 of 2)", "(1 of 2)"]


def test_versions_of_fastssl_that_differ_are_noted(tmp_path):
    for seed in range(2):
        write_run(tmp_path / str(seed), {"seed": seed})
        (tmp_path / str(seed) / "environment.json").write_text(json.dumps({"fastssl": f"0.{seed}"}))
    assert "several versions of fastssl: 0.0, 0.1" in read(tmp_path)


def test_ablation_bars_hold_the_default_and_its_variants(tmp_path):
    for value in (0.9, 0.95, 0.99):
        write_run(tmp_path / str(value), {"algo.threshold": value})
    write_run(tmp_path / "other", {"algo.mapping": "linear"})
    content = build([tmp_path], tmp_path / "r.html")
    plot = next(plot for plot in content.plots if plot.id == "ablations")
    names = {choice["name"]: [bar["name"] for bar in choice["bars"]] for choice in plot.choices}
    assert names == {
        "digits, 40 labels: flexmatch, mapping": ["convex", "linear"],
        "digits, 40 labels: flexmatch, threshold": ["0.9", "0.95", "0.99"],
    }


def test_a_confusion_matrix_is_shown_where_it_is_whole(tmp_path):
    write_run(tmp_path / "a", confusion=True)
    write_run(tmp_path / "b", {"seed": 1}, confusion=True)
    path = tmp_path / "b" / "metrics.jsonl"
    path.write_text(path.read_text().replace("[[90, 2,", "[[90,"))
    plots_ = build([tmp_path], tmp_path / "r.html").plots
    (choice,) = next(plot for plot in plots_ if plot.id == "confusion").choices
    assert choice["runs"] == [["a", "a/"]]
    assert choice["table"][3][3] == 90
    assert choice["names"] == [str(digit) for digit in range(10)]


def test_missing_seeds_and_variants_are_shown_in_the_tables(tmp_path):
    book = []
    for mapping in ("convex", "linear", "concave"):
        for seed in range(3):
            keys = {"labels": 40, "algorithm": "flexmatch", "algo.mapping": mapping, "seed": seed}
            name = f"{mapping}-s{seed}"
            book.append({"name": name, "data": "digits", "labels": 40, "keys": keys})
            book[-1]["algorithm"] = "flexmatch"
            if mapping != "concave" and (mapping, seed) != ("linear", 2):
                write_run(tmp_path / name, keys)
    book[-1]["exit"] = 5
    (tmp_path / "sweep.json").write_text(json.dumps({"cells": book}))
    tables = build([tmp_path], tmp_path / "r.html").tables
    rows = {row[0].text: row[1].text for row in tables[0].rows}
    assert list(rows) == ["flexmatch", "flexmatch mapping=concave", "flexmatch mapping=linear"]
    assert "of" not in rows["flexmatch"]
    assert rows["flexmatch mapping=linear"].endswith("(2 of 3)")
    assert rows["flexmatch mapping=concave"] == "failed (exit 5)"


def test_a_result_of_unfinished_runs_is_marked_as_unfinished(tmp_path):
    keys = {"labels": 40, "algorithm": "flexmatch"}
    write_run(tmp_path / "a", keys, config="cifar10", status="failed", until=0.5)
    entry = build([tmp_path], tmp_path / "r.html").tables[0].rows[0][1]
    assert entry.text.endswith(" unfinished")
    assert (entry.below, entry.mark) == ("paper 4.97 ± 0.06", "")


def test_numbers_are_aligned_right_though_some_were_not_reached():
    rows = [[Entry("a"), Entry("b"), Entry("not reached")] for _ in range(3)]
    table = Table("id", "title", "", ["", "", ""], [*rows, [Entry("a"), Entry("-"), Entry("1")]])
    assert text_columns(table) == [True, True, False]


def test_the_time_of_a_step_leaves_out_evaluations_and_the_first_steps(tmp_path):
    write_run(tmp_path / "a", evals=2)
    path = tmp_path / "a" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        late = 30.0 * (line["step"] > 500)  # an evaluation after step 500 took half a minute
        line["seconds"] = 60 + 0.02 * line["step"] + late
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_metrics.step_seconds(load.read_all([tmp_path]).runs[0]) == pytest.approx(0.02)


def test_curves_are_means_over_the_runs_that_got_so_far(tmp_path):
    write_run(tmp_path / "a", {"seed": 0}, evals=10)
    write_run(tmp_path / "b", {"seed": 1}, evals=10)
    cell = cells.group(load.read_all([tmp_path]).runs)[0]
    series = plots.curve(cell, "evals", "error")
    both = [[line.error for line in run.evals] for run in cell.runs]
    mean = [sum(pair) / 2 for pair in zip(*both, strict=True)]
    assert series["y"] == pytest.approx(mean, rel=1e-4)
    assert series["lo"] == pytest.approx([min(p) for p in zip(*both, strict=True)], rel=1e-4)
    assert plots.thin(list(range(1000)), 200)[0] == 0
    assert plots.thin(list(range(1000)), 200)[-1] == 999
    assert len(plots.thin(list(range(1000)), 200)) == 200


def test_a_page_of_a_hundred_runs_is_small_and_its_work_grows_with_their_number(tmp_path):
    for seed in range(34):
        for algorithm in ("fixmatch", "flexmatch", "uda"):
            keys = {"algorithm": algorithm, "seed": seed, "lr": 0.01 + 0.001 * (seed % 20)}
            write_run(tmp_path / algorithm / str(seed), keys, evals=200, logs=100)
    report.write([tmp_path], tmp_path / "r.html")
    assert os.path.getsize(tmp_path / "r.html") < 8_000_000

    def work(count):
        folders = [tmp_path / "uda" / str(seed) for seed in range(count)]
        with count_calls() as calls:
            report.write(folders, tmp_path / "part.html")
        return calls.number

    few, many = work(4), work(16)
    assert 2 * few < many < 8 * few  # 16 times the work if each run looked at all others
