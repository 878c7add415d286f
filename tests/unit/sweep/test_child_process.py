"""The process of a cell ends with its sweep, at whatever moment the sweep is killed."""

import subprocess
import sys

import pytest

from tests.process_output import PATIENCE

HANDLED = """
import os, signal, time
from fastssl.sweep.child_process import die_with_parent

signal.signal(signal.SIGTERM, lambda number, frame: None)  # as the sweep does
parent = os.getpid()
if os.fork() == 0:
"""
# What the new process does between its start and the start of its program.
KILLED_BEFORE = """
    while os.getppid() == parent:
        time.sleep(0.001)
    die_with_parent(parent)
    print("alive")
"""
KILLED_AFTER = """
    die_with_parent(parent)
    os.kill(parent, signal.SIGKILL)
    end = time.monotonic() + 240  # it is killed before, on however busy a machine
    while time.monotonic() < end:
        time.sleep(0.001)
    print("alive")
else:
    os.wait()
"""


@pytest.mark.parametrize("moment", [KILLED_BEFORE, KILLED_AFTER], ids=["before", "after"])
def test_a_cell_ends_if_its_sweep_is_killed_while_it_is_being_started(moment):
    command = [sys.executable, "-c", HANDLED + moment]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE)
    assert (done.stdout, done.stderr) == (b"", b"")  # read until the last process has ended
