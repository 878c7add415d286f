"""`auto`: the printed commands do the same, what is complete is not done again, and refusals."""

import csv
import json
import logging
import shlex
import shutil

import pytest
import torch

import fastssl
from fastssl.automation import budget, steps
from fastssl.automation.budget import Cost
from fastssl.automation.state import LOCK, State
from fastssl.errors import ConfigError, DataError
from fastssl.tracking.run_dir import LOCK as RUN_LOCK
from pipelines.files import Lock
from pipelines.store.store import open_store
from tests import runs
from tests.image_files import write_flat, write_folder

TINY = {
    "model": "wrn-10-1",
    "batch": 4,
    "ratio": 1,
    "threads": 1,
    "loader_threads": 1,
    "eval_batch": 100,
    "tensorboard": False,
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder with images, where a step takes 12 s and three are worth their time."""
    write_folder(tmp_path / "images", 3, 6)
    write_folder(tmp_path / "test", 3, 4, seed=1)
    write_flat(tmp_path / "more", 6)
    write_flat(tmp_path / "flat", 12)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(budget, "measure", lambda _: Cost(image=1.0, startup=0.0, memory=0))
    monkeypatch.setattr(budget, "FEWEST", 3)
    monkeypatch.setattr(State, "spent", lambda _: 0.0)
    return tmp_path


def auto(**changes):
    given = {"unlabeled": "more", "test": "test", "out": "out", "minutes": 0.9, **TINY}
    return fastssl.auto("images", **{**given, **changes})


@pytest.fixture
def lines():
    """Collect the messages of fastssl."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logging.getLogger("fastssl").addHandler(handler)
    yield found
    logging.getLogger("fastssl").removeHandler(handler)


def printed(lines):
    """Return the commands that the steps print, without their numbers."""
    return [line.split(": ", 1)[1] for line in lines if line[:2] in ("1/", "2/", "3/", "5/")]


def test_the_printed_commands_do_the_same(place, lines):
    done = auto()
    assert [row["model"] for row in done["runs"]] == ["probe", "fine-tuned"]
    best = max(done["runs"], key=lambda row: row["accuracy"])
    assert done["run"] == best["run"] and done["runs"][0]["test images"] == 12
    for command in printed(lines):
        words = [word.replace("out/", "by hand/") for word in shlex.split(command)[1:]]
        assert runs.finish(place, *words).code == 0, command
    one, other = (open_store(place / out / "store") for out in ("out", "by hand"))
    assert one.fingerprint == other.fingerprint and one.splits["train"].count == 24
    heads = [
        json.loads((place / out / "probe/probe.json").read_text())["heads"]
        for out in ("out", "by hand")
    ]
    assert [row["accuracy"] for row in heads[0]] == [row["accuracy"] for row in heads[1]]
    runs.assert_same_run(place / "out/train", place / "by hand/train")
    assert runs.last(place / "out/train")["trip"]["step"] == 3  # (54 s - 12 images) / 12 s
    report = (place / "out/report.html").read_text().lower()
    assert "flexmatch" in report and "supervised" in report  # both runs
    assert (place / "by hand/report.html").exists()


@pytest.fixture
def bilinear(place):
    """Return settings of a network whose weights expect images of bilinear interpolation."""
    from torchvision.models import resnet18

    torch.save(resnet18().state_dict(), place / "w.pth")
    return {"model": "torchvision:resnet18", "pretrained": "w.pth", "size": 32, "minutes": 0}


def test_images_are_resized_by_the_interpolation_of_the_weights(place, lines, bilinear):
    auto(**bilinear)
    command = printed(lines)[0]
    assert command.endswith("--interpolation bilinear")
    words = [word.replace("out/", "by hand/") for word in shlex.split(command)[1:]]
    assert runs.finish(place, *words).code == 0
    one, other = (open_store(place / out / "store") for out in ("out", "by hand"))
    assert one.fingerprint == other.fingerprint and one.manifest.interpolation == "bilinear"
    assert not any("bilinear interpolation, not" in line for line in lines)  # the hint of a probe
    lines.clear()
    fastssl.auto("flat", **{**TINY, **bilinear, "out": "flat out", "choose": 2})
    assert printed(lines)[0].endswith("--interpolation bilinear")
    assert open_store(place / "flat out/unlabeled").manifest.interpolation == "bilinear"


def forget_interpolation(file):
    """Make a state as earlier versions wrote it, when every image was resized by bicubic."""
    content = json.loads(file.read_text())
    for entry in content.values():
        entry.pop("interpolation", None)
    file.write_text(json.dumps(content))


def test_images_of_another_interpolation_than_that_of_the_weights_are_refused(place, bilinear):
    auto(**bilinear)
    forget_interpolation(place / "out/auto.json")
    with pytest.raises(ConfigError, match=r"out/store was made for .* bicubic .*, not of bilinear"):
        auto(**bilinear)
    flat = {**TINY, **bilinear, "out": "flat out", "choose": 2}
    fastssl.auto("flat", **flat)
    forget_interpolation(place / "flat out/auto.json")
    with pytest.raises(ConfigError, match=r"out/unlabeled was made for .* bicubic"):
        fastssl.auto("flat", **flat)


def test_bicubic_images_of_an_earlier_version_are_taken(place):
    done = auto(minutes=0)
    forget_interpolation(place / "out/auto.json")
    assert auto(minutes=0) == done


def test_what_is_complete_is_not_done_again(place, lines, monkeypatch):
    first = auto()
    files = {path: path.stat().st_mtime_ns for path in (place / "out").rglob("*.ckpt")}
    lines.clear()
    for name in ("run_convert", "fit_probe", "run_training"):
        monkeypatch.setattr(steps, name, None)
    monkeypatch.setattr(budget, "plan", None)
    assert auto(threads=2) == first  # the number of threads may change
    assert sum("done before" in line for line in lines) == 3
    assert files and all(path.stat().st_mtime_ns == time for path, time in files.items())


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"unlabeled": None}, "--unlabeled"),
        ({"size": 16}, "--size 16"),
        ({"seed": 3}, "seed=3"),
        ({"model": "wrn-10-2"}, "model=wrn-10-2"),
        ({"lr": 0.01}, "lr=0.01"),
        ({"minutes": 2}, "--minutes 2"),
    ],
)
def test_other_options_are_refused_before_any_work(place, lines, changes, what):
    auto()
    lines.clear()
    with pytest.raises(ConfigError) as caught:
        auto(**changes)
    option = what.lstrip("-").split()[0].split("=")[0]
    assert option in str(caught.value) and "was made" in str(caught.value) and not lines
    assert len(str(caught.value).splitlines()) == 2


def test_a_path_with_spaces_in_a_refusal_is_quoted(place):
    (place / "test").rename(place / "my test")
    auto(test="my test", minutes=0)
    with pytest.raises(ConfigError) as caught:
        auto(test=None, minutes=0)
    assert f"'{place}/my test' to go on" in str(caught.value)


@pytest.mark.parametrize("minutes", [-1, float("nan"), float("inf")])
def test_minutes_that_are_no_time_are_refused(place, minutes):
    with pytest.raises(ConfigError, match="minutes= is"):
        auto(minutes=minutes)
    assert not (place / "out").exists()


def test_training_settings_may_change_until_the_training_begins(place, lines):
    done = auto(minutes=0.2)
    assert len(done["runs"]) == 1 and done["run"] == "out/probe"
    (why,) = [line for line in lines if line.startswith("3/5")]
    minutes = int(why.rsplit(" ", 1)[1])
    assert "0 steps of 12.0 s fit" in why
    assert len(auto(minutes=minutes, lr=0.01)["runs"]) == 2


def test_a_changed_list_of_labels_is_refused(place):
    listed = place / "labels.csv"
    rows = [f"class{label}/picture{n}.{kind}" for label in range(3) for n, kind in ((0, "jpg"),)]
    listed.write_text("".join(f"{row},{row[:6]}\n" for row in rows))
    auto(labels="labels.csv")
    listed.write_text(listed.read_text() + "class0/picture1.png,class0\n")
    with pytest.raises(ConfigError, match="another content of"):
        auto(labels="labels.csv")


def test_images_without_a_label_are_chosen_and_labeled(place, lines):
    given = {"out": "out", "choose": 6, **TINY}
    done = fastssl.auto("flat", **given)
    assert "--labels out/to_label.csv" in done["next"] and "--choose" not in done["next"]
    with open(done["to_label"], newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 7 and len(printed(lines)) == 2
    again = {**given, "labels": done["to_label"]}
    del again["choose"]
    with pytest.raises(DataError, match="lists no label"):
        fastssl.auto("flat", **again)
    filled = [rows[0], *([path, "ab"[n % 2]] for n, (path, _) in enumerate(rows[1:]))]
    with open(done["to_label"], "w", newline="") as file:
        csv.writer(file).writerows(filled)
    (place / "out/to_label.html").unlink()
    assert fastssl.auto("flat", **given) == done  # the user's labels are not overwritten
    with open(done["to_label"], newline="") as file:
        assert list(csv.reader(file)) == filled
    lines.clear()
    found = fastssl.auto("flat", **again)
    assert found["run"] == "out/probe" and "the only model" in found["best"]
    assert any(line.startswith("3/5 train: left out: no image") for line in lines)
    assert (open_store(place / "out/store").labels("train") >= 0).sum() == 6


def test_the_classes_of_the_test_images_are_named_before_and_after_the_labeling(place, lines):
    given = {"out": "out", "test": "test", **TINY}
    done = fastssl.auto("flat", choose=4, **given)
    (named,) = [line for line in lines if "each class that test has" in line]
    assert named.endswith("out/to_label.csv: class0, class1, class2")
    with open(done["to_label"], newline="") as file:
        rows = list(csv.reader(file))
    rows[1:] = [[path, f"class{n % 2}"] for n, (path, _) in enumerate(rows[1:])]

    def labeled():
        with open(done["to_label"], "w", newline="") as file:
            csv.writer(file).writerows(rows)
        return fastssl.auto("flat", labels=done["to_label"], minutes=0, **given)

    lines.clear()
    with pytest.raises(DataError, match="class2 is a class that the training") as caught:
        labeled()
    assert caught.value.fix.startswith("label an image of that class, or leave its test images out")
    assert caught.value.fix.endswith("class0, class1") and not lines
    listed = {path for path, _ in rows}
    rows.append(
        [next(str(p) for p in (place / "flat").iterdir() if str(p) not in listed), "class2"]
    )
    assert labeled()["runs"][0]["test images"] == 12


def test_a_missing_test_folder_is_refused_before_images_are_chosen(place):
    with pytest.raises(DataError, match="there is no folder"):
        fastssl.auto("flat", out="out", test="none", choose=4, **TINY)
    assert not (place / "out").exists()


def test_a_choice_that_was_cut_off_takes_other_options_but_no_other_images(place):
    with pytest.raises(ConfigError):
        fastssl.auto("flat", out="out", choose=1000, **TINY)  # the images are converted
    assert (place / "out/unlabeled/dataset.json").exists()
    with pytest.raises(ConfigError, match=r"out/unlabeled was made with .*flat, not with .*more"):
        fastssl.auto("more", out="out", choose=6, **TINY)
    done = fastssl.auto("flat", out="out", choose=6, **TINY)
    assert fastssl.auto("flat", out="out", choose=6, **TINY) == done


def test_labels_of_one_class_are_refused_before_the_conversion(place):
    (place / "labels.csv").write_text("loose0.jpg,a\nloose1.jpg,a\n")
    with pytest.raises(DataError, match="one class"):
        fastssl.auto("flat", out="out", labels="labels.csv", **TINY)
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("folder", "given", "what"),
    [
        ("none", {}, "'none' is no folder"),
        ("images", {"unlabeled": "none"}, "there is no folder .*none"),
        ("images", {"test": "none"}, "there is no folder .*none"),
    ],
)
def test_missing_images_are_reported_before_weights_are_read(place, folder, given, what):
    with pytest.raises(DataError, match=what):
        fastssl.auto(folder, out="out", pretrained="none.pth", **{**TINY, **given})
    assert not (place / "out").exists()


def test_missing_weights_are_reported_before_the_conversion(place):
    with pytest.raises(DataError, match="no such file"):
        auto(pretrained="none.pth")
    assert not (place / "out").exists()


def test_a_missing_library_is_reported_before_any_work(place, monkeypatch):
    from fastssl.models import backbones

    monkeypatch.setattr(backbones, "import_problem", lambda _: "is not installed")
    monkeypatch.setattr(backbones, "own_inputs", None)
    with pytest.raises(ConfigError, match="needs timm, which is not installed"):
        auto(model="timm:resnet18")
    assert not (place / "out").exists()


def test_results_inside_the_images_are_refused(place):
    with pytest.raises(ConfigError, match="lies inside"):
        auto(out="images/out")
    assert not (place / "images/out").exists()


def test_validation_images_choose_without_test_images(place):
    write_folder(place / "many", 2, 8)
    done = fastssl.auto("many", out="out", minutes=0.9, validation=0.4, **TINY)
    assert [row["accuracy"] for row in done["runs"]] == [None, None]
    assert all(row["validation"] is not None for row in done["runs"])
    assert "validation images" in done["best"]


@pytest.mark.parametrize("key", ["steps", "max_time", "store"])
def test_a_key_that_auto_chooses_is_refused(place, key):
    with pytest.raises(ConfigError, match=f"{key} is chosen by auto"):
        auto(**{key: 5})


def test_a_probe_that_was_cut_off_is_made_again(place):
    auto(minutes=0)
    (place / "out/probe/probe.json").unlink()
    (place / "out/probe/summary.json").unlink()
    assert auto(minutes=0)["runs"][0]["accuracy"] is not None
    assert (place / "out/probe/summary.json").exists()


def test_a_probe_of_other_images_than_those_of_the_store_is_refused(place):
    auto(minutes=0)
    shutil.rmtree(place / "out/store")
    assert auto(minutes=0)["run"] == "out/probe"  # the same images
    shutil.rmtree(place / "out/store")
    (place / "images/class0/picture1.png").unlink()
    with pytest.raises(ConfigError, match="out/probe was made with another content of FOLDER"):
        auto(minutes=0)


def test_files_of_the_user_in_place_of_a_probe_are_kept(place):
    auto(minutes=0)
    mine = (place / "out/probe").rename(place / "mine")
    (mine / "probe.json").unlink()
    (mine / "config.yaml").unlink()
    (place / "out/probe").symlink_to(mine)
    files = sorted(path.name for path in mine.iterdir())
    with pytest.raises(ConfigError, match="holds files, but no run"):
        auto(minutes=0)
    assert sorted(path.name for path in mine.iterdir()) == files


def test_a_probe_that_another_process_writes_is_left_alone(place):
    auto(minutes=0)
    (place / "out/probe/probe.json").unlink()
    lock = Lock(place / "out/probe" / RUN_LOCK)
    with pytest.raises(ConfigError, match="another run is writing"):
        auto(minutes=0)
    lock.release()
    assert (place / "out/probe/config.yaml").exists()


@pytest.mark.parametrize(("code", "kind"), [(130, KeyboardInterrupt), (143, SystemExit)])
def test_a_signal_in_the_training_ends_the_command(place, monkeypatch, code, kind):
    with monkeypatch.context() as context:
        context.setattr(steps, "run_training", lambda *_, **__: code)
        with pytest.raises(kind) as caught:
            auto()
    assert code == 130 or caught.value.code == code
    assert not (place / "out" / LOCK).exists()
    assert len(auto()["runs"]) == 2


def test_a_folder_of_others_and_a_folder_in_use_are_refused(place):
    (place / "out").mkdir()
    (place / "out/mine.txt").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        auto()
    assert [path.name for path in (place / "out").iterdir()] == ["mine.txt"]
    (place / "other").mkdir()
    lock = Lock(place / "other" / LOCK)
    with pytest.raises(ConfigError, match="another process is writing"):
        auto(out="other")
    lock.release()


@pytest.mark.parametrize(
    "entry",
    [
        {"seconds": 5},
        {"seconds": {"probe": "long"}},
        {"seconds": {"probe": float("inf")}},
        {"store": []},
        {"probe": 7},
        {"train": 5},
        {"train": {"batch": 4}},
        {"train": {"steps": "5"}},
        {"train": {"steps": 5, "algorithm": "out/theirs.py"}},
    ],
)
def test_a_state_that_auto_did_not_write_is_damaged(place, entry):
    auto(minutes=0)
    file = place / "out/auto.json"
    asked = {**json.loads(file.read_text())["asked"], "--minutes": 0.9}
    (place / "out/theirs.py").write_text("open('ran', 'w')")
    file.write_text(json.dumps({**json.loads(file.read_text()), "asked": asked, **entry}))
    with pytest.raises(DataError, match="is damaged"):
        auto()
    assert not (place / "ran").exists()


def test_an_interruption_says_how_to_continue(place, lines, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(steps, "run_convert", interrupted)
        auto()
    assert lines[-1] == "interrupted; type the same command to continue"
