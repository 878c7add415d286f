"""Copies of batches to the device; on CUDA through pinned memory and on a stream of their own.

Streams and events, in the order in which a batch meets them:

1. The loader's thread enters `working()`: its copies and view kernels go to the side stream and
   run beside the step that the model computes on the default stream.
2. `send` copies through a pinned buffer. An event behind each copy marks when the buffer may be
   written again; only the loader's thread ever waits for it, for a copy several batches old.
3. `mark()` records an event behind everything that makes the batch.
4. The consumer's `receive()` lets its own stream wait for that event. The device waits, the host
   does not. `record_stream` then keeps the allocator from giving the memory of these tensors to
   the side stream while the step still reads them.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from torch import Tensor

SLOTS = 3  # pinned buffers: one is being filled, two are being copied


class Transfer:
    """Copies host arrays to one device without making the host or the model wait.

    On a CPU every method returns its argument as a tensor and does nothing else.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if self.cuda else None  # type: ignore[no-untyped-call]
        self._pinned: deque[tuple[Tensor, Any]] = deque()

    def working(self) -> AbstractContextManager[Any]:
        """Return a context in which this thread works on the side stream."""
        return torch.cuda.stream(self._stream) if self.cuda else nullcontext()

    def send(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy a large array to the device; the array may change as soon as this returns."""
        if not self.cuda:
            return torch.from_numpy(array)
        pinned = self._free_buffer(array)
        pinned.copy_(torch.from_numpy(array))
        sent = pinned.to(self.device, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # On the stream of the copy, which is the side stream in `working()` and the default stream
        # in an evaluation. An event on another stream would not wait for this copy.
        copied.record(torch.cuda.current_stream(self.device))
        self._pinned.append((pinned, copied))
        return sent

    def send_small(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy a few numbers to the device."""
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.cuda else tensor

    def mark(self) -> Any:
        """Return an event that completes when all work on the side stream is done."""
        if not self.cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def receive(self, event: Any, tensors: list[Tensor]) -> None:
        """Let the current stream wait for the event, and keep the tensors alive for it."""
        if not self.cuda:
            return
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)

    def _free_buffer(self, array: npt.NDArray[Any]) -> Tensor:
        if len(self._pinned) >= SLOTS:
            pinned, copied = self._pinned.popleft()
            copied.synchronize()  # blocks the loader's thread, normally not at all
            if pinned.shape == array.shape:
                return pinned
        return torch.empty(array.shape, dtype=torch.from_numpy(array).dtype, pin_memory=True)
