"""What the user asks of `auto`: options, the folders below --out, and the command of each step."""

from __future__ import annotations

import json
import math
import os
import shlex
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from fastssl import models
from fastssl.config.resolve import ResolvedConfig
from fastssl.config.schema import keys_that_may_differ
from fastssl.engine.summary import trained_interpolation
from fastssl.errors import ConfigError
from fastssl.probing.probe import configure
from pipelines.convert import Options
from pipelines.convert.images import interpolation_option
from pipelines.sources.scan import Scan
from pipelines.store.manifest import digest

MINUTES, CHOSEN = 30.0, 25
INTERPOLATION = "interpolation"  # an input that follows from the weights; no option sets it
# Keys that `auto` sets itself, and what to type instead.
OWN = {
    "store": "give the folder of images",
    "data": "give the folder of images",
    "steps": "give the time with --minutes",
    "max_time": "give the time with --minutes",
}
# Keys that decide about the training alone; a probe is the same whatever they are.
_TRAINING = """
algorithm batch ratio accumulate freeze head_init drop_path optimizer lr warmup head_lr layer_decay
schedule muon_lr muon_momentum muon_rescale momentum nesterov weight_decay ema clip flip padding
augment_ops augment_first compile eval_every eval_every_late log_every checkpoint_every
"""
TRAINING = frozenset(_TRAINING.split())


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `auto`, and what follows from them."""

    folder: Path
    out: Path
    unlabeled: Path | None = None
    labels: Path | None = None
    test: Path | None = None
    minutes: float = MINUTES
    size: int | None = None
    choose: int | None = None  # images to choose for labeling
    overrides: dict[str, Any]
    trust_code: bool = False

    def __post_init__(self) -> None:
        """Refuse options that contradict each other, before any work."""
        if not 0 <= self.minutes < math.inf:
            raise ConfigError(f"--minutes is {self.minutes}", "give a number of minutes, 0 or more")
        if self.choose is not None and self.labels:
            raise ConfigError("--choose is given with --labels", "remove one of the two")
        if self.folder.is_dir() and self.out.resolve().is_relative_to(self.folder.resolve()):
            raise ConfigError(
                f"{self.out} lies inside {self.folder}", "give an --out outside the images"
            )
        for key in OWN.keys() & self.overrides.keys():
            raise ConfigError(f"{key} is chosen by auto", f"remove it; {OWN[key]}")

    @property
    def store(self) -> Path:
        """Folder of the store."""
        return self.out / "store"

    @property
    def bare_store(self) -> Path:
        """Folder of the store from which images are chosen to be labeled."""
        return self.out / "unlabeled"

    @property
    def to_label(self) -> Path:
        """The list of images to label."""
        return self.out / "to_label.csv"

    @property
    def probe(self) -> Path:
        """Run folder of the probe."""
        return self.out / "probe"

    @property
    def run(self) -> Path:
        """Run folder of the fine-tuning."""
        return self.out / "train"

    @property
    def report(self) -> Path:
        """The report on both runs."""
        return self.out / "report.html"

    @cached_property
    def probe_overrides(self) -> dict[str, Any]:
        """The settings of the probe: those that do not belong to the training alone."""
        given = self.overrides.items()
        return {key: value for key, value in given if key not in TRAINING and key[:5] != "algo."}

    @cached_property
    def network(self) -> ResolvedConfig:
        """The configuration of the probe, which has the network and its weights."""
        return configure(str(self.store), self.probe_overrides, trust_code=self.trust_code)

    @cached_property
    def side(self) -> int | None:
        """Side of the stored images: --size, else that of the weights; None: what convert takes."""
        config = self.network.config
        own = models.own_inputs(config.model) if config.pretrained and not self.size else None
        return own.size[0] if own else self.size

    @cached_property
    def interpolation(self) -> str:
        """Interpolation of the stored images: that of the weights."""
        return trained_interpolation(self.network.config) or "bicubic"

    def options(self) -> Options:
        """Return the options of the conversion."""
        return Options(
            size=self.side,
            interpolation=self.interpolation,
            unlabeled=self.unlabeled,
            labels=self.labels,
            test=self.test,
        )

    def command(self, labels: Path) -> str:
        """Return this call of `auto`, with labels."""
        options = {
            **{"--out": self.out, "--labels": labels, "--unlabeled": self.unlabeled},
            **{"--test": self.test, "--size": self.size},
            "--minutes": None if self.minutes == MINUTES else f"{self.minutes:g}",
        }
        consent = ["--trust-code"] if self.trust_code else []
        return typed("auto", self.folder, *settings(self.overrides), *flags(options), *consent)

    def convert_command(self) -> str:
        """Return the command that converts the images."""
        options = {
            **{"--size": self.side, "--unlabeled": self.unlabeled},
            **{"--labels": self.labels, "--test": self.test},
        }
        method = interpolation_option(self.interpolation)
        return typed("convert", self.folder, self.store, *flags(options), *method)

    def store_inputs(self) -> dict[str, Any]:
        """Return what decides the content of the store, as typed on the command line."""
        given = {"FOLDER": self.folder, "--unlabeled": self.unlabeled, "--test": self.test}
        given["--labels"] = self.labels
        found: dict[str, Any] = {key: path and os.path.abspath(path) for key, path in given.items()}
        found |= {"--size": self.side, INTERPOLATION: self.interpolation}
        return {**found, "content of --labels": content(self.labels)}

    def choice_inputs(self) -> dict[str, Any]:
        """Return what decides which images are chosen to be labeled."""
        found = {"FOLDER": os.path.abspath(self.folder), "--size": self.side}
        found[INTERPOLATION] = self.interpolation
        return {**found, "--choose": self.choose or CHOSEN, **lasting(self.probe_overrides)}

    def training_inputs(self) -> dict[str, Any]:
        """Return what decides the fine-tuning."""
        return {"--minutes": self.minutes, **lasting(self.overrides)}

    def without_labels(self) -> bool:
        """Return True if the folder holds images, none of them in a class folder."""
        if self.labels or not self.folder.is_dir():
            return False
        scan = Scan(self.folder.absolute())
        return bool(scan.loose()) and not any(any(scan.images(one)) for one in scan.folders())


OPTIONS = frozenset(one.name for one in fields(Request)) - {"folder", "out", "overrides"}


def content(file: Path | None) -> str | None:
    """Return a checksum of a file."""
    return digest(file) if file and file.is_file() else None


def lasting(overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that must be the same when the command is typed again."""
    free = keys_that_may_differ("resume")
    return {key: value for key, value in overrides.items() if key not in free}


def flags(options: dict[str, Any]) -> list[str]:
    """Return options with their values, without those that are None."""
    return [str(one) for pair in options.items() if pair[1] is not None for one in pair]


def settings(overrides: dict[str, Any]) -> list[str]:
    """Return settings as key=value."""
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in overrides.items()
    ]


def typed(*parts: object) -> str:
    """Return a command as a shell takes it."""
    return shlex.join(["fastssl", *map(str, parts)])
