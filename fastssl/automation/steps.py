"""The steps of `auto`, in their order. Each prints the command that does it alone.

A step whose result is complete is not done again, so that the same command goes on after any
interruption. The store, the features and the training continue or begin anew by their own means.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastssl import models
from fastssl.automation import budget, choice
from fastssl.automation.request import CHOSEN, INTERPOLATION, Request, lasting, settings, typed
from fastssl.automation.state import State, claimed
from fastssl.config.resolve import flatten, load, parse_overrides
from fastssl.conversion import convert as run_convert
from fastssl.engine.build import read_weights
from fastssl.engine.launch import run_training
from fastssl.errors import DataError
from fastssl.models import pretrained
from fastssl.probing.choose import choose as run_choose
from fastssl.probing.probe import fit_probe
from fastssl.report import write as write_report
from fastssl.tracking.console import messages
from fastssl.tracking.run_dir import RunFolder
from pipelines.convert import Options
from pipelines.convert.images import interpolation_option
from pipelines.convert.open import check_source
from pipelines.sources.folder import refuse_untrained, tested_classes
from pipelines.sources.label_file import read_list
from pipelines.sources.scan import Scan
from pipelines.store.manifest import NAME as MANIFEST
from pipelines.store.store import Store, open_store
from pipelines.text import for_terminal, listed

logger = logging.getLogger(__name__)
PROBED = "probe.json"  # the last file that a probe writes


def auto(
    folder: str | os.PathLike[str],
    overrides: list[str] | dict[str, Any] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Convert, probe, fine-tune, evaluate and report; return the better run and the report.

    For a folder without any label, return the list of images to label. `options` are the other
    fields of `Request`.
    """
    given = overrides if isinstance(overrides, dict) else parse_overrides(overrides or [])
    images = Path(folder)
    place = Path(out) if out is not None else default_folder(images)
    for key in ("unlabeled", "labels", "test"):
        options[key] = Path(options[key]) if options.get(key) is not None else None
    request = Request(folder=images, out=place, overrides=flatten(given), **options)
    with messages(), claimed(request.out) as state:
        if request.without_labels() and not complete(request.store):
            return choose_images(request, state)
        check(request, state)
        store = convert(request, state)
        probe(request, state, store)
        runs = [("probe", request.probe)]
        if train(request, state, store):
            runs.append(("fine-tuned", request.run))
        rows = evaluate(request, store, runs)
        best, why = choice.choose(rows)
        return {
            "run": best["run"],
            "next": typed("predict", best["run"], "IMAGES"),
            "best": f"{best['model']}: {why}",
            "runs": rows,
            "report": report(request, [path for _, path in runs]),
        }


def default_folder(images: Path) -> Path:
    """Return runs/NAME-auto."""
    return Path("runs") / f"{images.absolute().name or 'own'}-auto"


def show(number: str, command: str, done: object = None) -> None:
    """Log the line of a step: the command that does it alone, or that it is done."""
    state = f": done before, {done}" if done else ""
    logger.info(for_terminal(f"{number}{state}: {command}"))


def complete(store: Path) -> bool:
    """Return True if a store was converted to its end."""
    return (store / MANIFEST).exists()


def check(request: Request, state: State) -> None:
    """Refuse other options than those of the products that exist, and what cannot succeed."""
    converted, probed = complete(request.store), (request.probe / PROBED).exists()
    trained = RunFolder(request.run).started()
    state.check("store", request.store_inputs(), request.store, exists=converted)
    state.check("probe", lasting(request.probe_overrides), request.probe, exists=probed)
    state.check("asked", request.training_inputs(), request.run, exists=trained)
    name, given = budget.configuration(request)
    load(name, given, trust_code=request.trust_code)  # reports wrong settings of the training
    if not converted:
        check_images(request)
        check_labels(request)
    if not probed:
        check_weights(request)


def check_images(request: Request) -> None:
    """Raise if the images to convert are not there."""
    check_source(str(request.folder))
    for folder in filter(None, (request.unlabeled, request.test)):
        Scan(request.folder.absolute()).at(folder)


def check_labels(request: Request) -> None:
    """Raise if a list of labels does not have two classes, or not those of the test images."""
    if request.labels is None:
        return
    found = read_list(request.labels, request.folder.absolute()).values()
    names = {one.label for one in found} - {""}
    if len(names) < 2:
        raise DataError(
            f"the labels in {request.labels} are of one class",
            "label images of at least two classes, then type the same command",
        )
    refuse_untrained(names, classes_of_test(request))


def classes_of_test(request: Request) -> list[str]:
    """Return the classes of the test images: without --test none."""
    if request.test is None:
        return []
    return sorted(tested_classes(Scan(request.folder.absolute()).at(request.test)))


def check_weights(request: Request) -> None:
    """Raise before any work if the weights of the network are not there."""
    config = request.network.config
    own = models.own_inputs(config.model) if config.pretrained else None
    if own and config.pretrained is True:
        pretrained.download(config.model, own.size)
    elif config.pretrained:
        read_weights(config)


def choose_images(request: Request, state: State) -> dict[str, Any]:
    """Convert images of which none has a label, and list those to label first."""
    exists, done = request.to_label.exists(), complete(request.bare_store)
    inputs = request.choice_inputs()
    images = {key: inputs[key] for key in ("FOLDER", "--size", INTERPOLATION)}
    state.check("unlabeled", images, request.bare_store, exists=done)
    state.check("choose", inputs, request.to_label, exists=exists)
    tested = classes_of_test(request)
    if not exists:
        check_weights(request)
    options = Options(no_labels=True, size=request.side, interpolation=request.interpolation)
    sized = ["--size", request.side] if request.side else []
    sized += interpolation_option(request.interpolation)
    command = typed("convert", request.folder, request.bare_store, "--no-labels", *sized)
    show("1/2 convert", command, request.bare_store if done else None)
    if not done:
        state.record("unlabeled", images)
        run_convert(str(request.folder), request.bare_store, options)
    count, sheet = request.choose or CHOSEN, request.to_label.with_suffix(".html")
    given = settings(request.probe_overrides)
    parts = ["choose", request.bare_store, *given, "-n", count, "--out", request.to_label]
    done = request.to_label.exists() and (sheet.exists() or filled(request))
    show("2/2 choose", typed(*parts), request.to_label if done else None)
    if not done:
        state.record("choose", inputs)
        run_choose(
            str(request.bare_store),
            count,
            out=request.to_label,
            overrides=request.probe_overrides,
            trust_code=request.trust_code,
        )
    if tested:
        logger.warning(
            f"label an image of each class that {request.test} has, if need be by more lines of "
            f"path,label in {request.to_label}: {listed(tested)}"
        )
    following = request.command(request.to_label)
    return {"to_label": str(request.to_label), "sheet": str(sheet), "next": following}


def filled(request: Request) -> bool:
    """Return True if the list of images to label has a label: it is the user's work then."""
    try:
        return bool(read_list(request.to_label, request.folder.absolute()))
    except DataError:
        return False


def timed(state: State, name: str, work: Callable[[], object]) -> None:
    """Do a step and record how long it took."""
    began = time.monotonic()
    try:
        work()
    except KeyboardInterrupt:
        logger.info("interrupted; type the same command to continue")
        raise
    state.add_seconds(name, time.monotonic() - began)


def convert(request: Request, state: State) -> Store:
    """Convert the images, if that is not done."""
    done = complete(request.store)
    show("1/5 convert", request.convert_command(), request.store if done else None)
    if not done:
        state.record("store", request.store_inputs())
        folder, options = str(request.folder), request.options()
        timed(state, "convert", lambda: run_convert(folder, request.store, options))
    return open_store(request.store)


def probe(request: Request, state: State, store: Store) -> None:
    """Fit classifiers to frozen features, if that is not done."""
    images = {"content of FOLDER": store.fingerprint}
    given = request.probe_overrides
    command = typed("probe", request.store, *settings(given), "--out", request.probe)
    done = (request.probe / PROBED).exists()
    # A store that was deleted is converted again, perhaps from other images.
    state.check("images", images, request.probe, exists=done)
    show("2/5 probe", command, request.probe if done else None)
    if done:
        return
    begun = "probe" in state.content  # what a killed probe has written is replaced
    state.record("images", images)
    state.record("probe", lasting(given))
    timed(state, "probe", lambda: fit_probe(request.network, request.probe, replace=begun))


def train(request: Request, state: State, store: Store) -> bool:
    """Fine-tune from the probe if the time allows; return True if there is a trained run."""
    chosen = planned(request, state, store)
    if "why" in chosen:
        logger.info(for_terminal(f"3/5 train: left out: {chosen['why']}"))
        return False
    name, given = budget.configuration(request)
    done = RunFolder(request.run).finished_steps() == chosen["steps"]
    chosen = {**chosen, **given}
    parts = ["train", name, *settings(chosen), "--out", request.run, "--resume"]
    show("3/5 train", typed(*parts), request.run if done else None)
    if not done:
        resolved = load(name, chosen, trust_code=request.trust_code)
        code = run_training(resolved, request.run, resume=True, dry_run=False)
        if code:
            raise KeyboardInterrupt if code == 130 else SystemExit(code)
    return True


def planned(request: Request, state: State, store: Store) -> dict[str, Any]:
    """Return what an earlier call has chosen, or as many steps as fit into the time."""
    asked, saved = request.training_inputs(), state.content.get("train")
    if saved and state.content.get("asked") == asked:
        return dict(saved)
    if not ("test" in store.splits or request.overrides.get("validation")):
        return {
            "why": "no image would show whether it is better than the probe; give --test DIR or "
            "validation=0.2, and another --out"
        }
    chosen = budget.plan(request, store, state.spent())
    state.record("train", chosen)
    state.record("asked", asked)
    return chosen


def evaluate(request: Request, store: Store, runs: list[tuple[str, Path]]) -> list[choice.Row]:
    """Evaluate the models on the test images."""
    if "test" in store.splits:
        show("4/5 eval", "; ".join(typed("eval", path) for _, path in runs))
    else:
        logger.info("4/5 eval: left out: there are no test images; --test DIR gives some")
    consent = request.trust_code
    return [choice.measure(kind, path, store, trust_code=consent) for kind, path in runs]


def report(request: Request, runs: list[Path]) -> str:
    """Write the report on the runs."""
    show("5/5 report", typed("report", *runs, "--out", request.report))
    write_report(runs, request.report)
    return str(request.report)
