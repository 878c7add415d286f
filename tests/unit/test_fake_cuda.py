"""The guard itself: what must be refused is, and what a step may do is not."""

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from tests.fake_cuda import HostWait, fake_cuda, no_host_wait


def set_by_mask(x: Tensor) -> None:
    x[x > 0] = 1.0


WAITS: dict[str, Callable[[Tensor], object]] = {
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).any()),
    "tolist": lambda x: x.tolist(),
    "mask taken": lambda x: x[x > 0],
    "mask set": set_by_mask,
    "nonzero": lambda x: torch.nonzero(x),
    "places": lambda x: torch.where(x > 0),
    "index of the host": lambda x: x[torch.tensor([0, 1])],
    "list": lambda x: torch.tensor([1, 2], device="cuda"),
    "copy to the device": lambda x: torch.ones(4).to("cuda"),
    "copy from the device": lambda x: torch.empty(4, 4).copy_(x),
    "unique": lambda x: torch.unique(x),
}
FINE: dict[str, Callable[[Tensor], object]] = {
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "index": lambda x: x[torch.arange(2, device="cuda")],
    "row": lambda x: x[0],
    "zeros": lambda x: x + torch.zeros(4, device="cuda"),
    "number": lambda x: x * 2.0,
    "product": lambda x: x @ x,
}


def test_every_wait_is_refused_and_what_does_not_wait_is_allowed() -> None:
    with fake_cuda():
        x = torch.empty(4, 4, device="cuda")
        allowed = []
        for name, wait in WAITS.items():
            with no_host_wait(), suppress(HostWait):
                wait(x)
                allowed.append(name)
        assert not allowed
        with no_host_wait():
            assert {fine(x).device.type for fine in FINE.values()} == {"cuda"}


def test_autocast_is_on() -> None:
    with fake_cuda():
        x = torch.empty(4, 4, device="cuda")
        with no_host_wait(), torch.autocast("cuda", torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16


def test_nothing_fake_stays_behind() -> None:
    before = torch.cuda.is_available()
    with fake_cuda():
        assert isinstance(torch.empty(1), FakeTensor)
    assert torch.cuda.is_available() == before
    assert not isinstance(torch.empty(1), FakeTensor)
