"""What a resumed run compares, refuses, keeps and writes anew."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

import fastssl
from fastssl.algorithms import ALGORITHMS
from fastssl.engine import checkpoint, launch
from fastssl.errors import ConfigError, DataError, ResourceError
from fastssl.tracking.run_dir import RunFolder
from pipelines.store.store import open_store
from tests import runs
from tests.small_stores import make_store
from tests.unit.test_plugins import ALGORITHM, MODEL

TINY = {
    "model": "wrn-10-1", "batch": 10, "ratio": 1, "steps": 4, "eval_every": 4, "threads": 1,
    "eval_every_late": 4, "log_every": 2, "checkpoint_every": 2, "tensorboard": False,
    "compile": "off", "loader_threads": 1,
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch, data):
    monkeypatch.setattr(ALGORITHMS, "_items", dict(ALGORITHMS._items))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "half.py").write_text(ALGORITHM)
    return tmp_path


def train(out="run", **settings):
    return fastssl.train("digits", out=out, **{**TINY, **settings})


def begin(**settings):
    """Train a run until it is interrupted after its first step."""
    done = train(**settings, max_time=1e-9)
    assert done["status"] == "out of time" and done["steps"] < 4
    return Path("run")


def content_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def labeled(count, start=0):
    """Return the text of a split with the first images, whatever their classes."""
    return "".join(f"{index}\n" for index in range(start, start + count))


def change_label_file(place):
    (place / "split.txt").write_text(labeled(40, 100))


def change_algorithm(place):
    (place / "half.py").write_text(ALGORITHM.replace("config.weight *", "2 * config.weight *"))


def change_model(place):
    (place / "net.py").write_text(MODEL.replace("relu()", "sigmoid()"))


def change_version(place):
    import fastssl.engine.build_data

    fastssl.engine.build_data.__version__ = "9.9"


@pytest.mark.parametrize(
    ("settings", "change", "name"),
    [
        ({"label_file": "split.txt"}, change_label_file, "label_file split.txt"),
        ({"algorithm": "half.py"}, change_algorithm, "half.py"),
        ({"model": "net.py:build"}, change_model, "net.py"),
        ({}, change_version, "fastssl"),
    ],
)
def test_resume_refuses_a_changed_input_and_accepts_it_on_request(
    place, monkeypatch, settings, change, name
):
    monkeypatch.setattr("fastssl.engine.build_data.__version__", "0.2.0")
    (place / "split.txt").write_text(labeled(40))
    run = begin(**settings)
    before = content_of(run)
    change(place)
    with pytest.raises(DataError, match="another content of") as caught:
        train(**settings, resume=True)
    assert name in caught.value.what and "accept" in caught.value.fix
    assert content_of(run) == before, "a refusal writes nothing"
    first = json.loads((run / "environment.json").read_text())
    assert train(**settings, resume=True, accept_changes=True)["steps"] == 4
    then = json.loads((run / "environment.json").read_text())
    (key,) = then.pop("changed_inputs")
    assert then.pop("inputs") == runs.last(run)["inputs"] != first.pop("inputs")
    assert then == first and (key in name or key in settings)
    assert train(**settings, resume=True)["steps"] == 4


@pytest.mark.parametrize("what", ["label_file", "model", "store"])
def test_a_finished_run_is_not_taken_for_one_of_changed_inputs(place, data, what):
    shutil.copytree(data / "digits", "mine")
    (place / "split.txt").write_text(labeled(40))
    settings = {"label_file": "split.txt", "model": "net.py:build", "store": "mine"}
    train(**settings)
    before = content_of(Path("run"))
    assert train(**settings, resume=True)["steps"] == 4
    if what == "store":
        shutil.rmtree("mine")
        assert train(**settings, resume=True)["steps"] == 4, "a finished run needs no store"
        make_store(place / "mine", count=40, size=16)
    else:
        {"label_file": change_label_file, "model": change_model}[what](place)
    with pytest.raises(DataError, match=f"another content of: {what}"):
        train(**settings, resume=True)
    assert content_of(Path("run")) == before
    assert train(**settings, resume=True, accept_changes=True)["steps"] == 4


def test_a_file_that_moved_with_the_same_content_is_the_same(place):
    begin(algorithm="half.py")
    (place / "moved").mkdir()
    shutil.move(place / "half.py", place / "moved" / "half.py")
    assert train(algorithm="moved/half.py", resume=True)["steps"] == 4


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"model": "net.py:build"}, {"model": "net.py:other"}),
        ({"model": "net.py:build"}, {"model": "wrn-10-1"}),
        ({"algorithm": "half.py"}, {"algorithm": "supervised"}),
        ({"label_file": "split.txt"}, {}),
    ],
)
def test_a_file_is_not_exchanged_for_another_name(place, first, then):
    (place / "net.py").write_text(MODEL + "\ndef other(classes):\n    return Net(classes)\n")
    (place / "split.txt").write_text(labeled(40))
    begin(**first)
    with pytest.raises(ConfigError, match="was started with"):
        train(**then, resume=True, accept_changes=True)


def test_a_checkpoint_without_hashes_is_accepted(place):
    (place / "split.txt").write_text(labeled(40))
    run = begin(label_file="split.txt")
    for path in (run / "checkpoints").glob("*.ckpt"):
        content = checkpoint.read(path)
        for key in ("inputs", "heads", "store_name"):
            del content[key]
        path.write_bytes(checkpoint.pack(content))
    change_label_file(place)
    assert train(label_file="split.txt", resume=True)["steps"] == 4


def test_a_run_is_compared_by_the_kind_of_fingerprint_that_it_saved(place, data):
    run, store = begin(), open_store(data / "digits")
    (path,) = (run / "checkpoints").glob("step-*.ckpt")
    content = checkpoint.read(path)
    assert content["inputs"]["store"] == store.fingerprint
    assert content["store"] == store.manifest_digest
    for saved, inputs in (("changed", {}), (store.manifest_digest, {"store": "changed"})):
        path.write_bytes(checkpoint.pack({**content, "store": saved, "inputs": inputs}))
        with pytest.raises(DataError, match="another content of: store"):
            train(resume=True)
    for saved, inputs in ((store.manifest_digest, {}), ("old", {"store": store.fingerprint})):
        path.write_bytes(checkpoint.pack({**content, "store": saved, "inputs": inputs}))
        shutil.copytree(run, "copy")
        assert train("copy", resume=True)["steps"] == 4
        shutil.rmtree("copy")


@pytest.mark.parametrize(
    "wrong", [{"labels": 50}, {"store": "nowhere"}, {"algorithm": "fixmatch"}, {"device": "cuda:7"}]
)
def test_a_refused_resume_writes_nothing(place, wrong):
    run = begin()
    before = content_of(run)
    with pytest.raises((ConfigError, DataError, ResourceError)):
        train(resume=True, **wrong)
    assert content_of(run) == before


@pytest.mark.parametrize("wrong", [{"labels": 45}, {"store": "nowhere"}, {"validation": 5000}])
def test_a_refused_start_leaves_no_folder(place, wrong):
    with pytest.raises((ConfigError, DataError)):
        train(**wrong)
    assert not Path("run").exists()
    Path("mine").mkdir()
    with pytest.raises((ConfigError, DataError)):
        train(out="mine", **wrong)
    assert list(Path("mine").iterdir()) == []


def test_a_run_that_fails_while_it_trains_says_so_in_its_summary(place, monkeypatch):
    def fail(*given):
        raise ResourceError("no more disk", "buy one")

    monkeypatch.setattr("fastssl.engine.loop.Training.log", fail)
    with pytest.raises(ResourceError):
        train()
    assert json.loads(Path("run/summary.json").read_text())["status"] == "failed"


def test_a_finished_run_goes_on_with_more_steps(place, capsys):
    train()
    with pytest.raises(ConfigError, match="was started with"):
        train(resume=True, steps=2)
    assert train(resume=True)["steps"] == 4
    capsys.readouterr()
    assert train(resume=True, steps=8)["steps"] == 8
    assert "goes on from 4 to 8 steps" in capsys.readouterr().err
    assert yaml.safe_load(Path("run/config.yaml").read_text())["steps"] == 8
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [2, 4, 6, 8]
    rates = {line["step"]: line["lr"] for line in lines if line["kind"] == "train"}
    train(out="whole", steps=8)
    lines = [json.loads(line) for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    whole = {line["step"]: line["lr"] for line in lines if line["kind"] == "train"}
    assert rates[6] == whole[6] and rates[8] == whole[8] and rates[4] != whole[4]


def test_an_extension_that_was_killed_goes_on(place, monkeypatch):
    train()

    def killed(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(launch, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            train(resume=True, steps=8)
    assert json.loads(Path("run/summary.json").read_text())["steps"] == 4
    assert train(resume=True, steps=8)["steps"] == 8


def test_an_unfinished_run_gets_no_other_number_of_steps(place):
    begin()
    with pytest.raises(ConfigError, match="was started with steps=4"):
        train(resume=True, steps=8)


def test_resume_keeps_the_precision_of_the_run(place):
    begin(precision="bf16")
    assert train(resume=True)["steps"] == 4
    assert yaml.safe_load(Path("run/config.yaml").read_text())["precision"] == "bf16"


def test_resume_with_a_moved_store_enters_its_new_place(place, data):
    shutil.copytree(data / "digits", place / "old")
    begin(store="old")
    shutil.move(place / "old", place / "new")
    assert train(resume=True, store="new")["steps"] == 4
    assert yaml.safe_load(Path("run/config.yaml").read_text())["store"] == "new"
    assert 0 <= fastssl.evaluate("run")["error"] <= 100


def test_initial_weights_are_needed_only_at_the_start(place):
    train(out="first")
    begin(pretrained="first")
    Path("first").rename("gone")
    assert train(pretrained="first", resume=True)["steps"] == 4
    assert 0 <= fastssl.evaluate("run")["error"] <= 100


def test_initial_weights_of_another_model_are_refused(place, data):
    train(out="first")
    with pytest.raises(ConfigError, match=r"of the .* tensors of this model"):
        train(model="wrn-10-2", pretrained="first")
    with pytest.raises(ConfigError, match=r"of the .* tensors of this model"):
        train(model="wrn-16-1", pretrained="first")
    weights = torch.load("first/checkpoints/best.ckpt", weights_only=True)
    for name in ("classifier.weight", "classifier.bias"):
        weights["ema"][name] = weights["ema"][name][:7]
    torch.save(weights, "seven.ckpt")
    assert train(pretrained="seven.ckpt")["steps"] == 4


def test_an_interrupted_run_of_the_same_folder_is_found_by_its_summary(place):
    run = begin()
    assert RunFolder(run).finished_steps() is None
    train(resume=True)
    assert RunFolder(run).finished_steps() == 4


def longer(tensor):
    return torch.cat([tensor, tensor])


def drop_a_weight(content):
    content["model"].popitem()


def enlarge_a_weight(content):
    content["ema"]["classifier.weight"] = longer(content["ema"]["classifier.weight"])


def enlarge_the_state(content):
    key = next(iter(content["state"]))
    content["state"][key] = longer(content["state"][key].reshape(-1))


def drop_the_groups(content):
    del content["optimizer"]["param_groups"]


def enlarge_a_momentum(content):
    for entry in content["optimizer"]["state"].values():
        entry["momentum_buffer"] = longer(entry["momentum_buffer"])


def break_the_progress(content):
    content["trip"]["errors"] = "many"


@pytest.mark.parametrize(
    "harm",
    [
        drop_a_weight,
        enlarge_a_weight,
        enlarge_the_state,
        drop_the_groups,
        enlarge_a_momentum,
        break_the_progress,
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_two_lines(place, harm):
    run = begin()
    for path in (run / "checkpoints").glob("*.ckpt"):
        content = checkpoint.read(path)
        harm(content)
        path.write_bytes(checkpoint.pack(content))
    before = content_of(run)
    with pytest.raises(DataError, match="does not fit this run") as caught:
        train(resume=True)
    assert len(str(caught.value).splitlines()) == 2
    assert content_of(run) == before
    if harm is enlarge_a_weight:
        with pytest.raises(DataError, match="does not fit"):
            fastssl.load(run, checkpoint="last")
