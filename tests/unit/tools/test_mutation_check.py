"""The mutation check: what it leaves out, and that it neither misses nor invents a kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray")

from tools import mutation_check
from tools.mutation import mutants, workshop

ROOT = mutation_check.ROOT
SOURCE = """
from typing import TYPE_CHECKING, Annotated, TypeAlias
if TYPE_CHECKING:
    LIMIT = 1
Key: TypeAlias = "int | None"
@dataclass(frozen=True, slots=True)
class Record:
    size: int | None = None
    side: Annotated[int | None, Field(ge=4)] = None
@njit(fastmath=True)
def double(x: int | None = None) -> int | None:
    if x is None:
        raise ValueError(f"{x + 5} is too small" if True else 3)
    return 2 * x
@cache
def one() -> int:
    return 7
"""


def test_only_what_a_test_can_notice_is_changed():
    lines = SOURCE.split("\n")
    found = {}
    for (line, start), (_, stop) in mutants.sites(SOURCE):
        found.setdefault(line, set()).add(lines[line - 1][start:stop])
    assert found == {
        3: {"TYPE_CHECKING"},
        6: {"", "True"},  # the decorator itself, and `frozen`
        9: {"4"},
        12: {"is", "x is None"},
        14: {"2", "*"},
        17: {"7"},
    }


def test_a_mutant_has_one_change_and_is_another_program():
    source = "def f(x):\n    y = 2 ** -3\n    return x < y\n"
    made = mutants.make("m.py", source, "core/ReplaceComparisonOperator_Lt_LtE", 0)
    assert (made.line, made.before, made.after) == (3, "return x < y", "return x <= y")
    assert made.source == source.replace("<", "<=")
    assert mutants.make("m.py", source, "core/ReplaceUnaryOperator_USub_Not", 0) is None


def test_every_module_gets_its_share_of_the_mutants():
    sizes = {"large": 700, "middle": 250, "small": 50, "tiny": 1}
    given = mutants.quotas(sizes, 200)
    assert sum(given.values()) == 200
    assert given["tiny"] == 1 and given["small"] >= 10
    assert given["large"] == pytest.approx(140, abs=3)
    assert mutants.quotas({"a": 2, "b": 1}, 200) == {"a": 2, "b": 1}


@pytest.mark.parametrize("module", mutants.modules(ROOT))
def test_every_module_of_the_core_has_tests(module):
    for arguments in workshop.tests_of(module):
        paths = [argument for argument in arguments if argument.startswith("tests/")]
        assert paths and all((ROOT / path).exists() for path in paths)


def test_what_is_listed_as_equivalent_is_still_in_the_code():
    for entry in json.loads(mutation_check.EQUIVALENTS.read_text()):
        lines = [line.strip() for line in (ROOT / entry["module"]).read_text().split("\n")]
        assert entry["before"] in lines, entry
        assert len(entry["reason"]) > 20


PLANTED = """if True:
    import json, sys, tempfile
    from pathlib import Path
    from tools.mutation.workshop import ROOT, Workshop
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        for module, old, new in json.load(sys.stdin):
            source = (ROOT / module).read_text()
            assert old in source
            print(workshop.outcome(module, source.replace(old, new, 1))["outcome"])
            assert (workshop.copy / module).read_text() == source == (ROOT / module).read_text()
"""


@pytest.mark.slow
def test_planted_faults_are_killed_and_planted_comments_survive():
    """In compiled code too, where a cache could hide a change."""
    ops, fixmatch = "pipelines/views/kernel_cpu_ops.py", "fastssl/algorithms/fixmatch.py"
    split = "pipelines/sampling/split.py"
    planted = [
        (ops, "f32(5)", "f32(4)", "killed"),
        (ops, "f32(5)", "f32(5 + 0)", "survived"),
        (fixmatch, "confidence >= config.threshold", "confidence < config.threshold", "killed"),
        (fixmatch, "confidence >=", "confidence  >=", "survived"),
        (split, "free[held_out] = -1", "pass", "killed"),
        (split, "free[held_out] = -1", "free[held_out] = -1  # a remark", "survived"),
        (
            split,
            "    held_out = _hold_out(",
            "    while True: pass\n    held_out = _hold_out(",
            "timeout",
        ),
    ]
    given = json.dumps([change[:3] for change in planted])
    done = subprocess.run(
        [sys.executable, "-c", PLANTED], input=given, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.split() == [change[3] for change in planted], done.stderr


@pytest.mark.slow
def test_a_small_sample_is_killed_and_goes_on_where_it_was(tmp_path: Path):
    state, record = tmp_path / "state.jsonl", tmp_path / "record.json"
    program = [sys.executable, "tools/mutation_check.py", "--count", "20", "--seed", "1"]
    command = [*program, "--state", str(state), "--record", str(record)]
    subprocess.run(command, cwd=ROOT, check=True)
    first = json.loads(record.read_text())
    assert first["results"][0]["tried"] == 20 and first["results"][0]["rate"] >= 0.8
    lines = state.read_text()
    subprocess.run(command, cwd=ROOT, check=True)
    assert state.read_text() == lines
    assert json.loads(record.read_text())["mutants"] == first["mutants"]
