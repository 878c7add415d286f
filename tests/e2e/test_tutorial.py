"""The tutorial, as it is written: its own commands, in order, on real images where there are."""

import csv
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fastssl import models
from pipelines.store.store import open_store
from tests.image_files import noise
from tests.real_data import PHOTOS

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "own_images.md"


def commands() -> list[str]:
    return re.findall(r"^```sh\n(.*?)\n```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)


# What makes the commands quick, and run without timm and its weights.
QUICK = {
    "--minutes 30": "--minutes 0 model=wrn-10-1 pretrained=weights.pth --size 32",
    "--size 224": "--size 32",
    "probe data/mine": "probe data/mine model=wrn-10-1 pretrained=weights.pth",
    "choose data/bare": "choose data/bare model=wrn-10-1 pretrained=weights.pth",
    "steps=400 warmup=40": "steps=3 warmup=1 model=wrn-10-1",
}


def quick_commands() -> list[str]:
    text = "\n===\n".join(commands())
    for written, quick in QUICK.items():
        assert written in text, written
        text = text.replace(written, quick)
    return text.split("\n===\n")


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
            photo = noise((60, 48), random)
            Image.blend(photo, noise((60, 48), np.random.default_rng(number)), 0.3).save(
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


def test_the_tutorial_has_one_command_and_its_steps() -> None:
    first, *verbs = [line.split()[1] for block in commands() for line in block.splitlines()]
    steps = ["convert", "verify", "probe", "train", "eval", "predict", "label", "report"]
    assert first == "auto" and verbs == [*steps, "convert", "choose", "choose"]


def run(lines: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    environment.pop("FASTSSL_DATA", None)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=one_core,  # other tests want the cores too
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_tutorial_passes_as_it_is_written(tmp_path: Path) -> None:
    place = tmp_path / "it's mine"  # the line that is printed must quote it
    place.mkdir()
    lay_out(place)
    torch.save(models.build("wrn-10-1", classes=10).state_dict(), place / "weights.pth")
    done = run(quick_commands(), place)
    assert "3/5 train: left out: the 0 minutes are over" in done.stderr
    assert "best: probe: the only model" in done.stdout
    assert "<html" in (place / "runs/mine/report.html").read_text()[:300].lower()
    tested = len(list(place.glob("test/*/*")))
    assert len(read(place / "predictions.csv")) == tested == 30
    assert "accuracy" in done.stdout and "confused most often" in done.stdout
    assert "expected precision of the trusted labels: " in done.stdout
    sources = [row["source"] for row in read(place / "pseudo.csv")]
    assert sources.count("given") == 50 and len(sources) <= 150
    assert (place / "pseudo.html").stat().st_size > 1000
    assert "<html" in (place / "report.html").read_text()[:300].lower()

    (line,) = [
        line for line in done.stdout.splitlines() if line.startswith("next: ") and "-2" in line
    ]
    by_choice = label_the_chosen(place, done.stdout)
    with (place / "pseudo.csv").open("a") as file:  # as if the model trusted an image
        listed = {row["path"] for row in read(place / "pseudo.csv")}
        unlabeled = [str(path) for path in (place / "images").iterdir() if str(path) not in listed]
        label = Path(unlabeled[0]).name.split("-")[0]
        file.write(f"{unlabeled[0]},{label},0.990000,0.950000,yes,pseudo\n")
    run([line.removeprefix("next: "), by_choice], place)
    first, again = (open_store(place / "data" / name) for name in ("mine", "mine-2"))
    assert again.class_names == first.class_names
    tests = [
        dict(zip(one.source_paths("test"), one.labels("test").tolist(), strict=True))
        for one in (first, again)
    ]
    assert tests[0] == tests[1], "the test set has changed"
    assert (again.labels("train") >= 0).sum() == len(listed) + 1
    assert again.splits["train"].count == first.splits["train"].count
    assert (open_store(place / "data/bare-2").labels("train") >= 0).sum() == 25


def label_the_chosen(place: Path, stdout: str) -> str:
    """Fill in the list of `choose` as a user does; return the line that it printed."""
    line, other = re.findall(r"^then: (.*)$", stdout, re.MULTILINE)
    assert other == line.replace("to_label.csv", "to_label-labeled.json")
    chosen = [row["path"] for row in read(place / "to_label.csv")]
    tasks = json.loads((place / "to_label.json").read_text())
    assert len(chosen) == 25 and [task["data"]["path"] for task in tasks] == chosen
    assert all(task["data"]["image"].startswith("/data/local-files/?d=images/") for task in tasks)
    with (place / "to_label.csv").open("w", newline="") as file:
        rows = [(path, Path(path).name.split("-")[0]) for path in chosen]
        csv.writer(file).writerows([("path", "label"), *rows])
    return line


def test_the_python_of_the_tutorial_is_python() -> None:
    (text,) = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    compile(text, "tutorial", "exec")
