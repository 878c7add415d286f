"""The training loop.

A step: batch in, loss out, backward, optimizer, EMA. Nothing in it waits for the device. The loop
waits for the device only where it logs metrics, evaluates a model, or saves a checkpoint.
"""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from fastssl import models
from fastssl.algorithms import StepOutput
from fastssl.config.schema import RunConfig
from fastssl.engine import checkpoint, evaluation, optim
from fastssl.engine.accumulate import backward
from fastssl.engine.build import Learner, TrainingData
from fastssl.engine.progress import EvaluationMetrics, TrainingProgress, evaluates, logs, saves
from fastssl.engine.signals import Stop
from fastssl.engine.snapshot import snapshot
from fastssl.engine.threads import Pace
from fastssl.errors import DivergedError
from fastssl.tracking import tensorboard
from fastssl.tracking.metrics import MetricsLog
from fastssl.tracking.progress_bar import Display
from pipelines.loader.batch import Batch

logger = logging.getLogger(__name__)
TIME_UP = signal.NSIG  # max_time is over; no signal has this number
STOP_CHECK_EVERY = 10  # steps on CUDA between two checks whether a rank was asked to stop


def train_step(learner: Learner, batch: Batch, step: int) -> StepOutput:
    """Run one optimizer step and return what the algorithm's step function returned."""
    config = learner.resolved.config
    optim.set_learning_rate(learner.optimizer, optim.learning_rate(config, step))
    if models.may_draw(config.model):
        optim.reseed(config.seed, step, learner.ranks.rank)
    # A tensor that is filled in place: a new Python number would recompile a compiled step.
    learner.fraction.fill_(step / config.steps)
    learner.optimizer.zero_grad(set_to_none=True)
    out = backward(learner, batch)  # over ranks, gradients are averaged in here
    # Unscale before clipping: `clip` is a norm of the true gradients. None without fp16.
    overflow = learner.scaler.unscale()
    if config.clip:
        torch.nn.utils.clip_grad_norm_(learner.model.parameters(), config.clip)
    # Gradients are the same on all ranks, losses are not: the ranks must agree.
    finite = learner.ranks.mean(torch.isfinite(out.loss).float()) == 1
    if overflow is None:
        moves = learner.nonfinite.update(finite & learner.nonfinite.gradients_are_finite(), step)
    else:
        # An overflow in fp16 only skips the step. The run has diverged if the loss itself is not
        # finite, or if halving the scale down to 1 did not help.
        sane_scale = learner.scaler.state["scale"] >= 1
        moves = learner.nonfinite.update(finite & sane_scale, step) * (1 - overflow)
    # The fused kernels read this attribute on the device and leave weights and momenta as they
    # are unless it is 0. torch.amp.GradScaler sets the same attribute.
    learner.optimizer.found_inf = 1 - moves  # type: ignore[attr-defined]
    learner.optimizer.step()
    learner.scaler.update(overflow)
    learner.ema.update(moves)
    return out


@dataclass(slots=True)
class Training:
    """A run in progress: the learner, its data, the progress so far, and where it is recorded."""

    learner: Learner
    data: TrainingData
    progress: TrainingProgress
    display: Display
    record: MetricsLog | None  # None on every rank but 0, as the writer is
    writer: checkpoint.Writer | None
    metrics: EvaluationMetrics = field(default_factory=lambda: EvaluationMetrics())  # the last
    started: float = field(default_factory=time.monotonic)
    out: StepOutput | None = None
    first_step: float | None = None  # seconds until the first step was done
    pace: Pace = field(default_factory=Pace)
    explained: bool = False  # whether a message explained why all images are trusted

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return self.learner.resolved.config

    def fit(self, stop: Stop) -> int:
        """Train to the last step; return 0, or what stopped it: a signal's number or TIME_UP."""
        ranks = self.learner.ranks
        self.learner.student.train()
        begun, waited = time.monotonic(), self.data.loader.waited
        # With several ranks the others wait in a collective: the launcher ends them all.
        ask = partial(self.stop_while_waiting, stop) if ranks.world == 1 else bool
        batch = None
        for batch in self.data.loader.iterate(self.progress.step, self.config.steps, ask):
            self.out = train_step(self.learner, batch, self.progress.step)
            if self.first_step is None:
                self.first_step = time.monotonic() - self.started
                supervised = self.progress.step < self.config.supervised_steps  # not compiled
                if self.config.compile != "off" and not supervised:
                    # Compiling is not training: it does not count in images per second.
                    begun = time.monotonic()
                    logger.info(f"first step after {self.first_step:.1f} s of compiling")
            self.progress.step += 1
            self.progress.images += (len(batch.labels) + len(batch.position)) * ranks.world
            self.display.step(self.progress.step)
            stopped_by = self.stop_requested(stop)
            last = stopped_by != 0 or self.progress.step == self.config.steps
            now = self.config, self.progress.step
            due = logs(*now), evaluates(*now), saves(*now) or last
            if any(due):
                self.progress.train_seconds += time.monotonic() - begun
                self.progress.waited += self.data.loader.waited - waited
                self.pause(batch, *due)
                begun, waited = time.monotonic(), self.data.loader.waited
            if stopped_by:
                return stopped_by
        if self.progress.step < self.config.steps:  # asked to stop while the reader was stalled
            if batch is not None:
                self.pause(batch, False, False, True)
            return self.stop_request(stop)
        return 0

    def stop_request(self, stop: Stop) -> int:
        """Return the signal that this rank received, TIME_UP if its time is over, else 0."""
        limit = 60 * self.config.max_time
        spent = self.progress.seconds + time.monotonic() - self.started
        return stop.signal or (TIME_UP if limit and spent > limit else 0)

    def stop_while_waiting(self, stop: Stop) -> int:
        """Return what ends the wait for a batch, else 0.

        The end of max_time does so only after a first step: however slow a start is, a run that is
        resumed again and again makes progress, and what it stops at is saved.
        """
        return self.stop_request(stop) if self.out else stop.signal

    def stop_requested(self, stop: Stop) -> int:
        """Return what stops all ranks after the same step, else 0.

        A step on a CPU may take seconds, and a launcher waits only 30 s after SIGTERM, so CPU
        ranks exchange their requests after every step; CUDA ranks do so every ten steps.
        """
        ranks, cuda = self.learner.ranks, self.learner.device.device.type == "cuda"
        if ranks.world > 1 and cuda and self.progress.step % STOP_CHECK_EVERY:
            return 0
        return ranks.max(self.stop_request(stop))  # over gloo: does not wait for a device

    def pause(self, batch: Batch, logging: bool, evaluating: bool, saving: bool) -> None:
        """Do what waits for the device: check for a non-finite step, log, evaluate, save."""
        self.check_finite(batch)
        if self.writer:
            self.writer.check()
        self.progress.seconds += time.monotonic() - self.started
        self.started = time.monotonic()
        if logging:
            self.log()
        improved = evaluating and self.evaluate()
        if saving or improved:
            self.save(saving, improved)
        self.learner.ema.copy_buffers()  # those of an evaluation are for it and its checkpoint
        if self.record:
            self.record.flush()

    def save(self, saving: bool, improved: bool) -> None:
        """Hand a snapshot to the writer; pseudo-label counts since the last log cover all ranks."""
        quality = self.learner.ranks.mean(self.learner.quality.sums)
        if not self.writer:
            return
        began = time.monotonic()
        content = snapshot(self.learner, self.data, self.progress, quality)
        if improved:
            self.writer.save(checkpoint.BEST, content)
        if saving:
            self.writer.save(checkpoint.step_name(self.progress.step), content)
        self.writer.seconds += time.monotonic() - began

    def check_finite(self, batch: Batch) -> None:
        """Raise DivergedError if a non-finite step was recorded; reading the flag waits.

        Nothing is logged or saved after such a step.
        """
        bad = int(self.learner.nonfinite.bad_step)
        if bad < 0:
            return
        # The weights are those before the bad step, but it may have put NaN into BatchNorm's
        # running statistics. Train mode normalizes by the batch (of more than one image) instead.
        self.learner.model.train(len(batch.images) > 1)
        with torch.no_grad():
            largest = float(self.learner.model(batch.images).abs().max())
        rate = optim.learning_rate(self.config, bad)
        raise DivergedError(
            f"loss or gradient is not finite at step {bad + 1} "
            f"(learning rate {rate:.4g}, largest logit before it {largest:.4g})",
            "start again with a lower lr or clip=1 and another --out; the last checkpoint is from "
            "before, and pretrained=RUN takes its weights",
        )

    def log(self) -> None:
        """Read the metrics of the last step, averaged over ranks, and record them."""
        assert self.out is not None
        values = {"loss": self.out.loss, **self.out.metrics}
        stacked = torch.stack([v.float().reshape(()) for v in values.values()])
        numbers = self.learner.ranks.mean(stacked).tolist()  # waits for the device
        line: dict[str, Any] = dict(zip(values, numbers, strict=True))
        line |= self.learner.quality.read(self.learner.ranks)
        line["lr"] = optim.learning_rate(self.config, self.progress.step - 1)
        if self.learner.scaler.enabled:
            line["fp16_skipped"] = int(self.learner.scaler.state["skipped"])
        line["speed/images_per_s"] = self.progress.images_per_s
        line["speed/data_wait"] = self.progress.data_wait
        line["seconds"] = self.progress.seconds
        if self.record:
            self.record.write("train", self.progress.step, line)
        self.display.log_metrics(self.progress.step, line)
        self.pace.check(self.learner, self.progress)
        if line.get("trusted") == 1 and not self.explained:
            self.explain_trusted()

    def explain_trusted(self) -> None:
        """Log once why every image is trusted, if the algorithm's thresholds are still low."""
        algorithm, settings = self.learner.algorithm, self.learner.resolved.settings
        if algorithm.thresholds is None:
            return
        classes = self.data.store.classes
        highest = float(algorithm.thresholds(self.learner.state, settings, classes).max())
        if highest < 1 / classes:  # less than the largest probability of any image
            self.explained = True
            logger.info(
                "trusted 100 % is expected at the start: no class is learned yet, so the "
                f"thresholds are low (at most {highest:.2g}); they rise with what is learned"
            )

    def evaluate(self) -> bool:
        """Evaluate the EMA model; return True if it is the best so far.

        Without test images, those held out for validation are evaluated. Without either, the
        latest model counts as the best.
        """
        if not self.data.evaluations:
            self.progress.best_step = self.progress.step
            return True
        model, device = self.learner.ema.model, self.learner.device
        evaluation.recompute_statistics(model, self.data.statistics, device)
        found = {split: self.measure(split) for split in self.data.evaluations}
        metrics = found.get("test") or found["train"]
        if "train" in found:  # images held out for validation
            metrics["validation_error"] = found["train"]["error"]
        metrics["seconds"] = self.progress.seconds
        improved = self.progress.add_evaluation(metrics)
        if self.record:
            assert self.out is not None
            tables = {name: table.tolist() for name, table in self.out.tables.items()}
            self.record.write("eval", self.progress.step, {**metrics, "tables": tables})
        self.metrics = metrics
        self.display.log_evaluation(self.progress.step, metrics)
        return improved

    def measure(self, split: str) -> EvaluationMetrics:
        """Evaluate the EMA model on images of a split; all ranks share the work."""
        learner, batches = self.learner, self.data.evaluations[split]
        model = learner.ema.model
        logits, labels = evaluation.predict_split(model, batches, learner.device, learner.ranks)
        metrics = evaluation.compute_metrics(logits, labels)
        few = logits.shape[1] <= tensorboard.SHOWN
        counts = evaluation.confusion(logits, labels) if few else None
        if split == "test" and self.record:
            tensorboard.log_evaluation(self.record, logits, counts, self.progress.step)
        if counts is not None and self.progress.step == self.config.steps:
            metrics["confusion"] = counts.tolist()  # large: only at the end
        return metrics
