"""Transfers to a device and evaluation there, with streams and events that only write down."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipelines.loader import EvaluationBatches, evaluation, transfer
from tests.small_stores import make_store


class Device:
    """Stands for CUDA: notes the stream of each copy and event, and which events are waited for."""

    def __init__(self):
        self.current, self.waited = "default", []
        self.copies = []  # (stream, pinned buffer)
        device = self

        class Event:
            def record(self, stream):
                self.stream, self.behind = stream, len(device.copies)  # so many copies

            def synchronize(self):
                device.waited.append(self)

        self.cuda = SimpleNamespace(
            Stream=lambda _: "side",
            Event=Event,
            current_stream=lambda _: self.current,
            stream=self.on,
        )

    @contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def install(self, monkeypatch):
        """Let `transfer` find this device in place of torch's; tensors stay those of the CPU."""
        device = self

        class Pinned(torch.Tensor):
            def to(self, *_, **__):
                device.copies.append((device.current, self.data_ptr()))
                return self.as_subclass(torch.Tensor)

        def empty(shape, *, dtype, pin_memory):
            assert pin_memory
            return torch.empty(shape, dtype=dtype).as_subclass(Pinned)

        parts = {"cuda": self.cuda, "empty": empty, "device": torch.device}
        fake = SimpleNamespace(**parts, from_numpy=torch.from_numpy)
        monkeypatch.setattr(transfer, "torch", fake)
        return transfer.Transfer("cuda")


@pytest.mark.parametrize("stream", ["default", "side"])
def test_a_pinned_buffer_is_written_again_only_after_its_copy(monkeypatch, stream):
    device = Device()
    sender = device.install(monkeypatch)
    with sender.working() if stream == "side" else nullcontext():
        for number in range(5):
            assert (sender.send(np.full((2, 3), number, np.uint8)) == number).all()
            # The fourth array is written where the first was, whose copy has ended by then.
            waited = [(event.stream, event.behind) for event in device.waited]
            assert waited == [(stream, copy + 1) for copy in range(number + 1 - transfer.SLOTS)]
    buffers = [buffer for _, buffer in device.copies]
    assert buffers[3:] == buffers[:2] and len(set(buffers)) == transfer.SLOTS
    assert {where for where, _ in device.copies} == {stream}


def test_a_buffer_of_another_shape_is_not_used_again(monkeypatch):
    sender = Device().install(monkeypatch)
    shapes = [(2, 3)] * 4 + [(1, 3)] * 4
    assert [sender.send(np.zeros(shape, np.uint8)).shape for shape in shapes] == shapes


@pytest.mark.parametrize("decoded", ["on the host", "on the device"])
def test_an_evaluation_on_a_device_gives_the_images_of_the_cpu(tmp_path, monkeypatch, decoded):
    store = make_store(tmp_path / "store", formats=("dali",))
    given = {"size": (28, 26), "reader": "resident", "batch": 5}

    def batches():
        with EvaluationBatches(store, "test", np.arange(24)[::-1].copy(), **given) as found:
            return [(images.clone(), labels.clone()) for images, labels in found]

    expected = batches()
    sender = Device().install(monkeypatch)
    sender.send_small = torch.from_numpy
    monkeypatch.setattr(evaluation, "Transfer", lambda _: sender)
    if decoded == "on the device":
        real = evaluation.EvaluationBatches._prepare
        monkeypatch.setattr(
            evaluation.EvaluationBatches,
            "_prepare",
            lambda self, images, to: real(self, torch.from_numpy(images), to),
        )
    found = batches()
    assert [len(labels) for _, labels in found] == [5, 5, 5, 5, 4]
    for (images, labels), (wanted, truth) in zip(found, expected, strict=True):
        assert torch.equal(images, wanted) and torch.equal(labels, truth)
        assert images.shape[1:] == (3, 28, 26)
