"""The tutorial, as it is written: its own commands, in order, on real pictures where there are."""

import csv
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from tests.pictures import noise
from tests.real_data import PHOTOS

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "own_images.md"


def commands() -> list[str]:
    return re.findall(r"^```sh\n(.*?)\n```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)


def write_photographs(place: Path) -> None:
    """Lay out real photographs as the tutorial wants them: 15 of each class, and 3 to test."""
    with tarfile.open(PHOTOS) as archive:
        for name in sorted(archive.getnames()):
            parts = Path(name).parts
            if len(parts) != 5 or parts[1] != "ilsvrc":
                continue
            kind, label, file = parts[2:]
            folder = place / "images" if kind == "train" else place / "test" / label
            folder.mkdir(parents=True, exist_ok=True)
            if len(list(folder.glob(f"{label}*"))) < (15 if kind == "train" else 3):
                content = archive.extractfile(name)
                assert content is not None
                (folder / f"{label}-{file}").write_bytes(content.read())


def draw_pictures(place: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(10):
        for count in range(18):
            folder = place / "images" if count < 15 else place / "test" / f"n{number}"
            folder.mkdir(parents=True, exist_ok=True)
            picture = noise((60, 48), random)
            Image.blend(picture, noise((60, 48), np.random.default_rng(number)), 0.7).save(
                folder / f"n{number}-{count}.jpg"
            )


def lay_out(place: Path) -> None:
    write_photographs(place) if PHOTOS.exists() else draw_pictures(place)
    seen: dict[str, int] = {}
    rows = []
    for path in sorted((place / "images").iterdir()):
        label = path.name.split("-")[0]
        seen[label] = seen.get(label, 0) + 1
        rows += [[path.name, label]] if seen[label] <= 5 else []
    assert len(seen) == 10 and len(rows) == 50
    with (place / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def test_the_tutorial_has_seven_commands() -> None:
    verbs = [line.split()[1] for line in commands()]
    assert verbs == ["convert", "verify", "train", "eval", "predict", "label", "report"]


def test_the_tutorial_passes_as_it_is_written(tmp_path: Path) -> None:
    lay_out(tmp_path)
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "STEPS": "3", "PATH": f"{folder}:{os.environ['PATH']}"}
    environment.pop("FASTSSL_DATA", None)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands())],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=one_core,  # other tests want the cores too
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tested = len(list(tmp_path.glob("test/*/*")))
    with (tmp_path / "predictions.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == tested == 30
    with (tmp_path / "pseudo.csv").open(newline="") as file:
        kinds = [row["trusted"] for row in csv.DictReader(file)]
    assert kinds.count("given") == 50 and len(kinds) <= 150
    assert (tmp_path / "pseudo.html").stat().st_size > 1000
    assert "<html" in (tmp_path / "report.html").read_text()[:300].lower()


def test_the_python_of_the_tutorial_is_python() -> None:
    (text,) = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    compile(text, "tutorial", "exec")
