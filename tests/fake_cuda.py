"""What CUDA would run, without one: fake tensors that know their device, and a guard.

    with fake_cuda():
        model = build(...)                  # under torch.device("cuda")
        batch = torch.empty(..., device="cuda")
        with no_host_wait():
            step(model, batch)              # raises HostWait where a GPU would be waited for

A fake tensor has a device, a type and a size, and no values. `backward` does not run on them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
# Their result has a size that only the device knows, or is a number of the host.
WAITING = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
    aten.repeat_interleave.self_Tensor,
}
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
}


class HostWait(Exception):
    """An op that makes the host wait for the device, or the device for the host."""


class _Guard(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        if func in WAITING and "cuda" in devices:
            raise HostWait(f"{func} waits for its result")
        if func in INDEXING:
            self._indices(func, args)
        result = func(*args, **kwargs)
        made = {leaf.device.type for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        if devices and made and devices != made and {"cpu", "cuda"} == devices | made:
            self._copied(func, tensors)
        return result

    def _indices(self, func: Any, args: Any) -> None:
        if args[0].device.type != "cuda":
            return
        for index in args[1]:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                raise HostWait(f"{func} with a mask waits to know how many places it has")
            if index is not None and index.device.type != "cuda":
                raise HostWait(f"{func} of a CUDA tensor with an index on the CPU copies it")

    def _copied(self, func: Any, tensors: list[torch.Tensor]) -> None:
        # A number of the host may enter an op (x * 0-dim CPU tensor); a copy may not.
        if all(t.dim() == 0 for t in tensors if t.device.type == "cpu") and len(tensors) > 1:
            return
        raise HostWait(f"{func} copies between the host and the device")


@contextmanager
def no_host_wait() -> Iterator[None]:
    """Refuse every wait and every copy between host and device."""
    with _Guard():
        yield


@contextmanager
def fake_cuda() -> Iterator[FakeTensorMode]:
    """Make `device="cuda"` work on fake tensors; autocast to bfloat16 included."""
    _forget()
    try:
        with (
            FakeTensorMode(allow_non_fake_inputs=True) as mode,  # first: it looks for a driver
            mock.patch("torch.cuda.is_available", lambda: True),
            mock.patch("torch.cuda.is_bf16_supported", lambda *_, **__: True),
            mock.patch("torch.cuda.current_device", lambda: 0),
            mock.patch("torch.cuda.device_count", lambda: 1),
        ):
            yield mode
    finally:
        _forget()


def _forget() -> None:
    """Keep fake constants out of what real tensors use, and the other way round."""
    from pipelines.views import kernel_torch

    kernel_torch.constants.cache_clear()
