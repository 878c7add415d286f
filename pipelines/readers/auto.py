"""The choice of a reader (`reader=auto`): by free memory and by what is installed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.errors import ConfigError
from pipelines.extras import install_line
from pipelines.memory import free_memory
from pipelines.readers.base import READERS, streaming

if TYPE_CHECKING:
    from pipelines.store.store import Store

SHARE = 0.25  # of the free memory, for a resident split


@dataclass(frozen=True)
class Choice:
    """A reader's name and a sentence that gives the reason."""

    name: str
    sentence: str


def choose(
    store: Store, split: str, *, wanted: str = "auto", device: str = "cpu", world: int = 1
) -> Choice:
    """Choose a reader for a split that each rank of this machine opens.

    How many they are torchrun says; without it, all `world` ranks are on this machine.
    """
    if wanted != "auto":
        return Choice(wanted, f"{wanted}: as configured ({READERS[wanted].summary})")
    info = store.splits[split]
    need = info.count * info.height * info.width * 3
    free = free_memory(device) / int(os.environ.get("LOCAL_WORLD_SIZE", world))
    size = f"{info.count:,} images of {info.height}×{info.width} take {_amount(need)}"  # noqa: RUF001
    memory = "memory" if device == "cpu" else "GPU memory"
    if need <= SHARE * free:
        return Choice("resident", f"resident: {size} of {_amount(free)} of free {memory}")
    too_large = f"{size}, more than a quarter of the {_amount(free)} of free {memory}"
    # A GPU decodes JPEG faster than the CPU; raw pixels need no decoder, only a copy.
    on_gpu = device != "cpu" and info.encoding != "raw"
    names = sorted(streaming(store), key=lambda name: READERS[name].decodes_on_gpu != on_gpu)
    if names:
        return Choice(names[0], f"{names[0]}: {too_large}, so they are streamed from disk")
    raise ConfigError(
        f"{too_large}, and no streaming reader can read this store ({', '.join(store.formats)})",
        f"{install_line(store.formats[-1])}; or type reader=resident to load it anyway",
    )


def _amount(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{max(size / 1e6, 0.1):,.1f} MB"
