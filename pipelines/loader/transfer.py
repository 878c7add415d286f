"""How a batch gets onto the device: on CUDA by pinned memory and a stream of its own."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from torch import Tensor

SLOTS = 3  # pinned buffers: one being filled, two being copied


class Transfer:
    """Copies host arrays to one device without making the host or the model wait.

    Everything between `working()` and `mark()` runs on a side stream, beside the step that the
    model is at; `receive()` makes the model's stream wait for that mark, and not the host.
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
        copied.record(self._stream)
        self._pinned.append((pinned, copied))
        return sent

    def send_small(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy a few numbers to the device."""
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.cuda else tensor

    def mark(self) -> Any:
        """Return an event that happens when all that was sent has arrived."""
        if not self.cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def receive(self, event: Any, tensors: list[Tensor]) -> None:
        """Let the current stream use the tensors once they have arrived."""
        if not self.cuda:
            return
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)  # not to be reused before the step is done with it

    def _free_buffer(self, array: npt.NDArray[Any]) -> Tensor:
        if len(self._pinned) >= SLOTS:
            pinned, copied = self._pinned.popleft()
            copied.synchronize()  # waits in the loader's thread, for a copy two batches old
            if pinned.shape == array.shape:
                return pinned
        return torch.empty(array.shape, dtype=torch.from_numpy(array).dtype, pin_memory=True)
