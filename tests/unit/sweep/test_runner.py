import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import fastssl
from fastssl.errors import ConfigError
from fastssl.sweep import cell_state, child_process, estimate, grid, runner
from fastssl.tracking.run_dir import RunFolder
from pipelines import files
from pipelines.store.store import open_store
from tests.process_output import PATIENCE

# A stand-in for `fastssl train`: a folder with config.yaml and summary.json. It saves at SIGTERM,
# resumes where it was, and fails if its mode is "fail".
TRAINER = """
import fcntl, json, os, signal, sys, time
from pathlib import Path

folder, steps, mode = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
stops = []
signal.signal(signal.SIGTERM, lambda *a: stops.append(15))
folder.mkdir(parents=True, exist_ok=True)
lock = open(folder / ".lock", "a")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
(folder / "config.yaml").write_text(sys.argv[4])
old = folder / "summary.json"
step = json.loads(old.read_text())["steps"] if old.exists() else 0
with open(folder / "starts", "a") as file:
    file.write(f"{step}\\n")
if mode == "fail":
    print("error: no data\\n  fix: convert it\\x1b[2J", file=sys.stderr)
    sys.exit(3)
while step < steps and not stops:
    step += 1
    (folder / "alive").touch()
    if mode == "wait":
        end = time.monotonic() + 900  # a failed test leaves nothing behind
        while not stops and time.monotonic() < end:
            time.sleep(0.01)
ended = "out of time" if mode == "late" else "finished"
old.write_text(json.dumps({"status": "interrupted" if stops else ended, "steps": step,
                           "best_error": 10.0, "seconds_per_step": 0.5}))
sys.exit(143 if stops else 0)
"""


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """Use the stand-in; the returned dict holds the mode of each cell."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    modes: dict[str, str] = {}
    chosen = {"precision": "fp32", "compile": "off"}  # what `auto` means on this machine

    def command(cell, jobs, out, path, resume):
        config = cell.resolved.config
        text = yaml.safe_dump(config.model_dump() | config.averages() | chosen)
        mode = modes.get(cell.name, "go")
        return [sys.executable, str(script), str(path), "10", mode, text]

    monkeypatch.setattr(runner, "train_command", command)
    return modes


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(
        "config: digits\nset: {steps: 10}\n"
        "grid: {algorithm: [fixmatch, flexmatch], labels: [40, 100], seed: [0, 1]}\n"
    )
    return str(path)


def test_a_grid_is_the_product_of_its_lists_and_names_its_cells_by_them(file):
    name, cells = grid.read(Path(file))
    assert name == "tiny"
    assert [cell.name for cell in cells][:3] == [
        "40-fixmatch-s0",
        "40-fixmatch-s1",
        "100-fixmatch-s0",
    ]
    assert len(cells) == 8
    assert cells[0].overrides() == ["steps=10", "algorithm=fixmatch", "labels=40", "seed=0"]
    assert cells[0].resolved.config.steps == 10


def test_all_cells_are_trained_and_done_ones_skipped(file, trainer, tmp_path):
    out = tmp_path / "out"
    assert runner.run(file, jobs=2, out=out) == 0
    assert runner.run(file, out=out) == 0
    starts = [(out / cell.name / "starts").read_text() for cell in grid.read(Path(file))[1]]
    assert starts == ["0\n"] * 8
    book = json.loads((out / "sweep.json").read_text())
    assert book["cells"][0]["name"] == "40-fixmatch-s0"


def test_a_failing_cell_stops_no_other_and_gives_its_exit_code(file, trainer, tmp_path, capsys):
    trainer["40-fixmatch-s1"] = "fail"
    out = tmp_path / "out"
    assert runner.run(file, out=out) == 3
    assert len(list(out.glob("*/summary.json"))) == 7
    printed = capsys.readouterr().err
    assert "failed: 40-fixmatch-s1 (exit 3)" in printed
    assert "fix: convert it\\x1b[2J" in printed, "what a cell printed is shown, not executed"
    book = json.loads((out / "sweep.json").read_text())
    exits = {row["name"]: row["exit"] for row in book["cells"]}
    assert exits.pop("40-fixmatch-s1") == 3
    assert set(exits.values()) == {0}
    assert runner.run(file, out=out, only="100-*") == 0  # of other cells
    book = json.loads((out / "sweep.json").read_text())
    assert {row["name"]: row["exit"] for row in book["cells"]} == {**exits, "40-fixmatch-s1": 3}
    trainer.clear()
    assert runner.run(file, out=out) == 0
    book = json.loads((out / "sweep.json").read_text())
    assert {row["exit"] for row in book["cells"]} == {0}


def test_only_takes_a_part_of_the_cells(file, trainer, tmp_path):
    out = tmp_path / "out"
    assert runner.run(file, out=out, only="100-flexmatch-*") == 0
    assert sorted(path.parent.name for path in out.glob("*/summary.json")) == [
        "100-flexmatch-s0",
        "100-flexmatch-s1",
    ]
    with pytest.raises(ConfigError, match="no cell of tiny matches"):
        runner.run(file, out=out, only="nothing")


def starts(out):
    """Return how often each folder of a sweep was trained in."""
    return {path.parent.name: len(path.read_text().split()) for path in out.glob("*/starts")}


def test_a_cell_with_precision_or_compile_auto_is_done(trainer, tmp_path):
    path = tmp_path / "auto.yaml"
    path.write_text("config: digits\ngrid: {precision: auto, compile: auto, seed: [0, 1]}\n")
    for _ in range(2):
        assert runner.run(str(path), out=tmp_path / "out") == 0
    assert set(starts(tmp_path / "out").values()) == {1}


@pytest.mark.parametrize("place", ["sweep", "config", "algo"])
def test_a_cell_that_was_trained_with_other_settings_is_refused_by_name(trainer, tmp_path, place):
    base, path, out = tmp_path / "base.yaml", tmp_path / "tiny.yaml", tmp_path / "out"

    def write(value):
        values = {"sweep": 0.03, "config": 0.03, "algo": 0.95, place: value}
        base.write_text(f"data: digits\nlr: {values['config']}\nalgo.threshold: {values['algo']}\n")
        base.write_text(base.read_text().replace("algo.threshold:", "algo:\n  threshold:"))
        path.write_text(
            f"config: base.yaml\nset: {{weight_decay: {values['sweep']}}}\ngrid: {{seed: [0, 1]}}\n"
        )

    key = {"sweep": "weight_decay", "config": "lr", "algo": "algo.threshold"}[place]
    write(0.9)
    assert runner.run(str(path), out=out) == 0
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    write(0.8)
    for dry_run in (False, True):
        with pytest.raises(ConfigError, match="trained with other settings") as caught:
            runner.run(str(path), out=out, dry_run=dry_run)
        assert f"s0: {key}=0.8 instead of 0.9" in caught.value.what
        assert "--rerun-changed" in caught.value.fix
    assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert runner.run(str(path), out=out, rerun_changed=True) == 0
    assert starts(out) == {"s0": 1, "s1": 1, "s0~2": 1, "s1~2": 1}
    assert runner.run(str(path), out=out) == 0, "the new folders are its cells now"
    write(0.9)
    assert runner.run(str(path), out=out) == 0, "and the old ones those of the old settings"
    assert starts(out) == {"s0": 1, "s1": 1, "s0~2": 1, "s1~2": 1}
    write(0.7)
    assert runner.run(str(path), out=out, only="s0", rerun_changed=True) == 0
    assert starts(out) == {"s0": 1, "s1": 1, "s0~2": 1, "s1~2": 1, "s0~3": 1}


def test_a_begun_cell_with_other_settings_is_refused_too(file, trainer, tmp_path):
    out = tmp_path / "out"
    trainer |= {cell.name: "fail" for cell in grid.read(Path(file))[1]}
    assert runner.run(file, out=out) == 3
    Path(file).write_text(Path(file).read_text().replace("steps: 10", "steps: 20"))
    with pytest.raises(ConfigError, match="steps=20 instead of 10"):
        runner.run(file, out=out)


def test_a_setting_that_is_taken_out_of_the_sweep_is_a_change(trainer, tmp_path):
    path, out = tmp_path / "tiny.yaml", tmp_path / "out"
    path.write_text("config: digits\nset: {ema: 0.9, steps: 100}\ngrid: {seed: 0}\n")
    assert runner.run(str(path), out=out) == 0
    path.write_text(path.read_text().replace("ema: 0.9, ", ""))
    with pytest.raises(ConfigError, match=r"s0: ema=0\.9\d+ instead of 0\.9"):
        runner.run(str(path), out=out)


def test_a_label_file_with_another_content_is_a_change(trainer, tmp_path):
    labels, path, out = tmp_path / "labels.txt", tmp_path / "tiny.yaml", tmp_path / "out"
    labels.write_text("1\n")
    path.write_text(f"config: digits\nset: {{label_file: {labels}}}\ngrid: {{seed: 0}}\n")
    assert runner.run(str(path), out=out) == 0
    inputs = {"label_file": hashlib.sha256(b"1\n").hexdigest()}
    (out / "s0" / "environment.json").write_text(json.dumps({"inputs": inputs}))
    assert runner.run(str(path), out=out) == 0
    labels.write_text("2\n")
    with pytest.raises(ConfigError, match=f"s0: another content of {labels}"):
        runner.run(str(path), out=out)


def test_a_store_with_other_images_is_a_change(trainer, tmp_path, data):
    path, out, other = tmp_path / "tiny.yaml", tmp_path / "out", tmp_path / "other"
    arrays = {"images": np.zeros((60, 8, 8, 3), np.uint8), "labels": np.arange(60) % 2}
    np.savez(tmp_path / "other.npz", **arrays)
    fastssl.convert(tmp_path / "other.npz", other, progress=False)
    text = "config: own\nset: {{store: {}, labels: 4}}\ngrid: {{seed: 0}}\n"
    path.write_text(text.format(data / "digits"))
    assert runner.run(str(path), out=out) == 0
    inputs = {"store": open_store(data / "digits").fingerprint}
    (out / "s0" / "environment.json").write_text(json.dumps({"inputs": inputs}))
    assert runner.run(str(path), out=out) == 0
    path.write_text(text.format(tmp_path / "gone"))
    assert runner.run(str(path), out=out) == 0, "a cell that is done needs no store"
    path.write_text(text.format(other))
    with pytest.raises(ConfigError, match=f"s0: other images or labels in {other}"):
        runner.run(str(path), out=out)


def test_keys_that_do_not_change_numbers_may_change(file, trainer, tmp_path):
    out = tmp_path / "out"
    assert runner.run(file, out=out, only="40-fixmatch-s0") == 0
    Path(file).write_text(Path(file).read_text().replace("{steps: 10}", "{steps: 10, threads: 1}"))
    assert runner.run(file, out=out, only="40-fixmatch-s0") == 0
    assert starts(out) == {"40-fixmatch-s0": 1}


def test_a_signal_is_passed_to_the_cells_and_the_same_command_resumes(
    file, trainer, tmp_path, request
):
    trainer |= {cell.name: "wait" for cell in grid.read(Path(file))[1]}
    out = tmp_path / "out"
    # in a process of its own, as the signal would else meet pytest
    code = "; ".join(
        [
            "import sys, json, yaml",
            "from fastssl.sweep import runner",
            f"modes = json.loads({json.dumps(trainer)!r})",
            "runner.train_command = lambda c, j, o, p, r: [sys.executable, "
            f"{str(tmp_path / 'trainer.py')!r}, str(p), '10', modes[c.name], "
            "yaml.safe_dump(c.resolved.as_dict() | c.resolved.config.averages())]",
            f"sys.exit(runner.run({file!r}, jobs=2, out={str(out)!r}))",
        ]
    )
    for kill in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
        request.addfinalizer(process.kill)
        first = out / "40-fixmatch-s0"
        wait_for(lambda first=first: (first / "alive").exists() and cell_state.is_locked(first))
        if kill == signal.SIGTERM:
            with pytest.raises(ConfigError, match="another sweep is using"):
                runner.run(file, out=out)
        process.send_signal(kill)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == (143 if kill == signal.SIGTERM else -9)
        (first / "alive").unlink()
    trainer.clear()
    assert runner.run(file, jobs=2, out=out) == 0, "the orphans are waited for"
    assert (first / "starts").read_text().split() == ["0", "1", "2"], "it did not resume"
    assert len(list(out.glob("*/summary.json"))) == 8


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def test_a_folder_that_is_no_sweep_is_refused(file, trainer, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds files, but no sweep"):
        runner.run(file, out=out)
    assert sorted(entry.name for entry in out.iterdir()) == ["thesis.txt"]
    with pytest.raises(ConfigError, match="--jobs is 0"):
        runner.run(file, jobs=0)


def test_a_cell_that_max_time_ended_is_shown_as_such(file, trainer, tmp_path, capsys):
    out = tmp_path / "out"
    assert runner.run(file, out=out, only="40-fixmatch-s0") == 0
    assert ": done in " in capsys.readouterr().err
    summary = out / "40-fixmatch-s0" / "summary.json"
    summary.write_text(summary.read_text().replace("finished", "out of time"))
    assert runner.run(file, out=out, only="40-fixmatch-s0", dry_run=True) == 0
    printed = capsys.readouterr().out
    assert "out of time" in printed and "1 cells, 0 to train" in printed
    trainer["40-fixmatch-s1"] = "late"
    assert runner.run(file, out=out, only="40-fixmatch-s1") == 0
    assert "40-fixmatch-s1: out of time after " in capsys.readouterr().err


def test_a_dry_run_prints_the_cells_and_an_estimate(file, trainer, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    runner.run(file, out=out, only="40-fixmatch-s0")
    capsys.readouterr()
    tried = []
    monkeypatch.setattr(
        estimate,
        "measure_step",
        lambda cell, jobs: tried.append(cell.name) or estimate.NO_DATA,
    )
    assert runner.run(file, out=out, dry_run=True) == 0
    printed = capsys.readouterr().out
    assert "40-fixmatch-s0" in printed and "done" in printed
    # three fixmatch cells of ten steps at the half second of the one that ran
    assert "8 cells, 7 to train, about 0:15" in printed
    assert tried == ["40-flexmatch-s0"], "one attempt for a configuration without data"
    assert "the time of 4 cells is not known" in printed
    assert not (out / "40-flexmatch-s0").exists()


def test_a_measurement_has_the_threads_of_a_run_and_reports_why_it_failed(
    file, monkeypatch, tmp_path, capsys
):
    ends = {
        "fixmatch": (1, "Traceback\nMemoryError: too much\n"),
        "flexmatch": (3, "error: no data"),
    }
    lines = []

    def run(line, **options):
        lines.append(line)
        code, printed = next(end for name, end in ends.items() if f"algorithm={name}" in line)
        return subprocess.CompletedProcess(line, code, "", printed)

    monkeypatch.setattr(estimate.subprocess, "run", run)
    monkeypatch.setattr(child_process, "available_cpus", lambda: 8)
    assert runner.run(file, out=tmp_path / "out", dry_run=True, jobs=4) == 0
    assert len(lines) == 2 and all("threads=2" in line for line in lines)
    printed = capsys.readouterr().out
    assert "the time of 4 cells is not known: MemoryError: too much" in printed
    assert "the time of 4 cells is not known: their dataset is not converted" in printed


def test_the_time_of_a_step_is_read_from_json_at_full_precision(file, monkeypatch):
    def run(line, **options):
        assert line[-2:] == ["--dry-run", "--json"]
        printed = '{"seconds_per_step": 0.00123456, "steps": 10}\n'
        return subprocess.CompletedProcess(line, 0, printed, "dry run: 99 ms a step\n")

    monkeypatch.setattr(estimate.subprocess, "run", run)
    assert estimate.measure_step(grid.read(Path(file))[1][0], 1) == 0.00123456


def test_ratio_and_the_settings_of_the_algorithm_decide_the_time_of_a_step(tmp_path):
    path = tmp_path / "kinds.yaml"
    path.write_text(
        "config: digits\ngrid: {algorithm: fixmatch, ratio: [1, 7], "
        "algo.forward: [together, split], seed: [0, 1]}\n"
    )
    cells = grid.read(path)[1]
    assert (len(cells), len({estimate.kind_of(cell) for cell in cells})) == (8, 4)


def test_a_lock_is_checked_without_permission_to_write(tmp_path, monkeypatch):
    assert not cell_state.is_locked(tmp_path)
    (tmp_path / ".lock").touch()
    modes = []

    def open_(path, mode="r", **options):
        modes.append(mode)
        if set(mode) & set("wa+x"):
            raise PermissionError(mode)
        return open(path, mode, **options)

    monkeypatch.setattr(files, "open", open_, raising=False)
    assert not cell_state.is_locked(tmp_path)
    with open(tmp_path / ".lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cell_state.is_locked(tmp_path)
    assert modes

    def refuse(path, mode="r", **options):
        raise PermissionError(mode)

    monkeypatch.setattr(files, "open", refuse)
    assert not cell_state.is_locked(tmp_path)


def test_several_jobs_share_cores_and_gpus(file, monkeypatch):
    cell = grid.read(Path(file))[1][0]
    one, two = (child_process.train_command(cell, jobs, "--resume") for jobs in (1, 1000))
    assert not any(text.startswith("threads=") for text in one)
    assert "threads=1" in two and two[-1] == "--resume"
    keys = {"threads": "auto"}
    one, two = (child_process.train_command(replace(cell, keys=keys), jobs) for jobs in (1, 1000))
    assert one[-1] == "threads=auto" and two[-1] == "threads=1", "the later one counts"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    seen = [child_process.environment(slot, 3)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert seen == ["4", "6", "4"]
    assert child_process.environment(0, 1)["CUDA_VISIBLE_DEVICES"] == "4,6"


def test_a_cell_imports_nothing_from_a_folder_that_the_sweep_does_not(file, tmp_path, monkeypatch):
    cell = grid.read(Path(file))[1][0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    assert child_process.train_command(cell, 1)[1:4] == ["-P", "-m", "fastssl"]
    monkeypatch.syspath_prepend(str(tmp_path))
    assert child_process.train_command(cell, 1)[1:3] == ["-m", "fastssl"]


def test_neither_sweep_nor_report_needs_torch():
    code = "import sys, fastssl.sweep.runner, fastssl.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == 0


def test_a_run_that_died_before_it_began_can_start_again(tmp_path):
    folder = RunFolder(tmp_path / "cell")
    folder.claim(resume=True)
    folder.release()
    folder.path.mkdir()
    folder.environment.write_text("{}")  # written just before config.yaml
    folder.claim(resume=True)
    folder.release()
    (tmp_path / "cell" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds files, but no run"):
        folder.claim(resume=True)
    folder.release()
