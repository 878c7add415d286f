"""Several ranks without torchrun's own start: processes forked from one that has torch already.

They join as torchrun's would, by the variables that it sets and through a store that the starting
process hosts; `tests/e2e` uses torchrun itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

from tests.process_output import PATIENCE
from tests.runs import TINY, _server


@dataclass(frozen=True)
class Started:
    """The processes of all ranks, and the store through which they meet."""

    children: list[Any]
    store: TCPStore


def start(world: int, work: Callable[..., None], *arguments: Any) -> Started:
    """Start `work(rank, *arguments)` on every rank."""
    # The store listens on its port from the moment the system chooses it until the ranks have
    # ended. A port that is chosen first and bound later may be given to another process.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    given = (world, store.port, dict(os.environ), work, *arguments)
    children = [
        _server.Process(target=_join, args=(rank, *given), daemon=True) for rank in range(world)
    ]
    for child in children:
        child.start()
    return Started(children, store)


def wait(started: Started) -> list[int]:
    """Wait for all ranks and return their exit codes; a hanging one fails the test."""
    children = started.children
    for child in children:
        child.join(PATIENCE)
    hanging = [place for place, child in enumerate(children) if child.exitcode is None]
    for place in hanging:
        children[place].kill()
    assert not hanging, f"ranks {hanging} hang"
    return [child.exitcode for child in children]


def _join(
    rank: int,
    world: int,
    port: int,
    environment: dict[str, str],
    work: Callable[..., None],
    *arguments: Any,
) -> None:
    os.environ.update(environment)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # rank 0 connects, too, and hosts nothing
    work(rank, *arguments)


def train(
    world: int,
    out: Path,
    *words: str,
    resume: bool = False,
    only: dict[int, list[str]] | None = None,
    before: Callable[[int], None] | None = None,
) -> list[int]:
    """Train tiny digits on several ranks; `only` gives a rank words of its own."""
    return wait(start_training(world, out, *words, resume=resume, only=only, before=before))


def start_training(
    world: int,
    out: Path,
    *words: str,
    resume: bool = False,
    only: dict[int, list[str]] | None = None,
    before: Callable[[int], None] | None = None,
) -> Started:
    """Start a training; each rank's stderr goes to OUT.rank-N."""
    return start(world, _train, str(out), list(words), resume, only or {}, before)


def _train(
    rank: int,
    out: str,
    words: list[str],
    resume: bool,
    only: dict[int, list[str]],
    before: Callable[[int], None] | None,
) -> None:
    sys.stderr = open(f"{out}.rank-{rank}", "a", buffering=1)  # noqa: SIM115
    if before:
        before(rank)
    from fastssl.cli import command

    arguments = ["fastssl", "train", "digits", *TINY, *words, *only.get(rank, []), "--out", out]
    sys.argv = [*arguments, "--resume"] if resume else arguments
    command.main()


def message(out: Path, rank: int) -> str:
    """Return what a rank wrote to stderr."""
    return Path(f"{out}.rank-{rank}").read_text()


def in_double(rank: int) -> None:
    """Compute in double precision: then ranks differ from one process by rounding alone.

    In single precision equal runs part within some steps, as they do with 1 and 2 threads: the
    order of additions differs, and training amplifies it.
    """
    from fastssl.engine import build

    real = build.build_model

    def build_model(*arguments: Any) -> Any:
        model = real(*arguments).double()
        model.register_forward_pre_hook(_widen)
        return model

    build.build_model = build_model


def _widen(model: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.double() for one in arguments)
