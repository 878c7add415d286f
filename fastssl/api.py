"""The same verbs from Python: plain arguments in, plain objects out.

    fastssl.train("digits", algorithm="flexmatch", out="runs/a")
    fastssl.load("runs/a").predict("image.png").label

Everything heavy is imported when a function is called.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastssl.inference.predictor import Predictor
    from pipelines.store.store import Store

Place = str | os.PathLike[str]


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


def evaluate(
    run: Place, checkpoint: str = "best", store: Place | None = None, *, trust_code: bool = False
) -> dict[str, Any]:
    """Judge a run's model on its test set; errors are in percent.

    >>> import fastssl
    >>> figures = fastssl.evaluate("runs/a")
    >>> sorted(figures)[:5]
    ['accuracy', 'auc', 'checkpoint', 'class_accuracy', 'classes']
    """
    from fastssl.inference.evaluate import evaluate as evaluate_run

    place = os.fspath(store) if store is not None else None
    return evaluate_run(Path(run), checkpoint, place, trust_code=trust_code)


def convert(
    source: Place, out: Place | None = None, *, progress: bool = True, **options: Any
) -> Store:
    """Convert a standard data set, a folder of images or an `.npz`, and open the store.

    Options are the fields of `pipelines.convert.Options`: those of `fastssl convert`, with
    underscores.

    >>> import fastssl
    >>> store = fastssl.convert("digits", "digits_again")
    >>> store.classes, store.splits["test"].count
    (10, 360)
    """
    from fastssl.conversion import convert as run
    from pipelines.convert import Options

    place = Path(out) if out is not None else None
    return run(os.fspath(source), place, Options(**options), progress=progress)


def label(run: Place, store: Place, out: Place, **options: Any) -> dict[str, Any]:
    """Write the pseudo-labels of a store's unlabeled images; return what was written.

    >>> import fastssl
    >>> done = fastssl.label("runs/a", "digits_store", "pseudo.csv")
    >>> done["out"], done["written"] == done["images"]
    ('pseudo.csv', True)
    """
    from fastssl.inference.label import label as run_label

    return run_label(Path(run), os.fspath(store), Path(out), **options)


def export(
    run: Place, file: Place, checkpoint: str = "best", *, trust_code: bool = False
) -> dict[str, Any]:
    """Write a run's model as `.pt2`, `.onnx` or `.safetensors`, and check what was written.

    >>> import fastssl
    >>> fastssl.export("runs/a", "model.safetensors")["difference"]
    0.0
    """
    from fastssl.inference.export import export as run_export

    return run_export(Path(run), Path(file), checkpoint, trust_code=trust_code)


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
