import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastssl.errors import ConfigError
from fastssl.sweep import child_process, estimate, grid, runner
from fastssl.tracking.run_dir import RunFolder

# A stand-in for `fastssl train`: a folder with config.yaml and summary.json. It saves at SIGTERM,
# goes on where it was, and fails where it is told to.
TRAINER = """
import fcntl, json, os, signal, sys, time
from pathlib import Path

folder, steps, mode = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
told = []
signal.signal(signal.SIGTERM, lambda *a: told.append(15))
folder.mkdir(parents=True, exist_ok=True)
lock = open(folder / ".lock", "a")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
(folder / "config.yaml").write_text(sys.argv[4])
old = folder / "summary.json"
step = json.loads(old.read_text())["steps"] if old.exists() else 0
with open(folder / "starts", "a") as file:
    file.write(f"{step}\\n")
if mode == "fail":
    print("error: no data\\n  fix: convert it", file=sys.stderr)
    sys.exit(3)
while step < steps and not told:
    step += 1
    (folder / "alive").touch()
    if mode == "wait":
        end = time.monotonic() + 90  # a failed test leaves nothing behind
        while not told and time.monotonic() < end:
            time.sleep(0.01)
old.write_text(json.dumps({"status": "interrupted" if told else "finished", "steps": step,
                           "best_error": 10.0, "seconds_per_step": 0.5}))
sys.exit(143 if told else 0)
"""


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """Put the stand-in in place; the returned dict says how a cell behaves."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    modes: dict[str, str] = {}

    def command(cell, path, jobs):
        text = "\n".join(f"{key}: {grid.spell(value)}" for key, value in cell.keys.items())
        mode = modes.get(cell.name, "go")
        return [sys.executable, str(script), str(path), "10", mode, text + "\n"]

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


def test_a_grid_is_the_product_of_its_lists_with_names_that_say_so(file):
    name, cells = grid.read(Path(file))
    assert name == "tiny"
    assert [cell.name for cell in cells][:3] == [
        "40-fixmatch-s0",
        "40-fixmatch-s1",
        "100-fixmatch-s0",
    ]
    assert len(cells) == 8
    assert cells[0].words() == ["steps=10", "algorithm=fixmatch", "labels=40", "seed=0"]
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
    told = capsys.readouterr().err
    assert "failed: 40-fixmatch-s1 (exit 3)" in told
    assert "fix: convert it" in told
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


def test_a_cell_whose_keys_have_changed_is_not_done(file, trainer, tmp_path):
    out = tmp_path / "out"
    cell = grid.read(Path(file))[1][0]
    runner.run(file, out=out, only=cell.name)
    assert runner.done(out / cell.name, cell)
    text = Path(file).read_text().replace("steps: 10", "steps: 20")
    Path(file).write_text(text)
    assert not runner.done(out / cell.name, grid.read(Path(file))[1][0])


def test_a_signal_goes_on_to_the_cells_and_the_same_line_goes_on(file, trainer, tmp_path):
    trainer |= {cell.name: "wait" for cell in grid.read(Path(file))[1]}
    out = tmp_path / "out"
    # in a process of its own, as the signal would else meet pytest
    code = "; ".join(
        [
            "import sys, json",
            "from fastssl import sweep, grid",
            f"modes = json.loads({json.dumps(trainer)!r})",
            "sweep.train_command = lambda c, p, j: [sys.executable, "
            f"{str(tmp_path / 'trainer.py')!r}, str(p), '10', modes[c.name], 'steps: 10']",
            f"sys.exit(sweep.run({file!r}, jobs=2, out={str(out)!r}))",
        ]
    )
    for kill in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
        first = out / "40-fixmatch-s0"
        wait_for(lambda first=first: (first / "alive").exists() and child_process.locked(first))
        if kill == signal.SIGTERM:
            with pytest.raises(ConfigError, match="another sweep is at work"):
                runner.run(file, out=out)
        process.send_signal(kill)
        process.communicate(timeout=60)
        assert process.returncode == (143 if kill == signal.SIGTERM else -9)
        (first / "alive").unlink()
    trainer.clear()
    assert runner.run(file, jobs=2, out=out) == 0, "the orphans are waited for"
    assert (first / "starts").read_text().split() == ["0", "1", "2"], "it did not go on"
    assert len(list(out.glob("*/summary.json"))) == 8


def wait_for(condition, seconds=60.0):
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def test_a_folder_that_is_no_sweep_is_refused(file, trainer, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds files, but no sweep"):
        runner.run(file, out=out)
    assert sorted(entry.name for entry in out.iterdir()) == [".lock", "thesis.txt"]
    with pytest.raises(ConfigError, match="--jobs is 0"):
        runner.run(file, jobs=0)


def test_a_dry_run_prints_the_cells_and_an_estimate(file, trainer, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    runner.run(file, out=out, only="40-fixmatch-s0")
    capsys.readouterr()
    tried = []
    monkeypatch.setattr(
        estimate,
        "rehearse",
        lambda cell, jobs: tried.append(cell.name) or estimate.NO_DATA,
    )
    assert runner.run(file, out=out, dry_run=True) == 0
    told = capsys.readouterr().out
    assert "40-fixmatch-s0" in told and "done" in told
    # three fixmatch cells of ten steps at the half second of the one that ran
    assert "8 cells, 7 to train, about 0:15" in told
    assert tried == ["40-flexmatch-s0"], "one try a configuration whose data are not here"
    assert "the time of 4 cells is not known" in told
    assert not (out / "40-flexmatch-s0").exists()


def test_a_try_has_the_threads_of_a_run_and_tells_why_it_failed(
    file, monkeypatch, tmp_path, capsys
):
    ends = {
        "fixmatch": (1, "Traceback\nMemoryError: too much\n"),
        "flexmatch": (3, "error: no data"),
    }
    lines = []

    def run(line, **options):
        lines.append(line)
        code, told = next(end for name, end in ends.items() if f"algorithm={name}" in line)
        return subprocess.CompletedProcess(line, code, "", told)

    monkeypatch.setattr(estimate.subprocess, "run", run)
    monkeypatch.setattr(runner.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert runner.run(file, out=tmp_path / "out", dry_run=True, jobs=4) == 0
    assert len(lines) == 2 and all("threads=2" in line for line in lines)
    told = capsys.readouterr().out
    assert "the time of 4 cells is not known: MemoryError: too much" in told
    assert "the time of 4 cells is not known: their data are not here" in told


def test_ratio_and_the_settings_of_the_algorithm_decide_the_time_of_a_step(tmp_path):
    path = tmp_path / "kinds.yaml"
    path.write_text(
        "config: digits\ngrid: {algorithm: fixmatch, ratio: [1, 7], "
        "algo.forward: [together, split], seed: [0, 1]}\n"
    )
    cells = grid.read(path)[1]
    assert (len(cells), len({estimate.kind(cell) for cell in cells})) == (8, 4)


def test_a_lock_is_looked_at_without_the_right_to_write(tmp_path, monkeypatch):
    assert not child_process.locked(tmp_path)
    (tmp_path / ".lock").touch()
    modes = []

    def open_(path, mode="r", **options):
        modes.append(mode)
        if set(mode) & set("wa+x"):
            raise PermissionError(mode)
        return open(path, mode, **options)

    monkeypatch.setattr(child_process, "open", open_, raising=False)
    assert not child_process.locked(tmp_path)
    with open(tmp_path / ".lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert child_process.locked(tmp_path)
    assert modes

    def refuse(path, mode="r", **options):
        raise PermissionError(mode)

    monkeypatch.setattr(child_process, "open", refuse)
    assert not child_process.locked(tmp_path)


def test_several_jobs_share_cores_and_gpus(file, monkeypatch):
    cell = grid.read(Path(file))[1][0]
    one, two = runner.train_command(cell, Path("a"), 1), runner.train_command(cell, Path("a"), 1000)
    assert not any(word.startswith("threads=") for word in one)
    assert "threads=1" in two and two[-3:] == ["--out", "a", "--resume"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    seen = [child_process.environment(slot, 3)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert seen == ["4", "6", "4"]
    assert child_process.environment(0, 1)["CUDA_VISIBLE_DEVICES"] == "4,6"


def test_neither_sweep_nor_report_needs_torch():
    code = "import sys, fastssl.sweep.runner, fastssl.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == 0


def test_a_run_that_died_before_it_began_can_be_begun_again(tmp_path):
    folder = RunFolder(tmp_path / "cell")
    folder.claim(resume=True)
    folder.release()
    folder.environment.write_text("{}")  # written just before config.yaml
    folder.claim(resume=True)
    folder.release()
    (tmp_path / "cell" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds files, but no run"):
        folder.claim(resume=True)
    folder.release()
