"""From a YAML file of TorchSSL or USB to ours, naming every key that could not be carried over."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fastssl.algorithms import find_algorithm
from fastssl.config.messages import describe
from fastssl.config.resolve import read_yaml
from fastssl.config.schema import RunConfig
from fastssl.errors import ConfigError

ALGORITHMS = {
    "pseudolabel_flex": "flexpl",
    "pseudo_label": "pseudolabel",
    "flexpseudolabel": "flexpl",
    "uda_flex": "flexuda",
    "flex_uda": "flexuda",
    "fixmatch_flex": "flexmatch",
    "pi_model": "pimodel",
    "mean_teacher": "meanteacher",
    "supervised": "supervised",
    "fully_supervised": "fullysupervised",
}
"""Their names where ours differ by more than case and dashes."""

SAME: dict[str, str] = {
    "num_train_iter": "steps",
    "num_eval_iter": "eval_every",
    "num_log_iter": "log_every",
    "num_labels": "labels",
    "batch_size": "batch",
    "eval_batch_size": "eval_batch",
    "uratio": "ratio",
    "ema_m": "ema",
    "lr": "lr",
    "momentum": "momentum",
    "weight_decay": "weight_decay",
    "seed": "seed",
    "clip": "clip",
    "clip_grad": "clip",
    "use_tensorboard": "tensorboard",
    "img_size": "image_size",
    "lb_imb_ratio": "imbalance",
    "ulb_imb_ratio": "unlabeled_imbalance",
    "include_lb_to_ulb": "include_labeled",
    "nesterov": "nesterov",
}
"""Keys whose value is ours as it stands."""

ALGO: dict[str, tuple[str, ...]] = {
    "p_cutoff": ("threshold",),
    "T": ("temperature",),
    "ulb_loss_ratio": ("unlabeled_weight",),
    "thresh_warmup": ("warmup",),
    "tsa_schedule": ("tsa",),
    "TSA_schedule": ("tsa",),
    "alpha": ("alpha",),
    "mixup_alpha": ("alpha",),
    "w_match": ("unlabeled_weight",),
    "w_kl": ("strong_weight",),
    "kl_loss_ratio": ("strong_weight",),
    "w_rot": ("rotation_weight",),
    "rot_loss_ratio": ("rotation_weight",),
    "warm_up": ("ramp",),
    "unsup_warm_up": ("ramp",),
    "ent_loss_ratio": ("fairness_weight", "entropy_weight"),
    "ema_p": ("decay",),
    "n_sigma": ("sigmas",),
    "dist_align": ("alignment",),
    "vat_eps": ("radius",),
}
"""Settings of an algorithm: the first of our names that it has."""

MEANINGLESS = {
    "save_dir": "--out names the run folder",
    "save_name": "--out names the run folder",
    "resume": "type --resume",
    "load_path": "type --resume, or init=RUN for weights alone",
    "overwrite": "a run folder is never overwritten",
    "epoch": "a run is counted in steps",
    "world_size": "torchrun says how many processes there are",
    "rank": "torchrun says which process this is",
    "multiprocessing_distributed": "start with torchrun",
    "dist_url": "torchrun sets it",
    "dist_backend": "chosen by the device",
    "gpu": "type device=cuda:N",
    "num_workers": "loader_threads, chosen by itself",
    "data_dir": "convert the data once: fastssl convert",
    "train_sampler": "there is one order, a function of the seed",
    "net_from_name": "model= takes names and files alike",
    "num_classes": "the store knows it",
    "use_wandb": "TensorBoard and metrics.jsonl are written",
    "use_aim": "TensorBoard and metrics.jsonl are written",
}
"""Keys that have no counterpart, and what stands in their place."""

DEFAULTS: dict[str, Any] = {
    "hard_label": True,
    "leaky_slope": 0.1,
    "dropout": 0.0,
    "layer_decay": 1.0,
    "use_cat": True,
    "use_DA": False,
    "use_flex": True,
    "optim": "SGD",
    "crop_ratio": 0.875,
    "num_warmup_iter": 0,
    "use_dm": True,
    "use_xe": True,
    "ulb_num_labels": None,
}
"""Keys that may be left out silently at the value our code has built in."""


@dataclass(slots=True)
class Migration:
    """What was carried over, and what was not and why."""

    values: dict[str, Any] = field(default_factory=dict)
    algo: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return our YAML."""
        content = {**self.values, **({"algo": self.algo} if self.algo else {})}
        return yaml.safe_dump(content, sort_keys=False)


def migrate(path: Path) -> Migration:
    """Read their file; the result is checked as any configuration of ours."""
    theirs = {key: none(value) for key, value in read_yaml(path).items()}
    done = Migration()
    name = theirs.pop("algorithm", None) or theirs.pop("alg", None)
    if name is None:
        raise ConfigError(
            f"{path} names no algorithm (alg or algorithm)", "give a YAML of TorchSSL or USB"
        )
    theirs.pop("alg", None)
    plain = str(name).lower()
    done.values["algorithm"] = ALGORITHMS.get(plain, plain.replace("_", "").replace("-", ""))
    settings = find_algorithm(done.values["algorithm"]).config.model_fields
    dataset(done, theirs)
    model(done, theirs)
    precision(done, theirs)
    for key, value in theirs.items():
        carry(done, key, value, set(settings))
    check(done, path)
    return done


def none(value: Any) -> Any:
    """Take their word None for nothing."""
    return None if value == "None" else value


def dataset(done: Migration, theirs: dict[str, Any]) -> None:
    """Name the data set, or say that it is one's own."""
    from pipelines.datasets import DATASETS

    name = str(theirs.pop("dataset", "cifar10")).lower()
    name = {"imagenet127": "imagenet"}.get(name, name)
    if name in DATASETS:
        done.values["data"] = name
        return
    done.values |= {"data": "own", "store": f"data/{name}"}
    done.lost["dataset"] = f"{name} is not in our table: fastssl convert FOLDER data/{name}"


def model(done: Migration, theirs: dict[str, Any]) -> None:
    """Name the network: TorchSSL's depth and width, or USB's wrn_28_2."""
    net = str(theirs.pop("net", "WideResNet"))
    depth, width = theirs.pop("depth", 28), theirs.pop("widen_factor", 2)
    low = net.lower()
    if low in ("wideresnet", "wideresnetvar"):
        done.values["model"] = f"wrn-{37 if 'var' in low else depth}-{width}"
    elif low.startswith("wrn_"):
        done.values["model"] = "-".join(part for part in low.replace("var", "").split("_") if part)
    elif low == "resnet50":
        done.values["model"] = "resnet50"
    else:
        done.lost["net"] = f"{net} is not built in: type model=FILE.py:BUILD"


def precision(done: Migration, theirs: dict[str, Any]) -> None:
    """Carry over mixed precision, which is chosen by itself unless it was off."""
    if not theirs.pop("amp", True):
        done.values["precision"] = "fp32"


def carry(done: Migration, key: str, value: Any, settings: set[str]) -> None:
    """Carry over one key, or note why not."""
    if key in SAME:
        if value is not None:
            done.values[SAME[key]] = value
        return
    ours = next((name for name in ALGO.get(key, ()) if name in settings), None)
    if ours is not None:
        # ReMixMatch has both ulb_loss_ratio and w_match: the particular one counts.
        if not (key == "ulb_loss_ratio" and "unlabeled_weight" in done.algo):
            done.algo[ours] = value
        return
    if key in MEANINGLESS:
        done.lost[key] = MEANINGLESS[key]
    elif key in DEFAULTS and DEFAULTS[key] == value:
        return
    elif key in ALGO:
        done.lost[key] = f"{done.values['algorithm']} has no such setting"
    else:
        done.lost[key] = "no counterpart is known"


def check(done: Migration, path: Path) -> None:
    """Raise if the result is not a valid configuration."""
    try:
        RunConfig.model_validate({**done.values, "algo": done.algo})
    except ValidationError as error:
        problems = describe(error, list(RunConfig.model_fields))
        lines = "".join(f"\n    {': '.join(filter(None, one))}" for one in problems)
        raise ConfigError(
            f"{path} cannot be translated:{lines}", "correct it there, then type the same again"
        ) from error
