"""Which reader to use: what fits in memory and what is installed, said in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.errors import ConfigError
from pipelines.memory import free_memory
from pipelines.readers.base import READERS, streaming

if TYPE_CHECKING:
    from pipelines.store.store import Store

SHARE = 0.25  # of the free memory that a resident split may take


@dataclass(frozen=True)
class Choice:
    """A reader's name and why it was chosen."""

    name: str
    sentence: str


def choose(
    store: Store, split: str, *, wanted: str = "auto", device: str = "cpu", ranks: int = 1
) -> Choice:
    """Choose a reader for a split; `ranks` processes of this machine will each open one."""
    if wanted != "auto":
        kind = READERS[wanted]
        return Choice(wanted, f"{wanted}: as asked for ({kind.summary})")
    info = store.splits[split]
    need = info.count * info.height * info.width * 3
    free = free_memory(device) / ranks
    size = f"{info.count:,} images of {info.height}×{info.width} take {_amount(need)}"  # noqa: RUF001
    place = "memory" if device == "cpu" else "GPU memory"
    if need <= SHARE * free:
        return Choice("resident", f"resident: {size} of {_amount(free)} of free {place}")
    # A GPU decodes JPEG faster than the CPU; raw pixels need no decoder, only a copy.
    on_gpu = device != "cpu" and info.encoding != "raw"
    for name in sorted(streaming(store), key=lambda name: READERS[name].decodes_on_gpu != on_gpu):
        return Choice(
            name,
            f"{name}: {size}, more than a quarter of the {_amount(free)} of free {place}, so they "
            "are streamed from disk",
        )
    raise ConfigError(
        f"{size}, more than a quarter of the {_amount(free)} of free {place}, and no "
        f"streaming reader can read this store ({', '.join(store.formats)})",
        "pip install 'fastssl[dali]' or 'fastssl[ffcv]', or take reader=resident all the same",
    )


def _amount(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{max(size / 1e6, 0.1):,.1f} MB"
