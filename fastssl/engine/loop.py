"""The one loop.

A step: batch in, loss out, backward, SGD, moving average. Nothing in it waits for the device;
the waits are where metrics are logged, where a model is evaluated, and where a run is saved.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fastssl.algorithms.base import StepOutput
from fastssl.engine import accumulate, checkpoint, evaluation, optim
from fastssl.engine.build import Run
from fastssl.engine.progress import TrainingProgress, evaluates, logs, saves
from fastssl.engine.signals import Stop
from fastssl.errors import DivergedError
from fastssl.tracking import tensorboard
from fastssl.tracking.metrics import Record
from fastssl.tracking.progress_bar import Display
from pipelines.loader.batch import Batch

TIME_UP = 1  # in the place of a signal's number
ASK_EVERY = 10  # steps on CUDA between the questions to all ranks whether one was told to stop


def train_step(run: Run, batch: Batch, step: int, progress: Tensor) -> StepOutput:
    """Take one optimizer step; from a non-finite one on, nothing moves."""
    config = run.resolved.config
    for group in run.optimizer.param_groups:
        group["lr"] = optim.learning_rate(config, step)
    progress.fill_(step / config.steps)
    run.nonfinite.remember(batch.global_positions)
    run.optimizer.zero_grad(set_to_none=True)
    out = backward(run, batch, progress)
    overflow = run.scaler.unscale()
    if config.clip:
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), config.clip)
    alive = run.nonfinite.judge(out.loss, step, run.ranks, overflow)
    moves = alive if overflow is None else alive * (1 - overflow)
    run.optimizer.found_inf = 1 - moves  # type: ignore[attr-defined]
    run.optimizer.step()
    run.scaler.update(overflow)
    run.ema.update(moves)
    run.nonfinite.settle(batch.global_positions)
    return out


def backward(run: Run, batch: Batch, progress: Tensor) -> StepOutput:
    """Run the step function and backward, in parts where `micro_batch` asks for them.

    Loss and metrics are then those of all parts.
    """
    settings = run.resolved.settings
    parts = run.resolved.config.micro_batch or 1
    outs = []
    for part in range(parts):
        piece = batch if parts == 1 else accumulate.cut(batch, part, parts, run.ranks.world)
        with run.device.autocast():
            out = run.step(run.nets, piece, run.state, settings, progress, run.ranks)
        run.scaler.scale(out.loss / parts).backward()  # type: ignore[no-untyped-call]
        run.quality.add(out, piece.position)
        outs.append(replace(out, loss=out.loss.detach()))
    return outs[0] if parts == 1 else accumulate.average(outs)


class Training:
    """A run under way: the parts, the way so far, and where it is written down."""

    def __init__(
        self, run: Run, trip: TrainingProgress, display: Display, record: Record | None, writer: Any
    ) -> None:
        self.run = run
        self.trip = trip
        self.display = display
        self.record = record  # None on every rank but 0
        self.writer: checkpoint.Writer | None = writer
        self.config = run.resolved.config
        self.figures: dict[str, Any] = {}  # of the last evaluation
        self.started = time.monotonic()
        self.out: StepOutput | None = None
        self.first_step: float | None = None  # seconds until the first step was done

    def travel(self, stop: Stop) -> int:
        """Train to the last step; return 0, or what stopped it: a signal's number or TIME_UP."""
        self.run.student.train()
        if self.run.ranks.world > 1 and self.run.device.device.type != "cuda":
            self.run.nonfinite.ask = lambda: self.told(stop)
        progress = torch.zeros((), device=self.run.device.device)
        batches = self.run.loader.iterate(self.trip.step, self.config.steps)
        begun, waited = time.monotonic(), self.run.loader.waited
        for batch in batches:
            self.out = train_step(self.run, batch, self.trip.step, progress)
            if self.first_step is None:
                self.first_step = time.monotonic() - self.started
                if self.config.compile != "off":
                    # Compiling is no training: it does not count in images a second.
                    begun = time.monotonic()
                    self.display.say(f"first step after {self.first_step:.1f} s of compiling")
            self.trip.step += 1
            self.trip.images += (len(batch.labels) + len(batch.position)) * self.run.ranks.world
            self.display.step(self.trip.step)
            told = self.stop_requested(stop)
            last = told != 0 or self.trip.step == self.config.steps
            busy = [logs(self.config, self.trip.step), evaluates(self.config, self.trip.step)]
            busy.append(saves(self.config, self.trip.step) or last)
            if any(busy):
                self.clock(begun, waited)
                self.pause(batch, *busy)
                begun, waited = time.monotonic(), self.run.loader.waited
            if told:
                return told
        return 0

    def clock(self, begun: float, waited: float) -> None:
        """Add the time since the last pause to the books."""
        self.trip.train_seconds += time.monotonic() - begun
        self.trip.waited += self.run.loader.waited - waited

    def pause(self, batch: Batch, logging: bool, evaluating: bool, saving: bool) -> None:
        """Do what waits for the device: look at the flag, log, evaluate, save."""
        self.check_finite(batch)
        if self.writer:
            self.writer.check()
        self.trip.seconds += time.monotonic() - self.started
        self.started = time.monotonic()
        if logging:
            self.log()
        improved = evaluating and self.evaluate()
        if saving or improved:
            self.save(saving, improved)
        if self.record:
            self.record.flush()

    def save(self, saving: bool, improved: bool) -> None:
        """Hand a snapshot to the writer; what the ranks saw since the last log is put together."""
        seen = self.run.ranks.mean(self.run.quality.sums)
        if not self.writer:
            return
        began = time.monotonic()
        content = {**snapshot(self.run, self.trip), "quality": copy_tree(seen)}
        if improved:
            self.writer.save(checkpoint.BEST, content)
        if saving:
            self.writer.save(checkpoint.step_name(self.trip.step), content)
        self.writer.seconds += time.monotonic() - began

    def told(self, stop: Stop) -> int:
        """Return the signal that this rank got, TIME_UP where its time is up, else 0."""
        limit = 60 * self.config.max_time
        spent = self.trip.seconds + time.monotonic() - self.started
        return stop.signal or (TIME_UP if limit and spent > limit else 0)

    def stop_requested(self, stop: Stop) -> int:
        """Return what stops all ranks at one and the same step, else 0.

        On CUDA they ask each other every ten steps. On CPUs a step may take seconds and a
        launcher waits 30 of them, so the question rides on every step's own reduction.
        """
        if self.run.ranks.world == 1:
            return self.told(stop)
        if self.run.device.device.type == "cuda":
            silent = self.trip.step % ASK_EVERY != 0
        else:
            silent = not float(self.run.nonfinite.heard)
        return 0 if silent else self.run.ranks.max(self.told(stop))

    def check_finite(self, batch: Batch) -> None:
        """Stop the run where the flag has fallen; everything is as before the bad step."""
        bad = int(self.run.nonfinite.bad_step)
        if bad < 0:
            return
        self.run.model.eval()
        with torch.no_grad():
            largest = float(self.run.model(batch.images).abs().max())
        rate = optim.learning_rate(self.config, bad)
        raise DivergedError(
            f"loss or gradient is not finite at step {bad + 1} "
            f"(learning rate {rate:.4g}, largest logit before it {largest:.4g})",
            "begin anew with a lower lr or clip=1 and another --out; the last checkpoint is from "
            "before, and init=RUN takes its weights",
        )

    def log(self) -> None:
        """Read the metrics of the last step, averaged over ranks, and write them down."""
        assert self.out is not None
        values = {"loss": self.out.loss, **self.out.metrics}
        stacked = torch.stack([v.float().reshape(()) for v in values.values()])
        numbers = self.run.ranks.mean(stacked).tolist()  # waits for the device
        line: dict[str, Any] = dict(zip(values, numbers, strict=True))
        line |= self.run.quality.read(self.run.ranks)
        line["lr"] = optim.learning_rate(self.config, self.trip.step - 1)
        if self.run.scaler.enabled:
            line["fp16_skipped"] = int(self.run.scaler.state["skipped"])
        line["speed/images_per_s"] = self.trip.images_per_s
        line["speed/data_wait"] = self.trip.data_wait
        line["seconds"] = self.trip.seconds
        if self.record:
            self.record.metrics("train", self.trip.step, line)
        self.display.logged(self.trip.step, line)

    def evaluate(self) -> bool:
        """Judge the averaged weights; return whether they are the best so far."""
        self.run.ema.copy_buffers()
        figures = self.judge("test")
        if len(self.run.split.validation):
            figures["validation_error"] = self.judge("validation")["error"]
        figures["seconds"] = self.trip.seconds
        improved = self.trip.note(figures)
        if self.record:
            assert self.out is not None
            tables = {name: table.tolist() for name, table in self.out.tables.items()}
            self.record.metrics("eval", self.trip.step, {**figures, "tables": tables})
        self.figures = figures
        self.display.evaluated(self.trip.step, figures)
        return improved

    def judge(self, part: str) -> dict[str, Any]:
        """Evaluate on one part of the data, shared over ranks."""
        logits, labels = evaluation.predict(
            self.run.ema.model, self.run.evaluation(part), self.run.device, self.run.store.classes
        )
        logits, labels = map(self.run.ranks.gather_uneven, (logits, labels))
        if self.record and part == "test":
            tensorboard.evaluated(self.record, logits, labels, self.trip.step)
        figures = evaluation.judge(logits, labels)
        if self.trip.step == self.config.steps and logits.shape[1] <= tensorboard.SHOWN:
            figures["confusion"] = evaluation.confused(logits, labels)  # large: at the end only
        return figures


def snapshot(run: Run, trip: TrainingProgress) -> dict[str, Any]:
    """Copy all that a restart needs; randomness is keyed by step and needs no state."""
    run.ema.copy_buffers()
    content = {
        "model": run.model.state_dict(),
        "ema": run.ema.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scaler": run.scaler.state,
        "state": run.state,
        "trip": trip.as_dict(),
        "config": run.resolved.as_dict(),
        "store": run.store.fingerprint,
        "classes": list(run.store.class_names),
        "preprocessing": {
            "size": list(run.size),
            "mean": list(run.store.mean),
            "std": list(run.store.std),
            "stored": run.store.splits["test"].height,
            "resize": run.store.manifest["resize"],
        },
    }
    copied = copy_tree(content)
    assert isinstance(copied, dict)
    return copied


def copy_tree(item: Any) -> Any:
    """Copy nested dicts and lists; tensors go to the CPU."""
    if isinstance(item, Tensor):
        return item.detach().cpu().clone()
    if isinstance(item, dict):
        return {key: copy_tree(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [copy_tree(value) for value in item]
    return item


def restore(run: Run, content: dict[str, Any]) -> TrainingProgress:
    """Put a checkpoint into a run."""
    run.model.load_state_dict(content["model"])
    run.ema.model.load_state_dict(content["ema"])
    run.optimizer.load_state_dict(content["optimizer"])
    for own, saved in ((run.state, content["state"]), (run.scaler.state, content["scaler"])):
        for key, value in saved.items():
            own[key].copy_(value)
    run.quality.sums.copy_(content["quality"])
    return replace(TrainingProgress(), **content["trip"])
