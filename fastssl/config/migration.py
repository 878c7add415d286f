"""Translation of a YAML file of TorchSSL or USB, with a list of the keys that are dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fastssl.algorithms import ALGORITHMS
from fastssl.config.messages import describe
from fastssl.config.schema import RunConfig
from fastssl.config.yaml_files import read_yaml
from fastssl.errors import ConfigError

TABLES: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)


@dataclass(slots=True)
class Migration:
    """The translated keys, and for each key that was dropped the reason."""

    values: dict[str, Any] = field(default_factory=dict)
    algo: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the configuration as YAML."""
        content = {**self.values, **({"algo": self.algo} if self.algo else {})}
        return yaml.safe_dump(content, sort_keys=False)


def migrate(path: Path) -> Migration:
    """Translate their file and check the result as any configuration of ours."""
    theirs = {key: none(value) for key, value in read_yaml(path).items()}
    done = Migration()
    name = theirs.pop("algorithm", None) or theirs.pop("alg", None)
    if name is None:
        raise ConfigError(
            f"{path} names no algorithm (alg or algorithm)", "give a YAML of TorchSSL or USB"
        )
    theirs.pop("alg", None)
    plain = str(name).lower()
    done.values["algorithm"] = TABLES["algorithms"].get(
        plain, plain.replace("_", "").replace("-", "")
    )
    # From the registry: a file of somebody else's must not name code to load.
    settings = ALGORITHMS[done.values["algorithm"]].config.model_fields
    dataset(done, theirs)
    model(done, theirs)
    precision(done, theirs)
    if "optim" in theirs:  # SGD or AdamW
        done.values["optimizer"] = str(theirs.pop("optim")).lower()
    for key, value in theirs.items():
        translate_key(done, key, value, set(settings))
    check(done, path)
    return done


def none(value: Any) -> Any:
    """Return None for the text "None", which their files use."""
    return None if value == "None" else value


def dataset(done: Migration, theirs: dict[str, Any]) -> None:
    """Translate the name of the dataset; one that we do not have becomes `own`."""
    from pipelines.datasets import DATASETS

    name = str(theirs.pop("dataset", "cifar10")).lower()
    name = {"imagenet127": "imagenet"}.get(name, name)
    if name in DATASETS:
        done.values["data"] = name
        return
    done.values |= {"data": "own", "store": f"data/{name}"}
    done.lost["dataset"] = f"{name} is not built in: fastssl convert FOLDER data/{name}"


def model(done: Migration, theirs: dict[str, Any]) -> None:
    """Translate the network: TorchSSL's depth and width, or USB's wrn_28_2."""
    net = str(theirs.pop("net", "WideResNet"))
    depth, width = theirs.pop("depth", 28), theirs.pop("widen_factor", 2)
    low = net.lower()
    if low in ("wideresnet", "wideresnetvar"):
        done.values["model"] = f"wrn-{37 if 'var' in low else depth}-{width}"
    elif low.startswith("wrn_"):
        done.values["model"] = "-".join(part for part in low.replace("var", "").split("_") if part)
    elif low in TABLES["networks"]:
        done.values["model"] = TABLES["networks"][low]
    elif low == "resnet50":
        done.values["model"] = "resnet50"
    else:
        done.lost["net"] = f"{net} is not built in: type model=FILE.py:BUILD"


def precision(done: Migration, theirs: dict[str, Any]) -> None:
    """Turn mixed precision off if it was off there; ours is chosen automatically otherwise."""
    if not theirs.pop("amp", True):
        done.values["precision"] = "fp32"


def translate_key(done: Migration, key: str, value: Any, settings: set[str]) -> None:
    """Translate one key, or note why it is dropped."""
    if key in TABLES["same"]:
        if value is not None:
            done.values[TABLES["same"][key]] = value
        return
    ours = next((name for name in TABLES["settings"].get(key, ()) if name in settings), None)
    if ours is not None:
        # ReMixMatch has both ulb_loss_ratio and w_match: the specific one counts.
        if not (key == "ulb_loss_ratio" and "unlabeled_weight" in done.algo):
            done.algo[ours] = value
        return
    if key in TABLES["replaced"]:
        done.lost[key] = TABLES["replaced"][key]
    elif key in TABLES["built_in"] and TABLES["built_in"][key] == value:
        return
    elif key in TABLES["settings"]:
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
