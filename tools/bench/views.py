"""Our views against Pillow, torchvision, DALI and FFCV."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from fastssl.profiling import views
from fastssl.profiling.measure import Case, interleave
from fastssl.profiling.subjects import ViewsOptions
from tools.bench.view_peers import PEERS

ALL = ("pil", "torchvision", "dali", "ffcv")


def run(options: ViewsOptions, against: tuple[str, ...] = ALL) -> dict[str, Any]:
    """Measure our kernels and the peers; return the record."""
    makers = {name: PEERS[name] for name in against}  # unknown names are errors before any work
    work = views.make_work(options)
    own = views.cases(options, work)
    cases: dict[str, Case] = {}
    with ExitStack() as stack:
        for threads in options.threads:
            for name, make in makers.items():
                peer = make(work, threads)
                stack.callback(peer.close)
                cases[f"{name} {threads}"] = views.timed(peer, options.seconds)
            cases[f"fastssl {threads}"] = own.pop(f"fastssl {threads}")
        measured = interleave({**cases, **own}, options.repetitions)
    record = views.record(options, work, measured)
    most = max(options.threads)
    ours = measured[f"fastssl {most}"].median
    ratio = {name: round(ours / measured[f"{name} {most}"].median, 2) for name in against}
    record["ratio"] = {**ratio, **record["ratio"]}
    return record
