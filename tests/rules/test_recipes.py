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
RECIPES = ("algorithm", "dataset", "reader")


def section(name: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return re.search(rf"^## Add an? {name}\n(.*?)(?=^## )", text, re.M | re.S)[1]


def copy_repository(folder: Path) -> None:
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
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
