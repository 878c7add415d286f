"""The copy of the checkout in which mutants are tested, and the tests of each module."""

from __future__ import annotations

import compileall
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 12 * 2**30  # bytes of address space: a mutant may ask for any amount
PATIENCE = 20  # times the limit of processor time, for tests that sleep forever: others may compute

OWN_FAILURE = 70  # exit code of a test process in which pytest could not be started

# What numba compiles, and the modules whose cached machine code a change makes stale. It is removed
# rather than left to numba to find out: stale code would hide a mutant.
COMPILED = {
    "pipelines/views/kernel_cpu.py": ["kernel_cpu*"],
    "pipelines/views/kernel_cpu_ops.py": ["kernel_cpu*"],
    "pipelines/views/sample.py": ["sample*"],
    "pipelines/views/ops.py": ["kernel_cpu*", "sample*"],
}

# The tests of a module: rounds of pytest's arguments, in order; {name} is the module's own name.
# The first pattern that fits counts. Tests that only compile are left out: they take long.
PLUGINS = ["tests/unit/test_plugins.py", "-k", "not train and not resume"]
RULES = ["tests/rules/test_algorithms.py", "-k", "{name} and not graph and not compile"]
UNIT = "tests/unit/algorithms"
VIEWS = "tests/unit/views"
QUICK = "not compile and not second_start and not torch"
DECLARED = [f"{UNIT}/test_settings_edges.py", f"{UNIT}/test_oracles.py", "-k"]
DECLARATIONS = "settings or defaults or has_a_case or thresholds"
TESTS = [
    ("fastssl/algorithms/common/cpl.py", [
        [*DECLARED, f"{DECLARATIONS} or flexmatch"], [f"{UNIT}/test_cpl.py", "-k", "not compile"]]),
    ("fastssl/algorithms/common/rng.py", [
        [f"{UNIT}/test_rng_edges.py", f"{UNIT}/test_rng.py", "-k", "not compile"]]),
    ("fastssl/algorithms/common/mixup.py", [
        [f"{UNIT}/test_losses.py", f"{UNIT}/test_oracles.py", "-k", "mix or rotation"]]),
    ("fastssl/algorithms/common/settings.py", [[*DECLARED, DECLARATIONS]]),
    ("fastssl/algorithms/common/*.py", [
        [f"{UNIT}/test_losses.py", f"{UNIT}/test_losses_edges.py"], [f"{UNIT}/test_oracles.py"]]),
    ("fastssl/algorithms/__init__.py", [[*DECLARED, DECLARATIONS], PLUGINS]),
    ("fastssl/algorithms/base.py", [[*DECLARED, DECLARATIONS], PLUGINS]),
    ("fastssl/algorithms/*.py", [[*DECLARED, f"{DECLARATIONS} or {{name}}"], RULES]),
    ("fastssl/engine/checkpoint.py", [["tests/unit/engine/test_checkpoint.py"]]),
    ("pipelines/sampling/*.py", [["tests/unit/sampling"]]),
    ("pipelines/views/kernel_torch.py", [
        [f"{VIEWS}/test_exactness.py", "-k", "torch"],
        [f"{VIEWS}/test_kernels.py", "-k", "torch and not compile"]]),
    ("pipelines/views/sample.py", [
        [f"{VIEWS}/test_sample.py"], [f"{VIEWS}/test_exactness.py", "-k", "cpu"]]),
    ("pipelines/views/apply_views.py", [
        [VIEWS, "-k", QUICK], [f"{VIEWS}/test_exactness.py", "-k", "apply_op_is"]]),
    # One round, because each would compile the kernel again.
    ("pipelines/views/*.py", [[VIEWS, "-k", QUICK]]),
]  # fmt: skip


class Workshop:
    """A copy of the checkout in which mutants are tested, one process after the other."""

    def __init__(self, folder: Path) -> None:
        self.copy = folder / "checkout"
        self.numba = folder / "numba"  # compiled code of the unchanged checkout
        self.numba.mkdir()
        self.baseline: dict[str, float] = {}  # processor seconds of a round on the unchanged copy
        for path in tracked():
            (self.copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, self.copy / path)
        # Files are copied with their dates and a mutant has another one, so it is compiled again.
        compileall.compile_dir(self.copy, quiet=2)
        # Every test process is forked from this one and needs not import them again. Nothing of
        # the checkout is imported before the fork.
        import numba
        import PIL.Image
        import pydantic
        import pytest
        import torch
        import torch._dynamo
        import torch.func
        import torch.testing

        assert "pipelines" not in sys.modules and "fastssl" not in sys.modules
        torch.set_num_threads(1)
        self.loaded = (numba, PIL.Image, pydantic, pytest, torch)

    def outcome(self, module: str, source: str) -> dict[str, Any]:
        """Test the module with another source; return the outcome and what noticed it."""
        seconds = 0.0
        for arguments in tests_of(module):
            self.measure(arguments)
            limit = 30 + 4 * self.baseline[str(arguments)]
            with self.replaced(module, source):
                code, output, used = self.run(arguments, limit, COMPILED.get(module))
            seconds = round(seconds + used, 1)
            if code != 0:
                break
        if code == 0:
            return {"outcome": "survived", "seconds": seconds}
        if code is None:
            return {"outcome": "timeout", "seconds": seconds}
        if code in (4, 5, OWN_FAILURE):
            raise SystemExit(f"pytest did not run {arguments}:\n{output}")
        found = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        by = found[0] if found else f"exit code {code}"
        return {"outcome": "killed", "by": by, "seconds": seconds}

    def measure(self, arguments: list[str]) -> None:
        """Run a round on the unchanged copy once: it must pass, and its time sets the limit."""
        if str(arguments) in self.baseline:
            return
        code, output, used = self.run(arguments, 600)
        if code != 0:
            raise SystemExit(f"the unchanged checkout fails {arguments} with {code}:\n{output}")
        self.baseline[str(arguments)] = used

    @contextmanager
    def replaced(self, module: str, source: str) -> Any:
        """Replace the module in the copy for a while."""
        path = self.copy / module
        kept = path.with_suffix(".kept")
        path.rename(kept)
        path.write_text(source)
        try:
            yield
        finally:
            kept.rename(path)  # with its date, so that what was compiled from it is valid again

    def run(
        self, arguments: list[str], limit: float, stale: list[str] | None = None
    ) -> tuple[int | None, str, float]:
        """Run pytest in a forked process; return its exit code, output and processor seconds.

        The limit is one of processor time, which a busy machine does not change. After it, the
        exit code is None.
        With `stale`, the process has a copy of numba's cache, without the files of these names.
        """
        with tempfile.TemporaryDirectory() as scratch:
            cache = self.numba
            if stale is not None:
                cache = Path(scratch) / "numba"
                shutil.copytree(self.numba, cache, ignore=shutil.ignore_patterns(*stale))
            report = Path(scratch) / "report"
            child = os.fork()
            if child == 0:
                self.in_child(arguments, limit, cache, report, scratch)
            end = time.monotonic() + PATIENCE * limit
            while os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                if time.monotonic() > end:
                    break
                time.sleep(0.02)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # also processes that its tests left behind
            _, status, usage = os.wait4(child, 0)
            code: int | None = os.waitstatus_to_exitcode(status)
            if code in (-signal.SIGXCPU, -signal.SIGKILL):
                code = None
            return code, report.read_text(errors="replace"), usage.ru_utime + usage.ru_stime

    def in_child(
        self, arguments: list[str], limit: float, cache: Path, report: Path, scratch: str
    ) -> None:
        """Run pytest and end the process, whatever happens."""
        code = OWN_FAILURE
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
            output = os.open(report, os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self.copy)
            os.environ |= {
                "PYTHONPATH": str(self.copy),
                "PYTHONDONTWRITEBYTECODE": "1",  # dates in it are too coarse
                "NUMBA_CACHE_DIR": str(cache),
                "TMPDIR": scratch,
            }
            self.loaded[0].config.CACHE_DIR = str(cache)
            tempfile.tempdir = scratch
            sys.dont_write_bytecode = True
            forget_tools()
            sys.path.insert(0, str(self.copy))
            # The shared fixture converts a dataset, which none of these tests needs.
            # Plugins that are found by themselves, such as hypothesis, import for seconds.
            plain = [
                "--noconftest",
                "--disable-plugin-autoload",
                "-p",
                "pytest_timeout",
                "--timeout=0",  # a limit of its own is above
                "-x",
                "-q",
            ]
            chosen = ["-m", "not slow and not faults and not gpu"]
            code = int(self.loaded[3].main([*plain, *chosen, "--tb=line", "-rfE", *arguments]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def forget_tools() -> None:
    """Let the copy's own `tools` be imported, should a test need it."""
    for name in [name for name in sys.modules if name.split(".")[0] == "tools"]:
        del sys.modules[name]


def tests_of(module: str) -> list[list[str]]:
    """Return the rounds of tests of a module."""
    rounds = next(rounds for pattern, rounds in TESTS if fnmatch(module, pattern))
    name = Path(module).stem
    return [[argument.format(name=name) for argument in arguments] for arguments in rounds]


def tracked() -> list[str]:
    """Return the files of the checkout that git knows or would add."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [name for name in names.split("\0") if name and (ROOT / name).is_file()]
