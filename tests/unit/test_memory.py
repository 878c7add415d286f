"""The memory that a container leaves: both versions of cgroups, nested groups, page cache."""

import psutil
import pytest

from pipelines import cgroups, memory

GB = 1 << 30


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Return a function that writes a group's files; the machine has 64 GB, 32 of it free."""
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path)
    monkeypatch.setattr(cgroups, "MEMBERSHIP", tmp_path / "membership")
    machine = psutil.virtual_memory()._replace(total=64 * GB, available=32 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)

    def write(folder: str, names: tuple[str, str, str], limit: object, used: int, cache: int):
        place = tmp_path / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / names[0]).write_text(f"{limit}\n")
        (place / names[1]).write_text(f"{used}\n")
        (place / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\n")

    return write


def test_without_cgroups_the_machine_counts(groups):
    assert (memory.total_memory(), memory.free_memory()) == (64 * GB, 32 * GB)


def test_what_a_container_uses_is_not_free_but_its_page_cache_is(groups):
    cgroups.MEMBERSHIP.write_text("0::/\n")
    groups(".", memory.VERSION_2, 16 * GB, 10 * GB, 3 * GB)
    assert (memory.total_memory(), memory.free_memory()) == (16 * GB, 9 * GB)


def test_the_tightest_of_nested_groups_counts(groups):
    cgroups.MEMBERSHIP.write_text("0::/jobs/mine/step\n")
    groups("jobs", memory.VERSION_2, 8 * GB, 7 * GB, 0)
    groups("jobs/mine", memory.VERSION_2, 16 * GB, 1 * GB, 0)
    groups("jobs/mine/step", memory.VERSION_2, "max", 1 * GB, 0)
    groups("jobs/other", memory.VERSION_2, 1 * GB, 1 * GB, 0)
    assert (memory.total_memory(), memory.free_memory()) == (8 * GB, 1 * GB)


def test_version_1_counts_and_other_controllers_do_not(groups):
    cgroups.MEMBERSHIP.write_text("3:cpuset:/\n4:hugetlb,memory:/docker/a:b\n0::/\n")
    groups("memory", memory.VERSION_1, 9223372036854771712, 60 * GB, 0)
    groups("memory/docker/a:b", memory.VERSION_1, 4 * GB, 5 * GB, 2 * GB)
    assert (memory.total_memory(), memory.free_memory()) == (4 * GB, 1 * GB)


def test_a_group_above_its_limit_leaves_nothing(groups):
    cgroups.MEMBERSHIP.write_text("0::/../host/path\n")
    groups(".", memory.VERSION_2, 1 * GB, 2 * GB, 0)
    assert memory.free_memory() == 0


def test_the_groups_of_this_machine_can_be_read():
    assert 0 <= memory.free_memory() <= memory.total_memory()
