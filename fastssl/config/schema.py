"""The configuration of a run: one typed model, filled from defaults, a YAML file and the shell.

Later wins: default, then the file, then `key=value`. Every key must exist and have the type of
its field; all mistakes are told together, each with the nearest name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pipelines.readers import READERS


def _known_reader(name: str) -> str:
    if name not in (names := ["auto", *READERS]):
        raise ValueError(f"reader is {name!r}; expected one of: {', '.join(names)}")
    return name


ReaderName = Annotated[str, AfterValidator(_known_reader)]
# `auto` or a name in the registry of readers.


class RunConfig(BaseModel):
    """Everything that decides a run; the order of the fields is the order of `fastssl config`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    data: str = Field(
        "digits", description="Data set of the table, `own` for your own store, or FILE.py:NAME."
    )
    store: str | None = Field(
        None, description="Folder of the converted data; default $FASTSSL_DATA/NAME or data/NAME."
    )
    algorithm: str = Field(
        "flexmatch", description="How to learn; see `fastssl list algorithms`; or FILE.py."
    )
    algo: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the chosen algorithm, typed algo.KEY=VALUE."
    )
    labels: int | Literal["all"] = Field(
        40, description="Labelled images in all, the same number a class; `all` takes every label."
    )
    label_file: str | None = Field(
        None, description="File of indices of the labelled images: a published split."
    )
    imbalance: float = Field(
        1.0, ge=1, description="Labels of the most over those of the least frequent class."
    )
    unlabeled_imbalance: float = Field(
        1.0, ge=1, description="The same ratio for the unlabelled set."
    )
    include_labeled: bool = Field(
        True, description="Labelled images also stand in the unlabelled set, as in the paper."
    )
    validation: float = Field(
        0.0,
        ge=0,
        description="Images (or, below 1, share) held out to choose the best; 0: the test set.",
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Weights, order and views.")
    split_seed: int | None = Field(
        None, ge=0, description="Which images are labelled; default: the seed."
    )
    steps: int = Field(2**20, ge=1, description="Optimizer steps (K in the paper).")
    batch: int = Field(64, ge=1, description="Labelled images a step over all ranks (B).")
    ratio: int | None = Field(
        None, ge=1, description="Unlabelled for each labelled image (mu); default: algorithm's."
    )
    micro_batch: int = Field(
        0,
        ge=0,
        description="Split a step into this many parts to save memory; BatchNorm sees the parts.",
    )
    model: str = Field(
        "wrn-28-2", description="Network: wrn-DEPTH-WIDTH, resnet50, or FILE.py:BUILD."
    )
    variant: Literal["torchssl", "google"] = Field(
        "torchssl", description="WRN as in TorchSSL (published numbers) or as in Google's code."
    )
    init: str | None = Field(None, description="Run folder or checkpoint to take weights from.")
    bn_momentum: float | None = Field(
        None, gt=0, le=1, description="BatchNorm momentum; default 0.001 (WRN) or 0.1 (ResNet)."
    )
    lr: float = Field(0.03, gt=0, description="Learning rate, followed by cos(7/16 pi k/K).")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of SGD.")
    nesterov: bool = Field(True, description="Nesterov momentum.")
    weight_decay: float = Field(5e-4, ge=0, description="Decay of weights; never of 1-D ones.")
    ema: float = Field(0.999, ge=0, lt=1, description="Decay of the averaged weights.")
    clip: float = Field(0.0, ge=0, description="Largest norm of the gradient; 0: no clipping.")
    flip: bool | None = Field(None, description="Mirror views; default: the data set's.")
    padding: int | None = Field(None, ge=0, description="Reflected border of the weak crop.")
    augment_ops: int = Field(3, ge=0, le=14, description="RandAugment operations a strong view.")
    augment_first: bool = Field(
        True, description="RandAugment before flip and crop (TorchSSL) or after (USB)."
    )
    image_size: int | None = Field(None, ge=4, description="Side of the views.")
    reader: ReaderName = Field(
        "auto", description="How images are read; see `fastssl list readers`."
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="Arithmetic of the forward pass."
    )
    compile: Literal["auto", "off", "step", "max"] = Field(
        "auto", description="torch.compile of the step; auto: on CUDA, measured on a CPU."
    )
    threads: int = Field(0, ge=0, description="Threads of the model on a CPU; 0: all cores.")
    loader_threads: int = Field(
        0, ge=0, description="Threads that make views; 0: a quarter of the cores."
    )
    eval_every: int = Field(5000, ge=1, description="Steps between evaluations.")
    eval_every_late: int = Field(
        1000, ge=1, description="The same in the last fifth of the run, as the reference."
    )
    eval_batch: int = Field(256, ge=1, description="Images a batch of the evaluation.")
    log_every: int = Field(100, ge=1, description="Steps between lines of metrics.")
    checkpoint_every: int = Field(5000, ge=1, description="Steps between checkpoints.")
    max_time: float = Field(
        0.0, ge=0, description="Minutes after which to save and stop with exit 0; 0: no limit."
    )
    tensorboard: bool = Field(True, description="Write TensorBoard files.")

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python takes True for 1: steps=true would train one step.
        wants = str(cls.model_fields[info.field_name or ""].annotation)
        if value is False and "'off'" in wants:  # what YAML makes of the word
            return "off"
        if isinstance(value, bool) and "bool" not in wants:
            raise ValueError(f"{info.field_name} is {str(value).lower()}; wants another value")
        return value

    @model_validator(mode="after")
    def _possible(self) -> RunConfig:
        if isinstance(self.labels, int) and self.labels < 1:
            raise ValueError(f"labels is {self.labels}; wants at least 1, or all")
        if self.micro_batch and self.batch % self.micro_batch:
            raise ValueError(f"batch {self.batch} does not divide into {self.micro_batch} parts")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0; or type nesterov=false")
        return self
