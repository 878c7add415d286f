"""Nothing outside `fastssl/algorithms` knows a particular algorithm.

A default value may name one. `fastssl/report` may, too: the paper's tables compare with FixMatch.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastssl.algorithms import ALGORITHMS

ROOT = Path(__file__).resolve().parents[2]
OWN = ("fastssl/algorithms/", "fastssl/report/")
NAMES = set(ALGORITHMS)


def names_in(node: ast.AST) -> set[str]:
    found = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    return {one for one in found if isinstance(one, str)} & NAMES


def offenses(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        text = ast.unparse(node) if isinstance(node, ast.expr) else ""
        if isinstance(node, ast.Compare | ast.Subscript) and names_in(node):
            yield f"asks which algorithm runs: {text}"
        if isinstance(node, ast.MatchValue) and names_in(node):
            yield "asks which algorithm runs in a match"
        if isinstance(node, ast.Dict):
            keys = {name for key in node.keys if key for name in names_in(key)}
            if keys:
                yield f"has a table by algorithm: {sorted(keys)}"
        if isinstance(node, ast.Call) and re.match(r"isinstance\(.*\wSettings\b", text):
            yield f"asks for the settings of an algorithm: {text}"
        if isinstance(node, ast.ImportFrom) and node.module:
            every = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
            for name in every & {f"fastssl.algorithms.{name}" for name in NAMES}:
                yield f"imports {name}"


def test_no_module_outside_algorithms_knows_a_particular_one():
    files = [*ROOT.glob("fastssl/**/*.py"), *ROOT.glob("pipelines/**/*.py")]
    found = []
    for path in files:
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith(OWN):
            found += [f"{place} {offense}" for offense in offenses(path.read_text())]
    assert len(files) > 100 and not found


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(settings, CurriculumSettings)",
        "if config.algorithm == 'flexmatch': pass",
        "if name in ('fixmatch', 'uda'): pass",
        "FLOOR = {'freematch': 0.9}",
        "from fastssl.algorithms import flexmatch",
        "from fastssl.algorithms.freematch import thresholds",
        "ALGORITHMS['flexmatch'].step",
    ],
)
def test_the_rule_finds_what_it_forbids(source):
    assert list(offenses(source))
    assert not list(offenses("def run(algorithm: str = 'flexmatch'): isinstance(algorithm, str)"))
