"""The configuration of a run: one typed model, filled from defaults, a YAML file and the shell.

Each key must exist and have the type of its field. A field's metadata says where its value does
not matter (`keys_that_may_differ`). Nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, PositiveFloat, SerializeAsAny, model_validator
from pydantic.config import JsonDict

from fastssl import models
from fastssl.algorithms import Settings
from fastssl.config.checks import CheckedKeys
from pipelines.datasets import DATASETS

# Metadata of a field, from the least to the most comparable: where two runs may have different
# values of the key.
#   ranks   the processes of one run
#   resume  a run and its continuation: the numbers stay the same
#   cells   runs that a report puts into one cell, or that it tells apart by other means
#   paper   a run and the published one that a report sets it beside
PER_RANK: JsonDict = {"may_differ": ["ranks", "resume", "cells", "paper"]}
ON_RESUME: JsonDict = {"may_differ": ["resume", "cells", "paper"]}
IN_CELLS: JsonDict = {"may_differ": ["cells", "paper"]}
WITH_PAPER: JsonDict = {"may_differ": ["paper"]}

# Keys whose `auto` is replaced when a run starts; its config.yaml has what was chosen.
CHOSEN_AT_START = ("precision", "compile", "threads", "ema", "bn_momentum", "mean", "std")
PAPER_STEPS = 100_000  # steps from which `auto` gives the paper's EMA and BatchNorm momentum


class RunConfig(CheckedKeys):
    """Every key of a run. `fastssl config` prints them in this order."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    data: str = Field("digits", json_schema_extra=IN_CELLS)
    """Dataset of the table, `own` for your own store, or FILE.py:NAME."""
    store: str | None = Field(None, json_schema_extra=PER_RANK)
    """Folder of the converted data; default $FASTSSL_DATA/NAME or data/NAME."""
    algorithm: str = Field("flexmatch", json_schema_extra=IN_CELLS)
    """Algorithm; see `fastssl list algorithms`; or FILE.py."""
    algo: SerializeAsAny[Settings] = Field(
        default_factory=Settings, validate_default=True, json_schema_extra=IN_CELLS
    )
    """Settings of the chosen algorithm, typed algo.KEY=VALUE."""
    labels: int | str = Field(40, json_schema_extra=IN_CELLS)
    """Labeled images in total, equally many of each class; `5/class` takes up to 5 of each class,
    `all` every label."""
    label_file: str | None = Field(None, json_schema_extra=IN_CELLS)
    """File with the indices of the labeled images, such as a published split."""
    imbalance: float = Field(1.0, ge=1)
    """Labels of the most frequent class over those of the least frequent one."""
    unlabeled_imbalance: float = Field(1.0, ge=1)
    """The same ratio for the unlabeled set."""
    include_labeled: bool = True
    """Labeled images are also part of the unlabeled set, as in the paper."""
    validation: float = Field(0.0, ge=0)
    """Training images (below 1: a share) that choose the best checkpoint; 0: test images do."""
    seed: int = Field(0, ge=0, le=2**31 - 1, json_schema_extra=IN_CELLS)
    """Seed of weights, order and views."""
    split_seed: int | None = Field(None, ge=0, json_schema_extra=IN_CELLS)
    """Seed of the choice of labeled images; default: seed."""
    steps: int = Field(2**20, ge=1)
    """Optimizer steps (K in the paper)."""
    batch: int = Field(64, ge=1)
    """Labeled images per step over all ranks (B)."""
    ratio: int | None = Field(None, ge=1)
    """Unlabeled images per labeled image (mu); default: the algorithm's."""
    accumulate: int = Field(1, ge=1)
    """Parts of a step whose gradients are accumulated, to save memory; BatchNorm sees the parts."""
    supervised_steps: int = Field(0, ge=0)
    """First steps that learn from the labeled images alone, as algorithm=supervised does; unlabeled
    ones are not read. The papers have none; TorchSSL has 2,049 for FreeMatch on SVHN."""
    model: str = "wrn-28-2"
    """Network: wrn-DEPTH-WIDTH, fast-WIDTH, resnet50, timm:NAME, torchvision:NAME, or
    FILE.py:BUILD; see `fastssl list models`."""
    variant: Literal["torchssl", "google"] = "torchssl"
    """WRN as in TorchSSL (published numbers) or as in Google's code."""
    pretrained: bool | str | None = None
    """Weights to start from. true: those that timm or torchvision download; a file of weights
    (.pth, .pt, .bin, .safetensors); or a run folder or checkpoint. What does not fit, such as a
    classifier of other classes, is listed and keeps its initial values."""
    bn_momentum: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] | None = "auto"
    """BatchNorm momentum; none: the model's own. auto: 0.001 for a WRN, as in the paper, and for a
    fast-W, or in a run of fewer than 100,000 steps 100 / steps, at most 0.1; the model's own for
    all others."""
    freeze: Literal["none", "backbone", "batchnorm"] = "none"
    """What is not trained. backbone: all but the classifier; batchnorm: scales and shifts of
    BatchNorm. In both cases BatchNorm normalizes by its running statistics, which stay as they
    are."""
    head_init: Literal["default", "means"] = "default"
    """Initial classifier. means: from the mean features of the labeled images of each class, so
    that the logits are cosines, divided by temperature."""
    temperature: float = Field(1.0, gt=0)
    """The network's logits are divided by it, in training, evaluation, prediction and exports."""
    drop_path: float = Field(0.0, ge=0, lt=1)
    """Rate of stochastic depth, in models of timm and in those of files that take it."""
    optimizer: Literal["sgd", "adamw", "muon"] = "sgd"
    """SGD as in the paper; AdamW, which needs a smaller lr; or Muon for the weights of convolutions
    and hidden linear layers, with SGD for all other parameters."""
    lr: float = Field(0.03, gt=0)
    """Initial learning rate; see schedule. With muon, that of all but its matrices."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """How the learning rate falls in step k. cosine: by cos(7/16 pi k/K), as in the paper, or after
    a warm-up of w steps by cos(7/16 pi (k - w)/(K - w)). linear: in a line to 0 at the end."""
    warmup: int = Field(0, ge=0)
    """Steps (w) in which the learning rate rises linearly from 0: lr k/w."""
    head_lr: float | None = Field(None, gt=0)
    """Learning rate of the classifier and of extra heads; default: lr."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Factor of the learning rate from each layer to the one below it, in models of timm."""
    muon_lr: float = Field(0.05, gt=0)
    """Initial learning rate of the matrices of muon, with the warm-up and schedule of lr."""
    muon_momentum: float = Field(0.6, ge=0, lt=1)
    """Momentum of the matrices of muon; always Nesterov's."""
    muon_rescale: bool = True
    """Set each matrix of muon to the norm sqrt(rows) before its update. BatchNorm after it undoes
    the scale; type false for networks without BatchNorm and for pretrained weights."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    nesterov: bool = True
    """Nesterov momentum."""
    weight_decay: float = Field(0.0005, ge=0)
    """Weight decay; not applied to 1-D parameters and to the matrices of muon."""
    ema: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = "auto"
    """Decay of the moving average of the weights (EMA). auto: 0.999, as in the paper; in a run of
    fewer than 100,000 steps the average is over sqrt(10 * steps) steps."""
    bn_recompute: int = Field(0, ge=0)
    """Unlabeled images from which BatchNorm statistics of the EMA model are computed before each
    evaluation, in whole batches of eval_batch. 0: it has those of the student, as in the paper."""
    clip: float = Field(0.0, ge=0)
    """Gradients are clipped to this norm; 0: no clipping."""
    flip: bool | None = None
    """Flip views horizontally at random; default: the dataset's."""
    padding: int | None = Field(None, ge=0)
    """Pixels of reflected border around the random crop; default: the dataset's."""
    augment_ops: int = Field(3, ge=0, le=14)
    """RandAugment operations per strong view."""
    augment_first: bool = True
    """RandAugment before flip and crop (TorchSSL) or after (USB)."""
    labeled_view: Literal["weak", "strong"] = "weak"
    """View of the labeled images that a step gets; weak in the papers."""
    image_size: int | None = Field(None, ge=4)
    """Side of the views in pixels; default: that of the pretrained model if the stored images are
    as large, else the dataset's."""
    mean: Annotated[list[float], Field(min_length=3, max_length=3)] | Literal["auto"] | None = (
        "auto"
    )
    """Mean of each color channel, of pixels in 0..1, that the network's inputs are shifted by;
    none: the store's. auto: that of the pretrained weights, if they have one, else the store's."""
    std: (
        Annotated[list[PositiveFloat], Field(min_length=3, max_length=3)] | Literal["auto"] | None
    ) = "auto"
    """Standard deviation of each channel, by which they are divided; like mean."""
    reader: str = Field("auto", json_schema_extra=PER_RANK)
    """How images are read; see `fastssl list readers`."""
    device: str = Field("auto", json_schema_extra=ON_RESUME)
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field("auto", json_schema_extra=WITH_PAPER)
    """Floating-point type of the forward pass."""
    compile: Literal["auto", "off", "step", "max"] = Field("auto", json_schema_extra=ON_RESUME)
    """torch.compile of the step; auto: on with CUDA, on a CPU where measured to be faster."""
    threads: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(0, json_schema_extra=PER_RANK)
    """Threads of the model on a CPU; 0: all cores. auto: the number that is fastest when the run
    starts, measured in at most 10 seconds; fewer are faster if other programs use the cores. Over
    ranks and with CUDA it is that of 0."""
    loader_threads: int = Field(0, ge=0, json_schema_extra=PER_RANK)
    """Threads that compute views; 0: a quarter of the cores."""
    eval_every: int = Field(5000, ge=1, json_schema_extra=WITH_PAPER)
    """Steps between evaluations."""
    eval_every_late: int = Field(1000, ge=1, json_schema_extra=WITH_PAPER)
    """The same in the last fifth of the run, as in TorchSSL."""
    eval_batch: int = Field(256, ge=1, json_schema_extra=ON_RESUME)
    """Images per batch of the evaluation."""
    log_every: int = Field(100, ge=1, json_schema_extra=ON_RESUME)
    """Steps between two lines of metrics."""
    checkpoint_every: int = Field(5000, ge=1, json_schema_extra=ON_RESUME)
    """Steps between checkpoints."""
    max_time: float = Field(0.0, ge=0, json_schema_extra=ON_RESUME)
    """Minutes after which the run saves and stops with exit code 0; 0: no limit."""
    tensorboard: bool = Field(True, json_schema_extra=ON_RESUME)
    """Write TensorBoard files."""

    def averages(self) -> dict[str, float | None]:
        """Return `ema` and `bn_momentum`, with what `auto` chooses for this number of steps.

        The paper's averages cover the last 1,000 of a million steps. In a run of a few thousand
        they would still hold the first weights and statistics at its end.
        """
        steps = min(self.steps, PAPER_STEPS)
        ours = models.family(self.model) in ("wrn", "fast")
        momentum = round(min(0.1, 100 / steps), 6) if ours else None
        return {
            "ema": round(1 - (10 * steps) ** -0.5, 6) if self.ema == "auto" else self.ema,
            "bn_momentum": momentum if self.bn_momentum == "auto" else self.bn_momentum,
        }

    @model_validator(mode="after")
    def _possible(self) -> RunConfig:
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} does not divide into {self.accumulate} parts")
        if self.optimizer != "adamw" and self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0; or type nesterov=false")
        if self.optimizer == "adamw" and "lr" not in self.model_fields_set:
            raise ValueError("optimizer=adamw needs an lr of its own, such as lr=0.0005")
        if self.optimizer == "muon" and self.precision == "fp16":
            raise ValueError("optimizer=muon does not go with precision=fp16; type precision=bf16")
        if self.pretrained is True and not self.model.startswith(("timm:", "torchvision:")):
            raise ValueError(
                "pretrained=true needs model=timm:NAME or torchvision:NAME; or type pretrained=FILE"
            )
        if self.bn_recompute and self.freeze != "none":
            raise ValueError(f"bn_recompute changes what freeze={self.freeze} keeps")
        if 0 < self.bn_recompute < self.eval_batch:
            raise ValueError(
                f"bn_recompute is {self.bn_recompute}; expected at least eval_batch "
                f"({self.eval_batch})"
            )
        if self.warmup >= self.steps:
            raise ValueError(f"warmup is {self.warmup}; expected less than steps ({self.steps})")
        if self.supervised_steps >= self.steps:
            raise ValueError(
                f"supervised_steps is {self.supervised_steps}; expected less than steps "
                f"({self.steps}), or type algorithm=supervised"
            )
        if self.data in DATASETS and isinstance(self.labels, int):
            classes = DATASETS[self.data].classes
            if self.labels % classes and self.imbalance == 1 and not self.label_file:
                raise ValueError(
                    f"labels is {self.labels}, which does not divide by {classes} classes"
                )
        return self


def keys_that_may_differ(where: Literal["ranks", "resume", "cells", "paper"]) -> frozenset[str]:
    """Return the keys whose values may differ between the runs or processes compared."""
    extras = {key: field.json_schema_extra for key, field in RunConfig.model_fields.items()}
    return frozenset(
        key
        for key, extra in extras.items()
        if isinstance(extra, dict) and where in str(extra.get("may_differ"))
    )
