"""What the verbs `convert` and `verify` call: the pipeline's offline half, with progress."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fastssl.errors import ConfigError
from fastssl.tracking.console import messages
from fastssl.tracking.progress_bar import Progress
from pipelines.convert import Options
from pipelines.convert import convert as write_store
from pipelines.convert.destination import refuse_filled
from pipelines.convert.open import open_source
from pipelines.datasets import DATASETS
from pipelines.store.store import Store, default_place, open_store
from pipelines.store.verify import Report
from pipelines.store.verify import verify as verify_store
from pipelines.text import for_terminal

logger = logging.getLogger(__name__)


def convert(source: str, out: Path | None, options: Options, *, progress: bool = True) -> Store:
    """Convert a standard dataset or one's own images; return the new store, opened."""
    place = _place(source, out)
    raw = open_source(source, options)
    with messages(quiet=not progress):
        if raw.terms:
            logger.info("terms of %s: %s", raw.name, raw.terms)
        for note in raw.notes:
            logger.info("%s", note)
        for warning in raw.warnings:
            logger.warning("%s", warning)
        options.load()  # before the bar, so that its rate is that of the work
        began = time.monotonic()
        total = sum(split.count for split in raw.splits.values())
        with _terminated(), Progress(total, f"converting {for_terminal(raw.name)}") as bar:
            write_store(raw, place, options, advance=bar.advance)
        store = open_store(place)
        logger.info("%s", _summary(store, time.monotonic() - began))
    return store


def _place(source: str, out: Path | None) -> Path:
    """Return where to write; an impossible place is refused before any work."""
    place = Path(out) if out is not None else default_place(Path(source).stem)
    folder = Path(source)
    if source not in DATASETS and folder.is_dir():
        inside = place.absolute().resolve()
        if inside == folder.resolve() or folder.resolve() in inside.parents:
            raise ConfigError(f"{place} lies inside {source}", "give an OUT outside the source")
    refuse_filled(place)
    return place


def _summary(store: Store, seconds: float) -> str:
    size = sum(entry.size for entry in store.manifest.files.values())
    splits = ", ".join(
        f"{info.count:,} {name} images of {info.width} x {info.height} ({info.encoding})"
        for name, info in store.splits.items()
    )
    skipped = len(store.manifest.skipped)
    left_out = f"; {skipped:,} files left out, see dataset.json" if skipped else ""
    forms = " and ".join(store.formats)
    return f"{splits}; {forms}, {size / 1e6:,.1f} MB in {seconds:.1f} s{left_out}"


@contextmanager
def _terminated() -> Iterator[None]:
    """Clean up after the first SIGTERM or Ctrl-C; a second one does not disturb that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, leave)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def verify(store: Path, sample: int | None = None, *, progress: bool = True) -> Report:
    """Check a store; the report counts the images checked and lists what is wrong."""
    with messages(quiet=not progress), Progress(0, f"verifying {for_terminal(str(store))}") as bar:

        def begin(total: int) -> None:
            bar.total = total

        return verify_store(Path(store), sample, begin=begin, advance=bar.advance)
