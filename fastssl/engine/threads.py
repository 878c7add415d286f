"""The threads of a model on a CPU: how many are fastest, and whether steps become slow later."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from fastssl.engine import devices
from fastssl.engine.build import Learner, Run, assemble
from fastssl.engine.compilation import median_time, rehearsal
from fastssl.engine.progress import TrainingProgress

LIMIT = 10.0  # seconds in which all numbers of threads are measured
CLEARLY = 1.05  # how many times as fast more threads must be, so that noise does not choose them
SLOW = 2  # times the first steps, from which a step is slow
FIRST = 3  # intervals that set the time of a step
SETTLED = 5.0  # seconds of training in an interval; less may be a moment of the machine

logger = logging.getLogger(__name__)


def choose(run: Run, wanted: int | str) -> Run:
    """Return a run at step 0 with the number of threads that `auto` chooses, which is measured.

    Threads wait for each other in every operation. If another program takes one of their cores,
    all of them are slower than fewer threads would be. Ranks and CUDA keep what the device has.
    """
    learner, data = run
    device, config = learner.device, learner.resolved.config
    alone = learner.ranks.world == 1 and device.device.type == "cpu"
    if wanted != "auto" or not alone or device.threads == 1:
        return run
    logger.info("threads: measuring a few steps, which are thrown away")
    batch = data.loader.batch(config.supervised_steps)
    times = measure(rehearsal(learner, batch, learner.algorithm.step), device.threads)
    number = fastest(times)
    found = ", ".join(f"{1000 * times[n]:.0f} ms with {n}" for n in times)
    fewer = "" if 1 in times else "; there was no time to measure fewer"
    logger.info(f"threads {number}: measured a step of {found}{fewer}")
    if number == device.threads:
        return run
    # Anew, because a start may compute, too: the sums of `head_init=means` depend on the threads.
    data.close()
    resolved = replace(learner.resolved, config=config.model_copy(update={"threads": number}))
    return assemble(resolved, devices.choose(resolved.config), learner.ranks, data.store)


def measure(
    run: Callable[[], object], most: int, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Return the seconds of a call with `most` threads, with half as many, and so on down to 1.

    Each number gets a share of the time that is left. It ends before a number for which there may
    be too little: half the threads take up to twice as long.
    """
    numbers = [most >> halved for halved in range(most.bit_length())]
    found: dict[int, float] = {}
    end = clock() + LIMIT
    try:
        for place, number in enumerate(numbers):
            now = clock()
            if found and now + 2 * found[numbers[place - 1]] > end:
                break
            torch.set_num_threads(number)
            share = (end - now) / (len(numbers) - place)
            found[number] = median_time(run, now + share, clock)
    finally:
        torch.set_num_threads(most)
    return found


def fastest(times: dict[int, float]) -> int:
    """Return the number of threads with the least time; more threads must be clearly faster."""
    best = min(times)
    for number in sorted(times):
        if CLEARLY * times[number] < times[best]:
            best = number
    return best


class Pace:
    """Warns once if the steps of a CPU take much longer than the first ones of this process."""

    def __init__(self) -> None:
        self._mark: tuple[int, float] | None = None  # steps and their seconds at a log step
        self._first: list[float] = []
        self._warned = False

    def check(self, learner: Learner, progress: TrainingProgress) -> None:
        """Compare the steps since the last log step with the first; call it at every log step."""
        threads, first_step = learner.device.threads, learner.resolved.config.supervised_steps
        if self._warned or learner.device.device.type != "cpu" or threads == 1:
            return  # with one thread there are no fewer to resume with
        # Without waiting for batches: other threads make them. The first steps warm up, and those
        # without unlabeled images are faster, so none of these count.
        now = progress.step, progress.train_seconds - progress.waited
        if self._mark is None:
            self._mark = now if progress.step >= first_step else None
            return
        steps, seconds = now[0] - self._mark[0], now[1] - self._mark[1]
        if seconds < SETTLED:
            return
        self._mark = now
        if len(self._first) < FIRST:
            self._first.append(seconds / steps)
            return
        usual = statistics.median(self._first)
        if seconds / steps > SLOW * usual:
            self._warned = True
            logger.warning(
                f"a step takes {1000 * seconds / steps:.0f} ms, and took {1000 * usual:.0f} ms at "
                "first. If other programs use the cores, fewer threads may be faster. The run "
                f"keeps {threads}, because another number changes the order of sums; to change it, "
                f"stop the run and resume it with threads={threads // 2}"
            )
