"""Freed memory stays in the process: the pages of a step are not asked for again."""

import subprocess
import sys

import pytest

from fastssl import host_memory

TWICE = """
import resource
import sys
import torch
from fastssl import host_memory

if sys.argv[1] == "keep":
    assert host_memory.keep()
torch.ones(2**24)  # 64 MiB, gone at once
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(word):
    done = subprocess.run(
        [sys.executable, "-c", TWICE, word], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_a_block_that_was_freed_costs_no_page_when_it_is_wanted_again():
    assert pages("return") > 1000, "memory is kept anyway: this test tests nothing"
    assert pages("keep") < 100


def test_a_c_library_without_the_call_is_let_be(monkeypatch):
    monkeypatch.setattr(host_memory.ctypes, "CDLL", lambda name: object())
    assert host_memory.keep() is False
