"""The same verbs from Python: plain arguments in, plain objects out.

    fastssl.train("digits", algorithm="flexmatch", out="runs/a")
    fastssl.load("runs/a").predict("image.png").label

Everything heavy is imported when a function is called.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pipelines.errors import UserError

if TYPE_CHECKING:
    from fastssl.inference.predictor import Predictor
    from pipelines.store.store import Store

Place = str | os.PathLike[str]
P = ParamSpec("P")
R = TypeVar("R")
_PIP = "force-reinstall|no-deps"  # options of pip, not of fastssl
_FLAG = re.compile(rf"--(?!{_PIP})([a-z][a-z-]+)(?: ([A-Z]+|[0-9.]+|best|last|skip)\b)?")
_SWITCHES = {"resume", "accept-changes", "trust-code", "download", "follow", "given", "dry-run"}
_SWITCHES |= {"no-extra", "rerun-changed", "no-labels", "per-class"}


def speaks_python(function: Callable[P, R]) -> Callable[P, R]:
    """Let errors of a function name its arguments instead of the options of the command."""

    def argument(flag: re.Match[str]) -> str:
        value = "True" if flag[1] in _SWITCHES else flag[2] or ""
        return f"{flag[1].replace('-', '_')}={value}"

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return function(*arguments, **named)
        except UserError as error:
            # A whole command stays as it is.
            texts = (error.what, error.fix)
            error.what, error.fix = (
                text if "fastssl " in text else _FLAG.sub(argument, text) for text in texts
            )
            error.args = (error.what, error.fix)
            raise

    return call


@speaks_python
def train(
    config: Place = "digits",
    *,
    out: Place | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    trust_code: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Train a run and return its summary; settings are those of `fastssl config`.

    What belongs to the algorithm goes into a dict: `algo={"threshold": 0.9}`.

    >>> import fastssl
    >>> tiny = dict(steps=2, batch=10, ratio=1, eval_every=2, tensorboard=False)
    >>> summary = fastssl.train("digits", algorithm="fixmatch", labels=40, out="runs/b", **tiny)
    >>> summary["steps"], summary["run"], 0 <= summary["best_error"] <= 100
    (2, 'runs/b', True)
    """
    from fastssl.config.resolve import load as load_config
    from fastssl.engine.launch import default_folder, run_training

    resolved = load_config(os.fspath(config), settings, trust_code=trust_code)
    folder = Path(out) if out is not None else default_folder(resolved)
    code = run_training(resolved, folder, resume, False, accept_changes=accept_changes)
    if code:
        raise KeyboardInterrupt(f"stopped by a signal and saved: {folder}")
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {"run": str(folder), **found}


@speaks_python
def probe(
    store: Place, *, out: Place | None = None, trust_code: bool = False, **settings: Any
) -> dict[str, Any]:
    """Fit classifiers to frozen features of a store's images; the best becomes a run.

    Settings are those of `fastssl config`, such as `model`, `labels` and `seed`.

    >>> import fastssl
    >>> done = fastssl.probe("digits_store", out="runs/probe", model="wrn-10-1")
    >>> [row["head"] for row in done["heads"]][:3], done["run"]
    (['linear', 'knn', 'spreading'], 'runs/probe')
    """
    from fastssl.probing.probe import probe as run_probe

    folder = Path(out) if out is not None else None
    return run_probe(os.fspath(store), folder, settings, trust_code=trust_code)


@speaks_python
def choose(
    store: Place,
    count: int,
    *,
    out: Place | None = None,
    per_class: bool = False,
    form: str = "csv",
    run: Place | None = None,
    trust_code: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Write which images of a store to label first; settings are those of the model."""
    from fastssl.probing.choose import choose as run_choose

    return run_choose(
        os.fspath(store),
        count,
        per_class=per_class,
        out=Path(out) if out is not None else None,
        form=form,
        run=Path(run) if run is not None else None,
        overrides=settings,
        trust_code=trust_code,
    )


@speaks_python
def auto(folder: Place, *, out: Place | None = None, **options: Any) -> dict[str, Any]:
    """Convert, probe, fine-tune, evaluate and report; a second call continues the first.

    Options are those of `fastssl auto` (`unlabeled`, `labels`, `test`, `minutes`, `size`, `choose`,
    `trust_code`) and the settings of `fastssl config`. If no image has a label, the result names
    the list of images to label.
    """
    from fastssl.automation.request import OPTIONS
    from fastssl.automation.steps import auto as run_auto

    settings = {key: value for key, value in options.items() if key not in OPTIONS}
    given = {key: value for key, value in options.items() if key in OPTIONS}
    return run_auto(folder, settings, out=out, **given)


@speaks_python
def load(
    run: Place, checkpoint: str = "best", device: str | None = None, *, trust_code: bool = False
) -> Predictor:
    """Open the model of a run: `.predict(x)`, `.features(x)`, `.classes`.

    >>> import fastssl
    >>> model = fastssl.load("runs/a")
    >>> prediction = model.predict("digit.png")
    >>> round(sum(share for _, share in prediction.top5), 3) <= 1
    True
    """
    from fastssl.inference.predictor import Predictor

    return Predictor(run, checkpoint, device, trust_code=trust_code)


@speaks_python
def evaluate(
    run: Place, checkpoint: str = "best", store: Place | None = None, *, trust_code: bool = False
) -> dict[str, Any]:
    """Evaluate a run's model on its test set; errors are in percent.

    >>> import fastssl
    >>> metrics = fastssl.evaluate("runs/a")
    >>> sorted(metrics)[:5]
    ['accuracy', 'auc', 'checkpoint', 'class_accuracy', 'classes']
    """
    from fastssl.inference.evaluate import evaluate as evaluate_run

    other = os.fspath(store) if store is not None else None
    return evaluate_run(Path(run), checkpoint, other, trust_code=trust_code)


@speaks_python
def convert(
    source: Place, out: Place | None = None, *, progress: bool = True, **options: Any
) -> Store:
    """Convert a standard dataset, a folder of images or an `.npz`, and open the store.

    Options are the fields of `pipelines.convert.Options`: those of `fastssl convert`, with
    underscores.

    >>> import fastssl
    >>> store = fastssl.convert("digits", "digits_again")
    >>> store.classes, store.splits["test"].count
    (10, 360)
    """
    from fastssl.conversion import convert as run
    from pipelines.convert import Options

    folder = Path(out) if out is not None else None
    return run(os.fspath(source), folder, Options(**options), progress=progress)


@speaks_python
def label(run: Place, store: Place, out: Place, **options: Any) -> dict[str, Any]:
    """Write the pseudo-labels of a store's unlabeled images; return what was written.

    >>> import fastssl
    >>> done = fastssl.label("runs/a", "digits_store", "pseudo.csv")
    >>> done["out"], done["written"] == done["images"]
    ('pseudo.csv', True)
    """
    from fastssl.inference.label import label as run_label
    from fastssl.probing.probe import refit

    return run_label(Path(run), os.fspath(store), Path(out), refit=refit, **options)


@speaks_python
def export(
    run: Place, file: Place, checkpoint: str = "best", *, trust_code: bool = False
) -> dict[str, Any]:
    """Write a run's model as `.pt2`, `.onnx` or `.safetensors`, and check what was written.

    >>> import fastssl
    >>> fastssl.export("runs/a", "model.pt2")["difference"] < 1e-4
    True
    """
    from fastssl.inference.export import export as run_export

    return run_export(Path(run), Path(file), checkpoint, trust_code=trust_code)


@speaks_python
def profile(subject: str, **options: Any) -> dict[str, Any]:
    """Measure one subject (`views`, `step`, `cpl`, `train`…) and return its record.

    Options are those of `fastssl profile SUBJECT`.

    >>> import fastssl
    >>> fastssl.profile("nothing")
    Traceback (most recent call last):
    pipelines.errors.ConfigError: there is nothing to profile named 'nothing'
      fix: use one of: views, convert, cpl, step, train, plan
    """
    from fastssl.profiling.subjects import profile as measure

    return measure(subject, **options)


@speaks_python
def make_report(runs: Place | Sequence[Place], out: Place, format: str | None = None) -> str:
    """Write a report on runs, or folders of runs, beside the published results.

    >>> import fastssl
    >>> fastssl.make_report("runs/a", "report.md").startswith("report.md")
    True
    """
    from fastssl.report import write

    given = [runs] if isinstance(runs, str | os.PathLike) else runs
    return write([Path(run) for run in given], Path(out), format)


@speaks_python
def draw_views(
    config: Place = "digits", out: Place = "views.png", *, trust_code: bool = False, **settings: Any
) -> str:
    """Draw the weak and strong views of some training images into a PNG file.

    >>> import fastssl
    >>> fastssl.draw_views("digits", "views.png")
    'views.png: images of digits, original | weak | strong x 4'
    """
    from fastssl.config.resolve import load as load_config
    from fastssl.engine.view_sheet import write_sheet

    return write_sheet(load_config(os.fspath(config), settings, trust_code=trust_code), Path(out))


@speaks_python
def run_sweep(file: Place, **options: Any) -> int:
    """Train a grid of runs; return 0, or the exit code of the first run that failed.

    Options are those of `fastssl sweep`: jobs, dry_run, only, out, trust_code, rerun_changed.
    """
    from fastssl.sweep.runner import run

    return run(os.fspath(file), **options)
