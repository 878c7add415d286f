"""The number and the size of the collectives in one training step.

They are counted, not timed: torch's fake process group answers every collective at once, so a
single process shows what each of many ranks would send.
"""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STEP = 2  # the step that is counted: DDP rebuilds its buckets after the first one


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of every collective and the bytes that this rank sends."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func.overloadpacket.__name__.strip("_")
            # A gather's first argument is its output.
            sent = args[1] if "gather" in name else args[0]
            tensors = [one for one in tree_leaves(sent) if isinstance(one, Tensor)]
            self.calls[name] += 1
            self.bytes[name] += sum(one.numel() * one.element_size() for one in tensors)
        return func(*args, **(kwargs or {}))


def count(
    model: str, batch: int, size: int, world: int, algorithm: str = "flexmatch", images: int = 5000
) -> dict[str, Any]:
    """Return calls and bytes of one rank in one step, in total and by kind.

    On a CPU the stop request is part of one of them. On CUDA it is a separate collective of 8 bytes
    over gloo in every tenth step, which is not counted here.
    """
    if world == 1:
        return {"ranks": 1, "calls": 0, "bytes": 0, "kinds": {}}
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from fastssl.algorithms import ALGORITHMS
    from fastssl.distributed.collectives import Ranks
    from fastssl.engine.loop import train_step
    from fastssl.profiling.synthetic import make_batch, synthetic_learner

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    with warnings.catch_warnings(), ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        # As in a training: a kernel of 1x1 has one layout, of which DDP warns all the same.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        ranks = Ranks(0, world)
        learner = synthetic_learner(model, batch, images, algorithm=algorithm, ranks=ranks)
        views = tuple(ALGORITHMS[algorithm].views)
        counting = _Counting()

        def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations
            # DDP's own all-reduce does not pass through the dispatcher: count its buckets here.
            counting.calls["gradients"] += 1
            counting.bytes["gradients"] += bucket.buffer().numel() * bucket.buffer().element_size()
            answer: torch.futures.Future[Tensor] = torch.futures.Future()
            answer.set_result(bucket.buffer())
            return answer

        cast(Any, learner.student).register_comm_hook(None, hook)
        for step in range(STEP + 1):
            counting.calls.clear()
            counting.bytes.clear()
            one_batch = make_batch(batch, size, images, step, ranks=ranks, views=views)
            with counting:
                train_step(learner, one_batch, step)
    kinds = {
        name: {"calls": calls, "bytes": counting.bytes[name]}
        for name, calls in sorted(counting.calls.items())
    }
    return {
        "ranks": world,
        "calls": sum(counting.calls.values()),
        "bytes": sum(counting.bytes.values()),
        "kinds": kinds,
    }
