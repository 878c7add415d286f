"""Tasks that Label Studio serves by its own rules, and the way back from its exports."""

import json
import os
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

import fastssl
from fastssl.errors import ConfigError
from fastssl.probing import to_label
from fastssl.probing.label_studio import local_files
from tests.image_files import write_flat

SETTINGS = {"model": "wrn-10-1", "threads": 1, "loader_threads": 1}
HOSTILE = "my photos & größe #1+1 100%"


def convert(folder, out, **options):
    return fastssl.convert(folder, out, size=16, test_fraction=0, progress=False, **options)


def bare(folder, **options):
    return convert(folder, folder.parent / "store", no_labels=True, **options)


def write(store, out):
    """Write tasks for all images and return them, and the folders for Label Studio."""
    files = local_files(store)
    to_label.write(store, np.arange(store.splits["train"].count), out, files)
    return json.loads(out.read_text()), files


def served(task, files):
    """Return the file that Label Studio 1.23 serves for a task; None is its answer 404."""
    inside = parse_qs(urlsplit(task["data"]["image"]).query)["d"][0]
    path = os.path.normpath(os.path.join(files.root, os.path.normpath(inside).lstrip("/")))
    allowed = [folder for folder in files.storages if files.root in folder.parents]
    if not any(Path(path).parent.is_relative_to(folder) for folder in allowed):
        return None
    return path if os.path.exists(path) else None


@pytest.mark.parametrize("folder", ["images", f"{HOSTILE}/inner folder", f"images/{HOSTILE}"])
def test_every_image_of_a_folder_is_served(tmp_path, folder):
    write_flat(tmp_path / folder, 3)
    first = tmp_path / Path(folder).parts[0]
    tasks, files = write(bare(first), tmp_path / "tasks.json")
    assert files == (tmp_path, [first]), "the folder that was converted, and the one above"
    assert [served(task, files) for task in tasks] == [task["data"]["path"] for task in tasks]
    assert len(tasks) == 3


def test_images_of_two_folders_have_a_storage_each(tmp_path):
    write_flat(tmp_path / "some/images", 3)
    write_flat(tmp_path / "other/more", 2)
    unlabeled = tmp_path / "some" / ".." / "other"
    tasks, files = write(bare(tmp_path / "some/images", unlabeled=unlabeled), tmp_path / "a.json")
    assert files == (tmp_path, [tmp_path / "other", tmp_path / "some"])
    assert len(tasks) == 5 and all(served(task, files) for task in tasks)


@pytest.mark.parametrize("form", ["JSON", "JSON-MIN"])
@pytest.mark.parametrize("kept", ["path", "new image", "old image", "another root"])
def test_an_export_finds_its_images(tmp_path, form, kept):
    """`path` comes back from Label Studio; without it the image's place below the root is read."""
    folder = tmp_path / HOSTILE / "images"
    write_flat(folder / "a b", 4)
    tasks, files = write(bare(folder), tmp_path / "tasks.json")
    export = []
    for number, task in enumerate(tasks):
        data, label = task["data"], f"class {number % 2}"
        root = {"old image": folder, "another root": tmp_path}.get(kept, files.root)
        if kept != "path":
            del data["path"]
            inside = str(Path(served(task, files)).relative_to(root))
            data["image"] = "/data/local-files/?d=" + "".join(
                f"%{byte:02X}" if byte != ord("/") else "/" for byte in inside.encode()
            )
        result = [{"value": {"choices": [label]}, "from_name": "label", "type": "choices"}]
        annotation = {"result": result, "was_cancelled": False}
        full = {"id": number, "data": data, "annotations": [annotation]}
        export.append(full if form == "JSON" else {**data, "id": number, "label": label})
    (tmp_path / "export.json").write_text(json.dumps(export))
    store = convert(folder, tmp_path / "labeled", labels=tmp_path / "export.json")
    assert store.labels("train").tolist() == [0, 1, 0, 1] and store.splits["train"].count == 4


def test_the_format_names_the_file_and_what_to_do_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_flat(tmp_path / "images", 4)
    bare(tmp_path / "images")
    done = fastssl.choose("store", 2, form="labelstudio", **SETTINGS)
    assert done["out"] == "to_label.json" and not Path("to_label.csv").exists()
    assert f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={tmp_path} " in done["start"]
    assert (
        done["storages"] == [str(tmp_path / "images")] and done["storages"][0] in done["steps"][0]
    )
    assert "--labels to_label-labeled.json" in done["next"]
    assert fastssl.choose("store", 2, **SETTINGS)["out"] == "to_label.csv"


@pytest.mark.parametrize(
    ("form", "out", "fix"),
    [("labelstudio", "a.csv", ".json"), ("labelstudio", "a", ".json"), ("csv", "a.JSON", ".csv"),
     ("labelstudio", "a.html", ".json")],
)  # fmt: skip
def test_a_suffix_that_contradicts_the_format_is_refused_before_any_work(form, out, fix):
    with pytest.raises(ConfigError, match=f"end (its name|out=) in {fix}") as caught:
        fastssl.choose("no store", 2, out=out, form=form)
    assert len(str(caught.value).splitlines()) == 2


def test_labels_in_an_export_are_not_overwritten(tmp_path):
    write_flat(tmp_path / "images", 4)
    out = tmp_path / "tasks.json"
    store = bare(tmp_path / "images")
    tasks, _ = write(store, out)
    tasks[0]["annotations"] = [{"result": [{"value": {"choices": ["cat"]}}]}]
    out.write_text(json.dumps(tasks))
    with pytest.raises(ConfigError, match="1 labels that"):
        fastssl.choose(store.path, 2, out=out, form="labelstudio", **SETTINGS)
    out.write_text('[{"data": 7}]')
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        fastssl.choose(store.path, 2, out=out, form="labelstudio", **SETTINGS)
    assert len(str(caught.value).splitlines()) == 2
