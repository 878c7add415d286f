"""Mutants of the core: which ones cosmic-ray can make, which are left out, which are sampled.

A mutant changes one place of one module, such as `<` to `<=` or 3 to 4. Left out, by rule, is
what no test can or should notice:

- annotations, type aliases and `if TYPE_CHECKING:`, except for calls in them, such as pydantic's
  `Field(ge=0)`, which bound values at run time;
- the text of errors: whatever belongs to a `raise` statement;
- what only changes the speed: the decorators of numba and `@cache`, and the flag `slots`;
- identity for equality and the reverse, which agree for None, small integers and short strings;
- a mutant whose syntax tree is that of the original, or that has a syntax error.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

CORE = (
    "fastssl/algorithms/**/*.py",
    "pipelines/sampling/*.py",
    "pipelines/views/*.py",
    "fastssl/engine/checkpoint.py",
)
LEAST = 2  # mutants of each module, if it has that many
SPEED_DECORATORS = ("njit", "njit_cached", "intrinsic", "cache")
IDENTITY = ("Eq_Is", "NotEq_IsNot", "Is_Eq", "IsNot_NotEq")
# Both need arguments that name variables.
NEED_ARGUMENTS = ("core/VariableReplacer", "core/VariableInserter")


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str  # path from the root of the repository
    operator: str
    occurrence: int  # the how-manieth place of the module that the operator can change
    line: int
    before: str  # the changed lines, without indentation
    after: str
    source: str  # of the whole mutated module


def modules(root: Path) -> list[str]:
    """Return the paths of the core's modules from the root."""
    found = {path for pattern in CORE for path in root.glob(pattern)}
    return sorted(str(path.relative_to(root)) for path in found)


def operators() -> Iterator[tuple[str, Any]]:
    """Yield the name and an instance of every operator that is used."""
    for name in sorted(cosmic_ray.plugins.operator_names()):
        if name not in NEED_ARGUMENTS and not name.endswith(IDENTITY):
            yield name, cosmic_ray.plugins.get_operator(name)()


Site = tuple[tuple[int, int], tuple[int, int]]  # from and to (line, column)


def sites(source: str) -> dict[Site, list[tuple[str, int]]]:
    """Return the places that can be changed, each with its (operator, occurrence) pairs."""
    nodes = list(ast_nodes(get_ast(source)))
    left_out = {id(node) for node in nodes if is_left_out(node)}
    found: dict[Site, list[tuple[str, int]]] = {}
    for name, operator in operators():
        occurrence = 0
        for node in nodes:
            for start, stop in operator.mutation_positions(node):
                if id(node) not in left_out:
                    found.setdefault((start, stop), []).append((name, occurrence))
                occurrence += 1
    return found


def is_left_out(node: Any) -> bool:
    """Return True if a rule of this file leaves out what changes this node."""
    inner, in_call = None, False
    while node is not None:
        if node.type == "raise_stmt":
            return True
        if node.type == "argument" and node.children[0].get_code().strip() == "slots":
            return True
        if node.type == "decorator":
            name = node.children[1].get_code().strip().split("(")[0]
            return name.split(".")[-1] in SPEED_DECORATORS
        in_call = in_call or (node.type == "trailer" and node.children[0].value == "(")
        if not in_call and is_annotation(inner, node):
            return True
        if node.type == "if_stmt" and node.children[1].get_code().strip() == "TYPE_CHECKING":
            return inner is node.children[3]
        inner, node = node, node.parent
    return False


def is_annotation(inner: Any, outer: Any) -> bool:
    """Return True if `inner` is the annotation part of its parent, or the value of a type alias."""
    if outer.type == "annassign":
        return inner is outer.children[1] or "TypeAlias" in outer.children[1].get_code()
    if outer.type == "tfpdef":
        return inner is outer.children[2]
    if outer.type == "funcdef":
        return inner is outer.annotation
    return False


def make(module: str, source: str, operator: str, occurrence: int) -> Mutant | None:
    """Return a mutant, or None if it is the same program or none at all."""
    changed = mutate_code(source, cosmic_ray.plugins.get_operator(operator)(), occurrence)
    try:
        if changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)):
            return None
    except SyntaxError:  # such as 2**not 3
        return None
    old, new = source.split("\n"), changed.split("\n")
    first = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    tail = 0
    while tail < min(len(old), len(new)) - first and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    before, after = (
        " ".join(line.strip() for line in lines[first : len(lines) - tail]) for lines in (old, new)
    )
    return Mutant(module, operator, occurrence, first + 1, before, after, changed)


def sample(root: Path, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants: places drawn from every module by its number of places.

    At a place the operator is drawn too, so that a sum, which twelve operators change, is no more
    likely than a comparison.
    """
    sources = {module: (root / module).read_text() for module in modules(root)}
    found = {module: sites(source) for module, source in sources.items()}
    found = {module: places for module, places in found.items() if places}
    sampled: list[Mutant] = []
    for module, quota in quotas({m: len(places) for m, places in found.items()}, count).items():
        drawn = random.Random(f"{seed} {module}")
        places = sorted(found[module])
        drawn.shuffle(places)
        made: list[Mutant] = []
        for place in places:
            if len(made) == quota:
                break
            mutant = make(module, sources[module], *drawn.choice(found[module][place]))
            made += [mutant] if mutant else []
        sampled += made
    return sampled


def quotas(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Divide `count` by size (largest remainders); small modules get at least `LEAST`."""
    least = min(LEAST, count // max(len(sizes), 1))
    given = {module: min(least, size) for module, size in sizes.items()}
    free = {module: size - given[module] for module, size in sizes.items()}
    left = min(count - sum(given.values()), sum(free.values()))
    exact = {module: left * size / max(sum(free.values()), 1) for module, size in free.items()}
    for module, share in exact.items():
        given[module] += int(share)
    rest = left - sum(int(share) for share in exact.values())
    for module in sorted(exact, key=lambda name: int(exact[name]) - exact[name])[:rest]:
        given[module] += 1
    return given
