import itertools
import queue
import threading
from types import SimpleNamespace

import pytest

from pipelines import prefetch as ring_module
from pipelines.prefetch import Ring


def counting(numbers, buffers):
    """Make a ring that writes numbers into one-element lists."""

    def produce(take):
        for number in numbers:
            buffer = take()
            buffer[0] = number
            yield buffer

    def make():
        buffers.append([None])
        return buffers[-1]

    return produce, make


def test_items_come_in_order_and_end():
    buffers = []
    ring = Ring(*counting(range(10), buffers), ahead=2)
    assert [item[0] for item in ring] == list(range(10))
    assert len(buffers) == 4
    with pytest.raises(StopIteration):
        next(ring)


def test_an_item_is_not_overwritten_before_the_one_after_the_next_is_requested():
    ring = Ring(*counting(range(50), []), ahead=1)
    before = next(ring)
    for number in range(1, 50):
        item = next(ring)
        assert (before[0], item[0]) == (number - 1, number)
        before = item


def test_the_producer_waits_for_the_consumer(monkeypatch):
    events = queue.SimpleQueue()  # of the producer's thread: the numbers it reaches, its waits

    class Watched(queue.SimpleQueue):
        def get(self, *arguments, **named):
            if self.empty() and threading.current_thread() is not threading.main_thread():
                events.put("waits")
            return super().get(*arguments, **named)

    def produce(take):
        for number in range(100):
            take()
            events.put(number)
            yield number

    def following(count):
        return [events.get(timeout=60) for _ in range(count)]

    watched = SimpleNamespace(SimpleQueue=Watched, Empty=queue.Empty)
    monkeypatch.setattr(ring_module, "queue", watched)
    ring = Ring(produce, list, ahead=2)
    # Four buffers: two items ahead, and two that the consumer may hold.
    assert following(5) == [0, 1, 2, 3, "waits"]
    assert [next(ring), next(ring)] == [0, 1]  # both are held: no buffer is free
    assert next(ring) == 2
    assert following(2) == [4, "waits"]
    ring.close()
    assert events.empty()


def test_an_error_is_raised_after_the_items_before_it():
    def produce(take):
        take()
        yield 0
        raise OSError("the disk is gone")

    ring = Ring(produce, list, ahead=2)
    assert next(ring) == 0
    with pytest.raises(OSError, match="the disk is gone"):
        next(ring)
    with pytest.raises(StopIteration):
        next(ring)


def test_closing_ends_the_thread_and_the_producer():
    ended = threading.Event()
    threads = []

    def produce(take):
        threads.append(threading.current_thread())
        try:
            while True:
                take()
                yield 0
        finally:
            ended.set()

    ring = Ring(produce, list, ahead=2)
    next(ring)
    (thread,) = threads
    assert thread.is_alive() and thread is not threading.main_thread()
    ring.close()
    ring.close()
    assert ended.is_set() and not thread.is_alive()


def hanging(stuck, made=None):
    """Return a producer that makes one item, sets `made`, and then hangs."""

    def produce(take):
        take()
        yield 0
        if made:
            made.set()
        stuck.wait()
        raise AssertionError("the producer went on")

    return produce


def test_a_stop_request_ends_the_wait_for_a_stalled_producer():
    stuck, made, looks = threading.Event(), threading.Event(), itertools.count()
    # The request comes at the fourth look of a wait that is under way.
    ring = Ring(hanging(stuck, made), list, ahead=1, patience=2, stop=lambda: next(looks) >= 3)
    try:
        assert made.wait(60)  # a busy machine may start the thread late
        assert next(ring) == 0
        assert next(looks) == 0  # the item was there: no look
        assert next(ring, "ended") == "ended"  # without a request, StalledError
        ring.close()  # does not wait for the thread
        assert not stuck.is_set()
    finally:
        stuck.set()


def test_a_stop_request_does_not_drop_an_item_that_is_there():
    all_there = threading.Event()

    def produce(take):
        for number in range(3):
            take()
            yield number
        all_there.set()

    ring = Ring(produce, list, ahead=1, stop=lambda: True)
    assert all_there.wait(60)
    assert list(ring) == [0, 1, 2]


def test_closing_waits_for_a_thread_only_so_long(monkeypatch):
    monkeypatch.setattr(ring_module, "CLOSING", 0.2)
    stuck = threading.Event()
    ring = Ring(hanging(stuck), list, ahead=1)
    rescue = threading.Timer(60, stuck.set)
    rescue.start()
    try:
        next(ring)
        ring.close()
        assert not stuck.is_set(), "it waited for its thread"
    finally:
        rescue.cancel()
        stuck.set()
