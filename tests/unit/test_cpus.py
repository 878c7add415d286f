"""The cores that a process may use: its affinity, and the quotas of both versions of cgroups."""

import os
import shutil
import subprocess
import sys

import pytest

from pipelines import cgroups, cpus


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Return a function that writes a file of a group; the process may use 8 cores."""
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path)
    monkeypatch.setattr(cgroups, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)

    def write(file: str, text: str):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"{text}\n")

    return write


def test_without_cgroups_the_affinity_counts(groups):
    assert cpus.available_cpus() == 8


@pytest.mark.parametrize(("machine", "cores"), [(6, 6), (None, 1)])
def test_a_system_without_affinity_has_the_cores_of_the_machine(
    groups, monkeypatch, machine, cores
):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    assert cpus.available_cpus() == cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("300000 100000", 3),
        ("150000 100000", 2),
        ("20000 100000", 1),
        ("100000 50000", 2),
        ("1600000 100000", 8),
        ("", 8),
    ],
)
def test_a_quota_of_version_2_limits_the_cores(groups, quota, cores):
    groups("membership", "0::/")
    groups("cpu.max", quota)
    assert cpus.available_cpus() == cores


def test_the_tightest_of_nested_groups_counts(groups):
    groups("membership", "0::/jobs/mine/step")
    groups("jobs/cpu.max", "200000 100000")
    groups("jobs/mine/cpu.max", "400000 100000")
    groups("jobs/mine/step/cpu.max", "max 100000")
    groups("jobs/other/cpu.max", "100000 100000")
    assert cpus.available_cpus() == 2


@pytest.mark.parametrize(("quota", "cores"), [("-1", 3), ("150000", 2)])
def test_a_quota_of_version_1_limits_the_cores(groups, quota, cores):
    groups("membership", "3:cpuset:/other\n4:cpu,cpuacct:/docker/a:b\n0::/")
    groups("cpu/other/cpu.cfs_quota_us", "100000")  # a member for another controller only
    groups("cpu/other/cpu.cfs_period_us", "100000")
    groups("cpu/cpu.cfs_quota_us", "300000")
    groups("cpu/cpu.cfs_period_us", "100000")
    groups("cpu/docker/a:b/cpu.cfs_quota_us", quota)
    groups("cpu/docker/a:b/cpu.cfs_period_us", "100000")
    assert cpus.available_cpus() == cores


@pytest.mark.skipif(not shutil.which("taskset"), reason="there is no taskset")
def test_a_process_that_is_bound_to_one_core_has_one():
    core = str(min(os.sched_getaffinity(0)))
    code = "from pipelines.cpus import available_cpus; print(available_cpus())"
    done = subprocess.run(
        ["taskset", "--cpu-list", core, sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "1\n"


def test_the_groups_of_this_machine_can_be_read():
    assert 1 <= cpus.available_cpus() <= (os.cpu_count() or 1)
