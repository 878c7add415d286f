"""Freed memory stays in the process: the pages of a step are not asked for again."""

import resource
import subprocess
import sys

import pytest

from fastssl.engine import devices

AGAIN = """
import ctypes
import resource
import sys

# A fault gives a page of 4 KiB or, where transparent huge pages are on, one of 2 MiB. Only with
# huge pages off does the number of faults show how much memory was requested.
PR_SET_THP_DISABLE = 41
assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0

import torch
from fastssl.engine import devices

if sys.argv[1] == "keep":
    assert devices.keep_memory()
for turn in range(60):
    if turn == 40:  # by then the heap has found its shape
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)  # 64 MiB, gone at once
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(word):
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, word], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_a_block_that_was_freed_costs_no_pages_when_it_is_wanted_again():
    block = 2**26 // resource.getpagesize()
    assert pages("return") > 10 * block, "memory is kept anyway: this test tests nothing"
    assert pages("keep") < block


def test_a_c_library_without_the_call_is_let_be(monkeypatch):
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: object())
    assert devices.keep_memory() is False
