"""Imports go one way: packages in the order of their layers, no cycle between modules."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From low to high. A package imports only from packages that stand before it; imports inside
# functions and for type checking count, because they couple packages all the same.
LAYERS = re.findall(
    r"\S+",
    """
    pipelines.errors pipelines.text pipelines.registry pipelines.jit pipelines.extras
    pipelines.cgroups pipelines.cpus pipelines.memory pipelines.files pipelines.prefetch
    pipelines.image_formats pipelines.store pipelines.sources pipelines.datasets pipelines.convert
    pipelines.sampling pipelines.views pipelines.readers pipelines.loader pipelines
    fastssl.version fastssl.errors fastssl.plugins fastssl.distributed fastssl.models
    fastssl.algorithms fastssl.config fastssl.tracking fastssl.engine fastssl.inference
    fastssl.probing fastssl.sweep fastssl.report fastssl.profiling fastssl.conversion
    fastssl.automation fastssl.api fastssl.cli fastssl.__main__ fastssl
    """,
)
# `import fastssl` costs nothing because its functions are imported at their first use.
HIGHEST = {"pipelines": len(LAYERS), "fastssl": len(LAYERS)}


def module_name(path: Path, root: Path) -> str:
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    return name.removesuffix(".__init__")


def read_modules(root: Path) -> dict[str, Path]:
    files = [*root.glob("fastssl/**/*.py"), *root.glob("pipelines/**/*.py")]
    return {module_name(path, root): path for path in files}


def imports_of(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Return the modules that each module imports, wherever in the file."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names if alias.name in modules}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    either = (f"{node.module}.{alias.name}", node.module)
                    found[name] |= {next((one for one in either if one in modules), name)}
    for name, others in found.items():
        others.discard(name)
    return found


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def back_edges(root: Path) -> list[str]:
    rank = {package: place for place, package in enumerate(LAYERS)} | HIGHEST
    modules = read_modules(root)
    return sorted(
        f"{name} imports {other}"
        for name, others in imports_of(modules).items()
        for other in others
        if package_of(name) != package_of(other)
        and rank[package_of(other)] >= rank[package_of(name)]
    )


def cycles(root: Path) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    edges = imports_of(read_modules(root))
    found: list[list[str]] = []
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> None:  # Tarjan's strongly connected components
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in number:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], number[other])
        if lowest[name] == number[name]:
            group = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(edges):
        if name not in number:
            visit(name)
    return found


def test_every_package_has_a_layer():
    packages = {package_of(name) for name in read_modules(ROOT)}
    assert packages <= set(LAYERS)


def test_imports_go_from_high_to_low():
    assert not back_edges(ROOT)


def test_no_modules_import_each_other_in_a_circle():
    assert not cycles(ROOT)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("pipelines/store/wrong.py", "from pipelines.convert import driver"),
        ("fastssl/engine/wrong.py", "def late():\n    from fastssl import cli"),
        (
            "fastssl/algorithms/wrong.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fastssl.engine.loop",
        ),
    ],
)
def test_the_rule_sees_an_import_that_goes_up(tmp_path, module, line):
    for name in ("fastssl/cli", "fastssl/engine", "fastssl/algorithms"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("pipelines/store", "pipelines/convert"):
        (tmp_path / name).mkdir(parents=True)
    for name in (
        "fastssl/cli/__init__.py",
        "fastssl/engine/loop.py",
        "pipelines/convert/driver.py",
    ):
        (tmp_path / name).write_text("")
    assert not back_edges(tmp_path)
    (tmp_path / module).write_text(line + "\n")
    assert len(back_edges(tmp_path)) == 1


def test_the_rule_sees_a_cycle(tmp_path):
    (tmp_path / "fastssl/engine").mkdir(parents=True)
    (tmp_path / "fastssl/engine/a.py").write_text("from fastssl.engine import b\n")
    (tmp_path / "fastssl/engine/b.py").write_text("def f():\n    from fastssl.engine import a\n")
    assert cycles(tmp_path) == [["fastssl.engine.a", "fastssl.engine.b"]]


def test_no_folder_holds_more_modules_than_a_reader_can_survey():
    folders = {path.parent for path in read_modules(ROOT).values()}
    crowded = [
        str(folder.relative_to(ROOT))
        for folder in folders
        if folder.name != "algorithms" and len(list(folder.glob("[!_]*.py"))) > 20
    ]
    assert not crowded
