"""A training step by `algo.forward` (together, split, skip) and by the share of trusted images.

All of a training step is measured: forward, backward, optimizer, EMA and curriculum. The images
are random. Which of them are trusted is therefore not the curriculum's decision but given: in
every step exactly the wanted share, at random positions.

`together` takes pseudo-labels from the student, because it has no other pass of the weak views;
`split` and `skip` take them as the configuration says. `slots` is off, so that nothing is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from fastssl.algorithms import Nets, State, StepOutput
from fastssl.algorithms.common import cpl, losses
from fastssl.algorithms.common.settings import Forward
from fastssl.algorithms.flexmatch import FlexMatchSettings
from fastssl.config.resolve import ResolvedConfig, load
from fastssl.distributed.collectives import Ranks
from fastssl.engine import devices
from fastssl.engine.build import Learner
from fastssl.errors import ConfigError
from fastssl.profiling.measure import Measured, interleave, make_record
from fastssl.profiling.step_timing import time_steps
from fastssl.profiling.synthetic import learner_of, make_batch
from pipelines.loader.batch import Batch
from tools.bench.subjects import SkipOptions

FORWARDS: tuple[str, ...] = get_args(Forward)
IMAGES = 50_000  # unlabeled images of the dataset


def run(options: SkipOptions) -> dict[str, Any]:
    """Measure all values of `algo.forward` at all shares; return the record."""
    cases = make_cases(options)
    return record(options, cases, interleave(cases, options.repetitions))


@dataclass
class Steps:
    """A case: training steps in which the same positions of every batch are trusted."""

    learner: Learner
    trusted: Tensor  # [U] 1 where an image is trusted, else 0
    batches: Iterator[Batch]
    steps: int  # per call
    passed: int = 0  # images in the student's last pass, the one with gradient

    def __post_init__(self) -> None:
        self.learner.step = partial(flexmatch_step, self.trusted)
        self.learner.student.register_forward_hook(self._count)

    def _count(self, model: Any, inputs: tuple[Tensor, ...], logits: Any) -> None:
        self.passed = len(inputs[0])

    def __call__(self) -> float:
        """Run some steps; return milliseconds per step."""
        return 1000 * time_steps(self.learner, islice(self.batches, self.steps))


def flexmatch_step(
    trusted: Tensor,
    nets: Nets,
    batch: Batch,
    state: State,
    config: FlexMatchSettings,
    progress: Tensor,
    ranks: Ranks,
) -> StepOutput:
    """Compute the loss of FlexMatch with `trusted` in place of the curriculum's decision.

    A test compares it with FlexMatch's own step.
    """
    passes = losses.Passes(nets, batch, config, ranks)
    weak = passes.weak.detach()
    if config.alignment:
        decay = config.alignment_decay
        weak = losses.align_to_uniform(weak.softmax(dim=1), state["predicted"], decay, ranks).log()
    decision = cpl.curriculum(weak, batch, state, config, ranks)
    logits, strong, trusted = passes.finish(trusted)
    labeled_loss = F.cross_entropy(logits, batch.labels)
    unlabeled_loss = losses.masked_cross_entropy(strong, decision.pseudo_label, trusted)
    loss = labeled_loss + config.unlabeled_weight * unlabeled_loss
    terms = {"labeled": labeled_loss, "unlabeled": unlabeled_loss}
    tables = cpl.tables(state, decision)
    return losses.step_output(loss, terms, decision.pseudo_label, trusted, tables)


def make_cases(options: SkipOptions) -> dict[str, Steps]:
    """Return a case for each share and value of `algo.forward`; all get the same batches."""
    resolved = {forward: resolve(options, forward) for forward in FORWARDS}
    chosen = resolved["skip"]
    device = devices.choose(chosen.config)
    shape = chosen.config.batch, options.size, IMAGES
    batches = [make_batch(*shape, seed, ratio=ratio_of(chosen)) for seed in range(4)]
    return {
        case_name(forward, share): Steps(
            learner_of(resolved[forward], device, IMAGES),
            exactly_trusted(share, len(batches[0].position)),
            cycle(batches),
            options.steps,
        )
        for share in options.shares
        for forward in FORWARDS
    }


def resolve(options: SkipOptions, forward: str) -> ResolvedConfig:
    """Return the configuration of a case."""
    # Without a warm-up, which starts at the learning rate 0, so that every step moves the weights.
    forced = ["device=cpu", "warmup=0", "accumulate=1", "algo.slots=0", f"algo.forward={forward}"]
    if forward == "together":
        forced.append("algo.pseudo_labels=student")
    resolved = load(options.config, [*options.overrides, *forced])
    if resolved.algorithm.name != "flexmatch":
        raise ConfigError(
            f"skip measures steps of flexmatch, not of {resolved.algorithm.name}",
            "type algorithm=flexmatch",
        )
    return resolved


def ratio_of(resolved: ResolvedConfig) -> int:
    """Return the number of unlabeled images per labeled image."""
    return resolved.config.ratio or resolved.algorithm.ratio


def exactly_trusted(share: int, unlabeled: int) -> Tensor:
    """Return a vector [U] that is 1 for `share` percent of the images, at random positions."""
    order = torch.randperm(unlabeled, generator=torch.Generator().manual_seed(0))
    return torch.zeros(unlabeled).index_fill(0, order[: round(share / 100 * unlabeled)], 1)


def case_name(forward: str, share: int) -> str:
    """Return the name of a case in the record."""
    return f"{forward} at {share} %"


def record(
    options: SkipOptions, cases: Mapping[str, Steps], measured: Mapping[str, Measured]
) -> dict[str, Any]:
    """Return the record; a ratio is the time of another value of `algo.forward` over skip's."""
    learner = next(iter(cases.values())).learner
    config = learner.resolved.config
    settings = {
        **asdict(options),
        **{key: getattr(config, key) for key in ("model", "batch", "optimizer")},
        "ratio": ratio_of(learner.resolved),
        "precision": learner.device.precision,
        "threads": learner.device.threads,
    }
    results = [
        measured[name].row(
            name,
            "ms/step",
            2,
            pseudo_labels=case.learner.resolved.settings.pseudo_labels,
            trusted=int(case.trusted.sum()),
            with_gradient=case.passed,
            busy=round(measured[name].busy, 2),
        )
        for name, case in cases.items()
    ]
    ratio = {}
    for share in options.shares:
        skip = measured[case_name("skip", share)].median
        for name in (case_name("split", share), case_name("together", share)):
            ratio[name] = round(measured[name].median / skip, 3)
    return make_record(f"skip {config.model}", settings, results, ratio)
