"""Building a run from its configuration: what learns (`Learner`) and what feeds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fastssl import models
from fastssl.algorithms.base import Algorithm, DatasetInfo, Nets, State, Step
from fastssl.config.resolve import ResolvedConfig
from fastssl.config.schema import RunConfig
from fastssl.distributed.collectives import Ranks
from fastssl.engine import checkpoint, evaluation, optim
from fastssl.engine.build_data import (
    check_true_labels,
    find_store,
    images_for_statistics,
    input_hashes,
    make_data,
    normalization,
    view_recipes,
    weights_file,
)
from fastssl.engine.devices import Device
from fastssl.engine.optim import Ema, NonFiniteCheck, Scaler
from fastssl.models import pretrained
from fastssl.models.classifier import divide_logits, freeze
from fastssl.models.pretrained import Normalization
from fastssl.tracking.pseudo_label_stats import PseudoLabelStats
from pipelines.loader.evaluation import EvaluationBatches
from pipelines.loader.loader import Loader
from pipelines.sampling.split import Split
from pipelines.store.store import Store


@dataclass(slots=True)
class Learner:
    """What learns: networks, optimizer and all other state that a training step changes."""

    resolved: ResolvedConfig
    device: Device
    ranks: Ranks
    model: nn.Module  # the student without a wrapper
    student: nn.Module  # what a step calls: the model, or its DDP wrapper
    ema: Ema
    optimizer: torch.optim.Optimizer
    scaler: Scaler
    state: State
    nonfinite: NonFiniteCheck
    quality: PseudoLabelStats
    step: Step  # the algorithm's step function, compiled if that was chosen
    fraction: Tensor  # share of the training done, a scalar on the device for the step function
    stepped: bool = False  # whether this process has taken a step; see accumulate.reduction

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that is trained."""
        return self.resolved.algorithm

    @property
    def nets(self) -> Nets:
        """The two networks in the form that a step function takes."""
        return Nets(self.student, self.ema.model)


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What feeds a learner: the store, the labeled split and the loader of batches."""

    store: Store
    split: Split
    loader: Loader
    size: tuple[int, int]  # height and width of the views
    # By split: "test" if there are such images, "train" if some are held out for validation.
    evaluations: dict[str, EvaluationBatches]
    statistics: EvaluationBatches  # unlabeled images, if any, for `bn_recompute`
    inputs: dict[str, str]  # hashes by name, see build_data.input_hashes

    def close(self) -> None:
        """Close the loader and the readers of the evaluations."""
        self.loader.close()
        for batches in (*self.evaluations.values(), self.statistics):
            batches.close()


class Run(NamedTuple):
    """A run: what learns and what feeds it."""

    learner: Learner
    data: TrainingData


def build_model(
    resolved: ResolvedConfig, classes: int, device: Device, size: tuple[int, int] | None = None
) -> nn.Module:
    """Build the network for views of `size`; its initial weights depend on the seed alone."""
    config = resolved.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = models.build(
            config.model,
            classes=classes,
            variant=config.variant,
            heads=resolved.algorithm.heads,
            bn_momentum=config.averages()["bn_momentum"],
            drop_path=config.drop_path,
            size=size,
        )
    divide_logits(model, config.temperature)
    return model.to(device.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def load_weights(model: nn.Module, config: RunConfig, size: tuple[int, int]) -> None:
    """Load the weights that `pretrained` names into a new network."""
    if config.pretrained is True:
        tensors = pretrained.download(config.model, size)
        pretrained.load(model, tensors, f"of {config.model.split(':')[0]}")
    elif isinstance(config.pretrained, str):
        pretrained.load(model, read_weights(config)[0], config.pretrained)


def read_weights(config: RunConfig) -> tuple[pretrained.Tensors, Normalization | None]:
    """Return the tensors of a run, checkpoint or file, and the normalization that they show."""
    path = weights_file(config)
    assert path is not None
    if path.suffix != ".ckpt":
        tensors = pretrained.read_file(path)
        return tensors, pretrained.normalization_of(tensors)
    content = checkpoint.read(path)
    found = content["preprocessing"]
    return pretrained.stripped(content["ema"]), Normalization(found["mean"], found["std"])


def with_normalization(resolved: ResolvedConfig) -> ResolvedConfig:
    """Return a configuration whose `mean` and `std` are those of the pretrained weights.

    What a file states counts more than what the library states about its own weights.
    """
    config = resolved.config
    if not config.pretrained or "auto" not in (config.mean, config.std):
        return resolved
    own = models.own_inputs(config.model)
    found = own and Normalization(list(own.mean), list(own.std))
    if isinstance(config.pretrained, str):
        found = read_weights(config)[1] or found
    if found is None:
        return resolved
    chosen = {
        key: value for key, value in found._asdict().items() if getattr(config, key) == "auto"
    }
    return replace(resolved, config=config.model_copy(update=chosen))


def assemble(
    resolved: ResolvedConfig,
    device: Device,
    ranks: Ranks | None = None,
    store: Store | None = None,
    *,
    fresh: bool = True,
) -> Run:
    """Build a run at step 0; a `fresh` one starts with the weights of `pretrained`."""
    ranks, store = ranks or Ranks(), store or find_store(resolved)
    if fresh:
        resolved = with_normalization(resolved)
    data = open_data(resolved, device, ranks, store)
    split = data.split
    labels = store.labels("train")
    counts = torch.from_numpy(np.bincount(labels[split.labeled], minlength=store.classes))
    images = len(split.unlabeled) if resolved.algorithm.unlabeled else 0
    model = build_model(resolved, store.classes, device, data.size)
    # The precision of the model, but at least single: averages and shares need it.
    dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
    info = DatasetInfo(
        num_classes=store.classes,
        num_unlabeled=images,
        labeled_shares=(counts / counts.sum(dtype=torch.float64)).to(device.device, dtype),
        device=device.device,
    )
    known: Any = labels[split.unlabeled] if images else labels[:0]
    truth = torch.from_numpy(known.astype(np.int16 if store.classes < 2**15 else np.int32))
    if fresh:
        load_weights(model, resolved.config, data.size)
    if fresh and resolved.config.head_init == "means":
        own = np.array_split(split.labeled, ranks.world)[ranks.rank]
        with evaluation_batches(resolved, device, store, "train", own) as batches:
            evaluation.init_classifier(model, batches, device, ranks)
    return Run(make_learner(resolved, device, ranks, model, info, truth), data)


def open_data(resolved: ResolvedConfig, device: Device, ranks: Ranks, store: Store) -> TrainingData:
    """Choose the labeled split; build this rank's loader and its share of the evaluations."""
    split, order = make_data(resolved, store, ranks.world)
    recipes = view_recipes(resolved, store)
    size = recipes["weak"].size
    evaluated = {}
    if store.splits.get("test") and store.splits["test"].count:
        evaluated["test"] = np.arange(store.splits["test"].count)
    if len(split.validation):
        check_true_labels(store)
        evaluated["train"] = split.validation
    evaluations = {
        name: evaluation_batches(
            resolved, device, store, name, np.array_split(indices, ranks.world)[ranks.rank]
        )
        for name, indices in evaluated.items()
    }
    some = images_for_statistics(resolved.config, split.unlabeled, ranks)
    statistics = evaluation_batches(resolved, device, store, "train", some, ranks.world)
    mean, std = normalization(resolved.config, store)
    loader = Loader(
        store,
        split,
        order,
        views=resolved.algorithm.views,
        recipes=recipes,
        seed=resolved.config.seed,
        labeled_view=resolved.config.labeled_view,
        device=str(device.device),
        reader=resolved.config.reader,
        threads=device.loader_threads,
        rank=ranks.rank,
        world=ranks.world,
        mean=mean,
        std=std,
    )
    inputs = input_hashes(resolved, store)
    return TrainingData(store, split, loader, size, evaluations, statistics, inputs)


def evaluation_batches(
    resolved: ResolvedConfig,
    device: Device,
    store: Store,
    split: str,
    indices: npt.NDArray[np.int64],
    share: int = 1,
) -> EvaluationBatches:
    """Return images of a split, preprocessed for evaluation; `share` ranks have a batch."""
    mean, std = normalization(resolved.config, store)
    return EvaluationBatches(
        store,
        split,
        indices,
        size=view_recipes(resolved, store)["weak"].size,
        mean=mean,
        std=std,
        reader=resolved.config.reader,
        device=str(device.device),
        batch=max(1, resolved.config.eval_batch // share),
        threads=device.threads,
    )


def make_learner(
    resolved: ResolvedConfig,
    device: Device,
    ranks: Ranks,
    model: nn.Module,
    info: DatasetInfo,
    truth: Tensor,
) -> Learner:
    """Build all that learns around a model.

    `truth` [N] holds the true class of every unlabeled image, -1 if unknown. It is used only to
    measure the accuracy of pseudo-labels.
    """
    from fastssl.distributed.process_group import wrap

    frozen = resolved.config.freeze
    freeze(model, frozen)
    model, student = wrap(model, device.device, ranks, sync_batchnorm=frozen == "none")
    return Learner(
        resolved=resolved,
        device=device,
        ranks=ranks,
        model=model,
        student=student,
        ema=Ema(model, resolved.config.averages()["ema"] or 0.0),
        optimizer=optim.build(model, resolved.config, device.precision),
        scaler=Scaler(model, device.device, device.precision == "fp16"),
        state=resolved.algorithm.init_state(resolved.settings, info),
        nonfinite=NonFiniteCheck(model, device.device),
        quality=PseudoLabelStats(truth.to(device.device), info.num_classes),
        step=resolved.algorithm.step,
        fraction=info.labeled_shares.new_zeros(()),
    )
