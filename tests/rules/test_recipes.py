"""The recipes of CONTRIBUTING.md, executed as they are written, in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fastssl", "pipelines", "configs", "tools", "tests", "docs")
# Two of them start a pytest of their own, which imports and compiles everything once more.
RECIPES = {"dataset": (), "algorithm": (pytest.mark.slow,), "reader": (pytest.mark.slow,)}


def section(name: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return re.search(rf"^## Add an? {name}\n(.*?)(?=^## )", text, re.M | re.S)[1]


def unfinished(folder: str, names: list[str]) -> set[str]:
    """Return what another process is still writing: compiled code is renamed when it is whole."""
    cached = folder.endswith("__pycache__")
    return {name for name in names if cached and not name.endswith((".pyc", ".nbi", ".nbc"))}


def copy_repository(folder: Path) -> None:
    """Copy what is compiled, too: numba would take 20 s for the kernels of every copy."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=unfinished)
    for name in ("README.md", "setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)


def apply_blocks(text: str, folder: Path) -> list[str]:
    """Write the files that the recipe names; return their names."""
    names = []
    for block in re.findall(r"^```(?:python|yaml)\n(.*?)^```", text, re.M | re.S):
        action, name = re.match(r"# (new file|add to): (\S+)\n", block).groups()
        path = folder / name
        assert path.exists() == (action == "add to"), f"{action}: {name}"
        before = path.read_text() + "\n" if action == "add to" else ""
        path.write_text(before + block.split("\n", 1)[1])
        names.append(name)
    return names


@pytest.mark.parametrize("name", RECIPES)
def test_the_files_of_a_recipe_are_python_and_fit_into_the_repository(name, tmp_path):
    copy_repository(tmp_path)
    names = apply_blocks(section(name), tmp_path)
    assert names
    for path in (tmp_path / name for name in names if name.endswith(".py")):
        compile(path.read_text(), path, "exec")


@pytest.mark.parametrize("name", [pytest.param(n, marks=m) for n, m in RECIPES.items()])
def test_a_recipe_works_as_it_is_written(name, data, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    copy_repository(folder)
    text = section(name)
    assert apply_blocks(text, folder)
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FASTSSL_DATA": str(data if name != "dataset" else tmp_path / "data"),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PYTEST_XDIST_WORKER", None)
    commands = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    assert commands
    for line in "\n".join(commands).splitlines():
        done = subprocess.run(
            line, shell=True, cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        assert "deselected" not in done.stdout or " passed" in done.stdout, line
