"""Device, precision and threads: chosen once, before anything is built."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from fastssl.config.resolve import ResolvedConfig
from fastssl.config.schema import RunConfig
from fastssl.distributed import process_group
from fastssl.errors import ConfigError, ResourceError
from pipelines.cpus import available_cpus

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # the numbers of glibc's malloc.h
LARGEST = 2**30  # bytes; larger blocks still come from the system and go back to it


@dataclass(frozen=True, slots=True)
class Device:
    """Where and in which arithmetic a run computes."""

    device: torch.device
    precision: str  # fp32, bf16 or fp16
    threads: int
    loader_threads: int

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which forward passes run."""
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
        return torch.autocast(self.device.type, dtype=kind, enabled=kind is not None)

    def __str__(self) -> str:
        name = str(self.device)
        if self.device.type == "cuda":
            name += f" ({torch.cuda.get_device_name(self.device)})"
        else:
            name += f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{name}, {self.precision}"


def choose(config: RunConfig, local_rank: int = 0, local_world: int = 1) -> Device:
    """Choose the device of a training process and set what is global in torch and malloc."""
    chosen = resolve(config, local_rank, local_world)
    torch.set_num_threads(chosen.threads)
    if chosen.device.type == "cuda":
        torch.cuda.set_device(chosen.device)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    else:
        keep_memory()
    return chosen


def choose_for_run(
    resolved: ResolvedConfig, group: process_group.Group
) -> tuple[ResolvedConfig, Device]:
    """Choose this process's device; return it and the configuration with what `auto` chose."""
    device = choose(resolved.config, group.local_rank, group.local_world)
    chosen: dict[str, Any] = {"precision": device.precision, **resolved.config.averages()}
    if resolved.config.threads == "auto":  # all cores, until threads.choose has measured
        chosen["threads"] = device.threads
    return replace(resolved, config=resolved.config.model_copy(update=chosen)), device


def resolve(config: RunConfig, local_rank: int = 0, local_world: int = 1) -> Device:
    """Choose the device without a change to the process, which may be a caller's notebook."""
    device = choose_device(config.device, local_rank)
    precision = choose_precision(config.precision, device)
    return Device(device, precision, *choose_threads(config, local_world))


def choose_threads(config: RunConfig, local_world: int = 1) -> tuple[int, int]:
    """Return the threads of the model and of the loader in one of a machine's processes."""
    cores = max(1, available_cpus() // local_world)
    # On a CPU the model owns the cores; making views costs a small share of a step.
    threads = cores if config.threads in (0, "auto") else int(config.threads)
    return threads, config.loader_threads or max(1, cores // 4)


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `cuda:N` into a device that is there."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(f"device is {wanted!r}", "type device=cpu or device=cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {wanted!r} is not supported", "type device=cpu or device=cuda")
    if device.type == "cuda":
        index = local_rank if device.index is None else device.index
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise ResourceError(
                f"device={wanted} is asked for, but this machine has no such GPU",
                "type device=cpu, or check the driver with `fastssl doctor`",
            )
        return torch.device("cuda", index)
    return device


def choose_precision(wanted: str, device: torch.device) -> str:
    """Choose bf16 on CUDA, fp16 where bf16 is missing there, fp32 on a CPU."""
    if wanted != "auto":
        if wanted == "fp16" and device.type == "cpu":
            raise ConfigError("precision=fp16 needs a GPU", "type precision=bf16 or fp32")
        return wanted
    if device.type == "cpu":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported() else "fp16"


def keep_memory() -> bool:
    """Keep the memory that a step frees for the next one; return whether the C library can.

    By itself it returns large blocks to the system as soon as they are free. Every step on a CPU
    would then get its activations anew, page by page and filled with zeros: with batches of a few
    hundred images that was a fifth of the processor time, and more of the clock.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST) and mallopt(TRIM_THRESHOLD, -1))
