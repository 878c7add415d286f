"""Starting, resuming and ending a run: its folder, device, ranks and summary."""

from __future__ import annotations

import json
import logging
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from fastssl import plugins
from fastssl.config.resolve import ResolvedConfig, flatten, saved_values
from fastssl.config.schema import CHOSEN_AT_START, RunConfig, keys_that_may_differ
from fastssl.distributed import process_group
from fastssl.engine import checkpoint, compilation, devices, threads
from fastssl.engine.build import Learner, Run, TrainingData, assemble
from fastssl.engine.build_data import changed_inputs, find_store
from fastssl.engine.checkpoint import CheckpointContent
from fastssl.engine.dry_run import rehearse
from fastssl.engine.failures import out_of_memory, write_failure
from fastssl.engine.loop import TIME_UP, Training
from fastssl.engine.progress import TrainingProgress
from fastssl.engine.signals import Stop
from fastssl.engine.snapshot import check_finished, resume_from
from fastssl.engine.summary import announce, end_lines, summarize
from fastssl.engine.view_sheet import make_sheet
from fastssl.errors import RESUME, ConfigError, DataError, writing
from fastssl.tracking import environment, tensorboard
from fastssl.tracking.console import messages, open_log
from fastssl.tracking.metrics import MetricsLog, read_metrics
from fastssl.tracking.progress_bar import Display
from fastssl.tracking.run_dir import RunFolder
from pipelines.files import read_json, write_atomic, write_json

logger = logging.getLogger(__name__)


def run_training(
    resolved: ResolvedConfig,
    out: Path | None,
    resume: bool,
    dry_run: bool,
    *,
    as_json: bool = False,
    accept_changes: bool = False,
) -> int:
    """Train a run to its end, or to a signal; return the exit code."""
    with process_group.joined() as group, messages(quiet=group.ranks.rank != 0):
        if dry_run:
            return rehearse(resolved, group, as_json=as_json)
        folder = RunFolder(out or default_folder(resolved))
        try:
            with group.together():
                if group.ranks.rank == 0:
                    folder.claim(resume)
            world = group.ranks.world
            with group.contact(lambda rank, error: write_failure(folder, rank, error, world)):
                return start(resolved, folder, group, accept_changes)
        finally:
            folder.release()


def default_folder(resolved: ResolvedConfig) -> Path:
    """Return runs/DATA-ALGORITHM-LABELS-sSEED."""
    config = resolved.config
    data, algorithm = plugins.short_name(config.data), resolved.algorithm.name
    labels = str(config.labels).replace("/", "-per-")
    return Path("runs") / f"{data}-{algorithm}-{labels}-s{config.seed}"


def start(
    resolved: ResolvedConfig, folder: RunFolder, group: process_group.Group, accept_changes: bool
) -> int:
    """Start or resume training in a folder that this process has locked."""
    ranks = group.ranks
    content = None
    if folder.started():
        done = folder.finished_steps()
        if done == resolved.config.steps:  # even if its checkpoints are damaged or gone
            same_run(resolved, folder)
            check_finished(resolved, folder, accept_changes)
            logger.info(f"{folder.path} is finished: {done:,} steps")
            return 0
        content = checkpoint.newest(folder, logger.info)
        resolved = same_run(resolved, folder, content)
    wanted = resolved.config.threads
    resolved, device = devices.choose_for_run(resolved, group)
    with out_of_memory(resolved):
        store = find_store(resolved)
        own = keys_that_may_differ("ranks")
        group.agree(
            {
                "configuration": repr(
                    {k: v for k, v in resolved.as_dict().items() if k not in own}
                ),
                "store": store.fingerprint,
                "checkpoint": f"step {content['trip']['step'] if content else 0}",
            }
        )
        learner, data = assemble(resolved, device, ranks, store, fresh=content is None)
        progress = TrainingProgress()
        if content:
            progress = resume_from(learner, data, content, folder, accept_changes)
        announce(learner, data, progress.step, str(folder.path))
        if content is None:
            # Before `compile`, whose code and whose times depend on the number of threads.
            learner, data = threads.choose(Run(learner, data), wanted)
        compilation.choose(learner, data.loader, progress.step)
        return train(learner, data, progress, folder)


def same_run(
    resolved: ResolvedConfig, folder: RunFolder, content: CheckpointContent | None = None
) -> ResolvedConfig:
    """Refuse to resume with settings other than the run's; keep what `auto` chose then.

    A finished run may get more steps. A file of the user's may have moved if `content`, the
    checkpoint to go on from, has its hash, which `resume_from` compares.
    """
    saved = saved_values(folder.read_config())
    wanted = flatten(resolved.as_dict())
    hashed = content.get("inputs", {}) if content else {}
    kept = {}
    for key in sorted(saved.keys() | wanted.keys(), key=lambda key: (key != "algorithm", key)):
        old, new = saved.get(key), wanted.get(key)
        if key in CHOSEN_AT_START and new == "auto":
            kept[key] = old
            continue
        if old == new or key in keys_that_may_differ("resume"):
            continue
        if key in hashed and plugins.same_name(key, old, new):
            continue
        if key == "steps" and content and extends(folder, old, new):
            continue
        raise ConfigError(
            f"{folder.path} was started with {as_typed(key, old)}, not {as_typed(key, new)}",
            f"type {as_typed(key, old)} to resume it, or use another --out",
        )
    config = RunConfig.model_validate({**resolved.as_dict(), **kept})
    return replace(resolved, config=config)


def extends(folder: RunFolder, old: Any, new: Any) -> bool:
    """Return True, and report it, if a finished run of `old` steps goes on to `new` steps."""
    if folder.finished_steps() != old or new < old:
        return False
    logger.info(
        f"{folder.path} goes on from {old:,} to {new:,} steps with the learning rate of a run of "
        f"{new:,}; its result will not be that of an uninterrupted one"
    )
    return True


def as_typed(key: str, value: Any) -> str:
    """Return a setting as the command line takes it."""
    return shlex.quote(f"{key}={value if isinstance(value, str) else json.dumps(value)}")


def train(
    learner: Learner,
    data: TrainingData,
    progress: TrainingProgress,
    folder: RunFolder,
) -> int:
    """Train to the end or to a signal, write the summary, and return the exit code."""
    config = learner.resolved.config
    record, writer, display = None, None, Display(config.steps)
    if learner.ranks.rank == 0:
        write_start(learner, data, folder)
        record = MetricsLog(folder, config.tensorboard, progress.step)
        writer = checkpoint.Writer(folder, progress.step)
        open_log(folder.log)
    folder.training = True
    try:
        training = Training(learner, data, progress, display, record, writer)
        if record and config.tensorboard and not progress.step:
            record.guarded(
                "TensorBoard", lambda: tensorboard.log_views(record, make_sheet(learner.resolved))
            )
        display.start(progress.step)
        with Stop(announce=learner.ranks.rank == 0) as stop:
            stopped_by = training.fit(stop)
            display.stop()
            if writer:
                writer.wait()
            code = finish(training, folder, stopped_by)
            folder.training = False
            return code
    finally:
        display.stop()
        data.close()
        if writer:
            writer.close()
        if record:
            record.close()


def write_start(learner: Learner, data: TrainingData, folder: RunFolder) -> None:
    """Write config.yaml, environment.json and copies of the user's code.

    A resumed run keeps its environment.json, but for inputs that have changed. Its config.yaml
    follows what was typed, such as the new place of the store.
    """
    values = learner.resolved.as_dict()
    about = {
        **environment.describe(),
        "class_names": data.store.class_names,
        "inputs": data.inputs,
    }
    with writing(folder.path, RESUME):
        for key, path in plugins.code_files(values).items():
            folder.keep_code(key, data.inputs[key], plugins.read_file(path))
        if not folder.started():
            write_json(folder.environment, about)
        else:
            record_changes(data, folder)
        if not folder.started() or folder.read_config() != values:
            write_atomic(folder.config, yaml.safe_dump(values, sort_keys=False).encode())


def record_changes(data: TrainingData, folder: RunFolder) -> None:
    """Write the inputs that --accept-changes has accepted into environment.json, and their names.

    A report then compares the run with those that had the same inputs in the end, and sets it apart
    from them.
    """
    try:
        about = read_json(folder.environment)
        changed = changed_inputs(about["inputs"], data.inputs, data.store)
        names = sorted({*about.get("changed_inputs", []), *changed})
    except (OSError, DataError, KeyError, TypeError):  # 0.1.0 wrote no inputs
        return
    if changed:
        about |= {"inputs": data.inputs, "changed_inputs": names}
        write_json(folder.environment, about)


def finish(training: Training, folder: RunFolder, stopped_by: int) -> int:
    """Write the summary, show it, and return the exit code."""
    status = {0: "finished", TIME_UP: "out of time"}.get(stopped_by, "interrupted")
    # A run killed between its last checkpoint and its summary was evaluated before it was killed.
    metrics = training.metrics or (read_metrics(folder.metrics, "eval") or [{}])[-1]
    if training.writer:
        summary = summarize(training, metrics, status)
        with writing(folder.summary, RESUME):
            write_json(folder.summary, summary)
        if training.record and training.config.tensorboard:
            tensorboard.log_hparams(training.record, training.learner.resolved, summary)
        logger.info("")
        own_model = "model" in plugins.code_files(training.learner.resolved.as_dict())
        for line in end_lines(summary, folder.path, own_model=own_model):
            logger.info(line)
    training.learner.ranks.max(0)  # waits: whoever called on another rank reads the summary
    return 0 if stopped_by in (0, TIME_UP) else 128 + stopped_by
