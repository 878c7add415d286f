"""What gets a run under way: folder, resume, device, ranks; and what brings it to its end."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from fastssl import plugins
from fastssl.config.resolve import ResolvedConfig, flatten, saved_values
from fastssl.config.schema import keys_that_may_differ
from fastssl.distributed import process_group
from fastssl.engine import checkpoint, compilation, devices, step_memory
from fastssl.engine.build import Run, assemble
from fastssl.engine.build_data import find_store
from fastssl.engine.loop import TIME_UP, Training, restore
from fastssl.engine.progress import TrainingProgress
from fastssl.engine.signals import Stop
from fastssl.engine.summary import end_lines, start_lines, summarize
from fastssl.engine.view_sheet import make_sheet
from fastssl.errors import ConfigError, DataError, ResourceError, UserError, cannot_write
from fastssl.tracking import environment, tensorboard
from fastssl.tracking.console import messages, open_log
from fastssl.tracking.metrics import Record, read_metrics
from fastssl.tracking.progress_bar import Display
from fastssl.tracking.run_dir import RunFolder
from pipelines.files import write_atomic, write_json

# How torch and the libraries below it say that an allocation failed.
SHORT = {"out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc"}
SHORT |= {"alloc_failed"}  # cuBLAS and cuDNN
REHEARSED, PATIENCE = 10, 20.0  # steps, and seconds, of a dry run


def train(
    resolved: ResolvedConfig,
    out: Path | None,
    resume: bool,
    dry_run: bool,
    *,
    as_json: bool = False,
) -> int:
    """Train a run to its end; return the exit code."""
    with process_group.joined() as group, messages(quiet=group.ranks.rank != 0):
        ranks = group.ranks
        device = devices.choose(resolved.config, group.local_rank, group.local_world)
        resolved = fixed(resolved, device)
        if dry_run:
            return rehearse(resolved, device, ranks, as_json=as_json)
        folder = RunFolder(out or default_folder(resolved))
        try:
            with group.together():
                if ranks.rank == 0:
                    folder.claim(resume)
            world = ranks.world
            with group.contact(lambda rank, error: write_failure(folder, rank, error, world)):
                return start(resolved, folder, device, group)
        finally:
            folder.release()


def default_folder(resolved: ResolvedConfig) -> Path:
    """Return runs/DATA-ALGORITHM-LABELS-sSEED."""
    config = resolved.config
    data, algorithm = plugins.short_name(config.data), resolved.algorithm.name
    return Path("runs") / f"{data}-{algorithm}-{config.labels}-s{config.seed}"


def fixed(resolved: ResolvedConfig, device: devices.Device) -> ResolvedConfig:
    """Write what `auto` chose into the configuration, so that a resumed run keeps it."""
    config = resolved.config.model_copy(update={"precision": device.precision})
    return replace(resolved, config=config)


def start(
    resolved: ResolvedConfig, folder: RunFolder, device: devices.Device, group: process_group.Group
) -> int:
    """Begin or go on in a folder that is ours."""
    ranks = group.ranks
    display = Display(resolved.config.steps)
    content = None
    if folder.started():
        resolved = same_run(resolved, folder)
        if folder.finished():  # whatever became of its checkpoints
            display.say(f"{folder.path} is finished: {resolved.config.steps:,} steps")
            return 0
        content = checkpoint.newest(folder, display.say)
    own = keys_that_may_differ("ranks")
    group.agree(
        {
            "configuration": repr({k: v for k, v in resolved.as_dict().items() if k not in own}),
            "store": find_store(resolved).fingerprint,
            "checkpoint": f"step {content['trip']['step'] if content else 0}",
        }
    )
    with out_of_memory(resolved):
        run = assemble(resolved, device, ranks)
        trip = resume_from(run, content, folder)
        prepare(run, trip.step, str(folder.path), display)
    with out_of_memory(resolved):
        return travel(run, trip, folder, display)


def same_run(resolved: ResolvedConfig, folder: RunFolder) -> ResolvedConfig:
    """Refuse to go on with other settings than the run has; keep what `auto` chose then."""
    saved = saved_values(folder.read_config())
    wanted = flatten(resolved.as_dict())
    kept = {}
    for key in sorted(saved.keys() | wanted.keys(), key=lambda key: (key != "algorithm", key)):
        old, new = saved.get(key), wanted.get(key)
        chosen = key == "precision" and resolved.origins.get(key) is None
        if chosen or (key == "compile" and new == "auto"):
            kept[key] = old
            continue
        if old == new or key in keys_that_may_differ("resume"):
            continue
        raise ConfigError(
            f"{folder.path} was begun with {as_typed(key, old)}, not {as_typed(key, new)}",
            f"type {as_typed(key, old)} to go on with it, or take another --out",
        )
    return replace(resolved, config=resolved.config.model_copy(update=kept))


def as_typed(key: str, value: Any) -> str:
    """Return a setting as the command line takes it."""
    return shlex.quote(f"{key}={value if isinstance(value, str) else json.dumps(value)}")


def resume_from(run: Run, content: dict[str, Any] | None, folder: RunFolder) -> TrainingProgress:
    """Put the checkpoint into the run, or begin at step 0."""
    if content is None:
        return TrainingProgress()
    if content["store"] != run.store.fingerprint:
        raise DataError(
            f"the store {run.store.path} is not the one {folder.path} was begun with",
            "give the store of the run by store=FOLDER, or take another --out",
        )
    return restore(run, content)


def prepare(run: Run, step: int, out: str, display: Display) -> None:
    """Refuse what can't fit, say what will run, and choose how a step is compiled."""
    step_memory.check(run)
    for line in start_lines(run, out, step):
        display.say(line)
    compilation.choose(run, step, display.say)


def travel(run: Run, trip: TrainingProgress, folder: RunFolder, display: Display) -> int:
    """Train from where the trip is to the end or to a signal, and write the summary."""
    config = run.resolved.config
    record, writer = None, None
    if run.ranks.rank == 0:
        write_start(run, folder)
        record = Record(folder, config.tensorboard, trip.step)
        writer = checkpoint.Writer(folder, trip.step)
        open_log(folder.log)
    try:
        training = Training(run, trip, display, record, writer)
        if record and config.tensorboard and not trip.step:
            record.guarded(
                "TensorBoard", lambda: tensorboard.log_views(record, make_sheet(run.resolved))
            )
        display.begin(trip.step)
        with Stop(tells=run.ranks.rank == 0) as stop:
            told = training.travel(stop)
            display.end()
            if writer:
                writer.wait()
            return finish(training, folder, display, told)
    finally:
        display.end()
        run.loader.close()
        if writer:
            writer.close()
        if record:
            record.close()


def write_start(run: Run, folder: RunFolder) -> None:
    """Write config.yaml and environment.json."""
    try:
        if not folder.started():
            text = yaml.safe_dump(run.resolved.as_dict(), sort_keys=False)
            facts = {**environment.facts(), "class_names": run.store.class_names}
            write_json(folder.environment, facts)
            write_atomic(folder.config, text.encode())
    except OSError as error:
        raise cannot_write(folder.path, error) from error


def finish(training: Training, folder: RunFolder, display: Display, told: int) -> int:
    """Write the summary, show it, and return the exit code."""
    status = {0: "finished", TIME_UP: "out of time"}.get(told, "interrupted")
    # A run killed between its last checkpoint and its summary has evaluated in an earlier life.
    figures = training.figures or (read_metrics(folder.metrics, "eval") or [{}])[-1]
    summary = summarize(training.run, training.trip, figures, status)
    if training.writer:
        summary["checkpoint_seconds"] = round(training.writer.seconds, 3)
        summary["first_step_seconds"] = training.first_step and round(training.first_step, 3)
        try:
            write_json(folder.summary, summary)
        except OSError as error:
            raise cannot_write(folder.summary, error) from error
        if training.record and training.config.tensorboard:
            tensorboard.end(training.record, training.run.resolved, summary)
        display.say("")
        for line in end_lines(summary, folder.path):
            display.say(line)
    return 0 if told in (0, TIME_UP) else 128 + told


def rehearse(
    resolved: ResolvedConfig, device: devices.Device, ranks: Any, *, as_json: bool = False
) -> int:
    """Take a few steps, write nothing, and print how long the run would take."""
    import statistics
    import time

    from fastssl.engine.loop import train_step

    display = Display(resolved.config.steps)
    with out_of_memory(resolved):
        run = assemble(resolved, device, ranks)
        prepare(run, 0, "nothing is written", display)
        progress = torch.zeros((), device=device.device)
        times: list[float] = []
        for step, batch in enumerate(run.loader.iterate(0, min(REHEARSED, resolved.config.steps))):
            began = time.monotonic()
            float(train_step(run, batch, step, progress).loss.detach())
            times.append(time.monotonic() - began)
            if step >= 2 and sum(times) > PATIENCE:
                break
        run.loader.close()
    spent = statistics.median(times[2:] or times)  # the first two warm up
    hours = spent * resolved.config.steps / 3600
    display.say(f"dry run: {spent * 1000:.0f} ms a step, about {hours:.2f} h for the whole run")
    if as_json and ranks.rank == 0:
        print(json.dumps({"seconds_per_step": spent, "steps": resolved.config.steps}))
    return 0


class out_of_memory:
    """Turn a failed allocation into two lines that name the batch and the keys to lower.

    So, too, with a thread that can't be started and a device that fails.
    """

    def __init__(self, resolved: ResolvedConfig) -> None:
        self.resolved = resolved

    def __enter__(self) -> None:
        """Watch."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Translate."""
        text = str(error).lower()
        if not isinstance(error, MemoryError | RuntimeError):
            return
        if isinstance(error, MemoryError) or any(word in text for word in SHORT):
            config = self.resolved.config
            ratio = config.ratio or self.resolved.algorithm.ratio
            raise ResourceError(
                f"out of memory with batch={config.batch} and ratio={ratio}",
                "lower batch or ratio, or type micro_batch=2 (BatchNorm then sees the parts)",
            ) from error
        if "can't start new thread" in text:
            raise ResourceError(
                "the system allows no more threads",
                "raise the limit of processes (ulimit -u), or end what else runs",
            ) from error
        if isinstance(error, torch.AcceleratorError) and "assert" not in text:  # that is a bug
            raise ResourceError(
                f"the device failed: {str(error).splitlines()[0]}",
                "look at the device, then type the same line with --resume",
            ) from error


def write_failure(folder: RunFolder, rank: int, error: UserError, world: int) -> None:
    """Leave code and message in summary.json, if the folder is a run that is not finished."""
    if world > 1:
        print(f"rank {rank}: exit {error.exit_code}", file=sys.stderr)
    if not folder.started() or folder.finished():
        return
    content = {"status": "failed", "exit": error.exit_code, "rank": rank, "what": error.what}
    try:
        folder.check_ours()
        write_json(folder.summary, {**content, "fix": error.fix})
    except (OSError, ResourceError):
        print(f"warning: {folder.summary} can't be written", file=sys.stderr)
