"""Which reader to use: what fits in memory and what is installed, said in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import ConfigError
from pipelines.readers.base import READERS

if TYPE_CHECKING:
    from pipelines.store.store import Store

SHARE = 0.25  # of the free memory that a resident split may take
CGROUP = Path("/sys/fs/cgroup/memory.max")


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
    order = ("ffcv", "dali") if device == "cpu" or info.encoding == "raw" else ("dali", "ffcv")
    for name in order:
        kind = READERS[name]
        if kind.installed and kind.format in store.formats:
            return Choice(
                name,
                f"{name}: {size}, more than a quarter of the {_amount(free)} of free "
                f"{place}, so they are streamed from disk",
            )
    raise ConfigError(
        f"{size}, more than a quarter of the {_amount(free)} of free {place}, and no "
        f"streaming reader can read this store ({', '.join(store.formats)})",
        "pip install 'fastssl[dali]' or 'fastssl[ffcv]', or take reader=resident all the same",
    )


def free_memory(device: str) -> float:
    """Return the free bytes of the machine (or of its container), or of a GPU."""
    if device != "cpu":
        import torch

        return float(torch.cuda.mem_get_info(device)[0])
    import psutil

    free = float(psutil.virtual_memory().available)
    try:
        limit = CGROUP.read_text().strip()
    except OSError:
        return free
    return min(free, float(limit)) if limit.isdigit() else free


def _amount(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{max(size / 1e6, 0.1):,.1f} MB"
