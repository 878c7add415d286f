"""Configuration: later wins, and all mistakes are reported at once."""

import pytest
import yaml

from fastssl.algorithms import ALGORITHMS
from fastssl.cli.listing import configuration
from fastssl.config.resolve import available, find, flatten, load, saved_values, shipped_files
from fastssl.config.schema import RunConfig, keys_that_may_differ
from fastssl.errors import ConfigError
from pipelines.readers import READERS
from tests.calls import count_calls
from tests.faults.fuzzing import bounded


def test_the_command_line_beats_the_file_beats_the_default(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("data: digits\nsteps: 50\nlr: 0.5\n")
    resolved = load(file, ["steps=70"])
    assert (resolved.config.steps, resolved.config.lr, resolved.config.momentum) == (70, 0.5, 0.9)
    origins = {row["key"]: row["from"] for row in configuration(resolved)}
    assert origins["steps"] == "command line"
    assert origins["lr"] == "mine.yaml"
    assert origins["momentum"] == "default"


def test_every_key_has_a_sentence():
    assert all(row["what"] for row in configuration(load("digits")))


def test_none_can_be_typed_as_the_manual_writes_it():
    shown = {row["key"] for row in configuration(load("digits")) if row["value"] is None}
    keys = {*shown & RunConfig.model_fields.keys(), "bn_momentum", "mean", "std"}
    assert {"store", "pretrained", "image_size"} < keys
    config = load("digits", [f"{key}=none" for key in keys]).config
    assert {key: getattr(config, key) for key in keys} == dict.fromkeys(keys)
    assert load("digits", ["freeze=none"]).config.freeze == "none"


def test_all_mistakes_are_reported_at_once_with_the_nearest_name():
    with pytest.raises(ConfigError) as caught:
        load("digits", ["bach=3", "steps=0", "seed=zero", "algo.treshold=0.9", "model=wrn-11-2"])
    text = str(caught.value)
    assert "5 problems" in text and "wrn-11-2" in text
    for words in ("did you mean batch?", "did you mean algo.threshold?", "steps is 0", "'zero'"):
        assert words in text


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("threads=atuo", "threads is 'atuo'; expected: a valid integer or 'auto'"),
        ("ema=2", "ema is 2; expected: less than 1 or 'auto'"),
        ("mean=[x,y,1]", "mean is 'x'; expected: a valid number"),
        ("lr=abc", "lr is 'abc'; expected: a valid number"),
    ],
)
def test_a_mistake_names_every_type_that_its_key_takes(word, expected):
    with pytest.raises(ConfigError) as caught:
        load("digits", [word])
    assert caught.value.what == expected


def test_an_unknown_algorithm_hides_no_other_mistake():
    with pytest.raises(ConfigError) as caught:
        load("digits", ["algorithm=flexmach", "bach=3", "data=digts"])
    text = str(caught.value)
    assert "3 problems" in text
    for words in ("did you mean 'flexmatch'?", "did you mean batch?", "did you mean digits?"):
        assert words in text


@pytest.mark.parametrize("words", [["algorithm=flexmach", "bach=3"], ["algorithm=fixmatch", "x=1"]])
def test_the_line_that_lists_every_key_can_be_typed(words, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("data: own\n")
    with pytest.raises(ConfigError) as caught:
        load(file, words)
    line = caught.value.fix.split("`")[1].split()
    assert line[:2] == ["fastssl", "config"]
    keys = {row["key"] for row in configuration(load(line[2], line[3:]))}
    assert {"batch", "algo.threshold"} <= keys


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["labels=41"], "does not divide by 10 classes"),
        (["algo.threshold=1.5"], "algo.threshold is 1.5"),
        (["algo.threshold=0"], "algo.threshold is 0"),
        (["steps=0"], "steps is 0"),
        (["steps=true"], "steps is true"),
        (["algorithm=flexmtch"], "no algorithm is named 'flexmtch'"),
        (["algorithm=[]"], "no algorithm is named []"),
        (["data=cifar11"], "did you mean cifar10?"),
        (["model=wrn-11-2"], "wrn-11-2"),
        (["lr=nan"], "lr is 'nan'"),
        (["labels=-10"], "labels is -10"),
        (["validation=-1"], "validation is -1"),
        (["data=own"], "needs a store"),
        (["algo=7"], "algo is 7"),
        (["batch=10", "accumulate=3"], "does not divide into 3 parts"),
        (["word"], "is not key=value"),
    ],
)
def test_impossible_values_are_refused_in_words(words, message):
    with pytest.raises(ConfigError) as caught:
        load("digits", words)
    assert message in str(caught.value)
    assert "fix:" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["steps: 3\nsteps: 4", "- a\n- b", "a: [", "just words", "\x00", "1: 2"]
)
def test_a_file_that_is_no_configuration_is_refused(text, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load(file)


def test_another_algorithm_does_not_inherit_the_files_settings(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("data: digits\nalgorithm: flexmatch\nalgo: {mapping: linear}\n")
    assert load(file).settings.mapping == "linear"
    assert load(file, ["algorithm=fixmatch"]).algorithm.name == "fixmatch"


def test_settings_for_whichever_algorithm_is_chosen():
    assert load("imagenet").settings.threshold == 0.7
    assert load("imagenet", ["algorithm=fixmatch"]).settings.threshold == 0.7
    assert load("imagenet", ["algo.threshold=0.8"]).settings.threshold == 0.8
    assert load("imagenet", ["algorithm=supervised"]).config.batch == 128


def test_the_papers_settings():
    paper = {
        "cifar10": ("wrn-28-2", 5e-4, 64, 40),
        "cifar100": ("wrn-28-8", 1e-3, 64, 400),
        "svhn": ("wrn-28-2", 5e-4, 64, 40),
        "stl10": ("wrn-37-2", 5e-4, 64, 40),
        "imagenet": ("resnet50", 3e-4, 128, 100_000),
    }
    for name, (model, decay, batch, labels) in paper.items():
        config = load(name).config
        found = (config.model, config.weight_decay, config.batch, config.labels)
        assert found == (model, decay, batch, labels)
        assert (config.lr, config.momentum, config.nesterov) == (0.03, 0.9, True)
        own = None if model == "resnet50" else 0.001
        assert config.averages() == {"ema": 0.999, "bn_momentum": own}
        assert (config.steps, config.eval_every, config.eval_every_late) == (2**20, 5000, 1000)


@pytest.mark.parametrize("name", available())
def test_a_shipped_configuration_loads_and_repeats_no_default(name):
    given = yaml.safe_load(find(name).read_text())
    if "timm:" in given.get("model", ""):
        pytest.importorskip("timm")
    load(name, ["store=somewhere"] if given["data"] == "own" else [])
    sections = given.pop("algorithms", {})
    assert sections.keys() <= set(ALGORITHMS)
    base = given.pop("base", None)
    defaults = {key: field.default for key, field in RunConfig.model_fields.items()}
    below = load(base).as_dict() if base else defaults
    assert not {key for key, value in given.items() if key != "data" and below[key] == value}


def test_a_file_changes_the_values_of_its_base(tmp_path):
    file = tmp_path / "mine.yaml"
    text = "base: fast/svhn\nsteps: 500\nalgorithms: {fixmatch: {threshold: 0.9}}\n"
    file.write_text(text)
    resolved = load(file, ["algorithm=fixmatch", "lr=0.1"])
    config, algo = resolved.config, resolved.settings
    below = load("fast/cifar10")
    assert (config.data, config.steps, config.lr) == ("svhn", 500, 0.1)
    assert config.batch == below.config.batch != type(config)().batch
    # Own settings over those of svhn.yaml, over those of cifar10.yaml.
    assert (algo.threshold, algo.alignment) == (0.9, False)
    assert algo.slots == below.settings.slots > 0
    origins = {row["key"]: row["from"] for row in configuration(resolved)}
    names = ("lr", "steps", "data", "batch", "momentum")
    files = ["command line", "mine.yaml", "svhn.yaml", "cifar10.yaml", "default"]
    assert [origins[key] for key in names] == files
    assert origins["algo.threshold"] == "mine.yaml (algorithms)"
    assert origins["algo.alignment"] == "svhn.yaml (algorithms)"
    file.write_text(text + "algorithm: uda\nalgo: {temperature: 0.4}\n")
    assert load(file).settings.temperature == 0.4
    assert load(file, ["algorithm=fixmatch"]).settings.threshold == 0.9


@pytest.mark.parametrize("base", ["fast/cifar11", "fast/cifar10_grid", "[digits]", "3", "null"])
def test_a_base_that_does_not_ship_is_refused(base, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f"base: {base}\ndata: digits\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2 and lines[0].startswith("base is ") and "list configs" in lines[1]


def test_a_base_is_the_shipped_one_whatever_the_working_folder_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "fast" / "cifar10"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("data: digits\n")
    file = tmp_path / "mine.yaml"
    file.write_text("base: fast/cifar10\n")
    assert load(file).config.data == "cifar10"


def test_the_fast_recipe_is_the_same_for_every_algorithm_that_has_its_settings():
    recipe = load("fast/cifar10").as_dict()
    algo = recipe.pop("algo")
    shared = {"unlabeled_weight", "forward", "slots", "pseudo_labels", "alignment"}
    shared |= {"alignment_decay", "warmup", "floor", "range"}
    hard = {"pseudolabel", "flexpl", "uda", "flexuda", "fixmatch", "flexmatch", "freematch"}
    for name in ALGORITHMS:
        values = load("fast/cifar10", {"algorithm": name}).as_dict()
        own = values.pop("algo")
        assert values == {**recipe, "algorithm": name}
        if name in hard:
            expected = {key: algo[key] for key in shared & own.keys()}
            assert {key: own[key] for key in expected} == expected
    soft = load("fast/cifar10", {"algorithm": "softmatch"}).settings
    assert (soft.forward, soft.pseudo_labels) == ("split", "teacher")


def test_sweeps_and_configurations_are_kept_apart():
    sweeps, configs = shipped_files(sweeps=True), set(available())
    assert {"paper/table1", "fast/cifar10_grid"} <= sweeps.keys()
    assert {"digits", "usb/stl10", "fast/cifar10", "fast/stl10"} <= configs
    assert not configs & sweeps.keys()
    with pytest.raises(ConfigError, match="is a sweep") as caught:
        load("fast/cifar10_grid")
    assert "fastssl sweep fast/cifar10_grid" in caught.value.fix


def bomb(key, kind="[{0}]", levels=9):
    """Return some lines that stand for 10 ** levels values."""
    lines = ["l0: &l0 x"]
    for level in range(1, levels + 1):
        inside = ", ".join([f"*l{level - 1}"] * 10)
        lines.append(f"l{level}: &l{level} [{inside}]")
    return "\n".join(lines) + f"\n{key}: {kind.format(f'*l{levels}')}\n"


@pytest.mark.parametrize(
    "text",
    [
        bomb("lr"),
        bomb("data"),
        bomb("algorithm"),
        bomb("algo"),
        bomb("algo", "{{threshold: {0}}}"),
        bomb("algorithms", "{{flexmatch: {0}}}"),
        bomb("lr", "{{a: {0}, b: {0}}}"),
        bomb("x", "{{? {0} : 1}}"),
        bomb("<<"),
        "lr: &a [*a]\n",
        f"seed: 0x{'f' * 6000}\n",
        "".join(f"k{number}: 1\n" for number in range(100_000)),
        "".join(f"k{number}: 1\n" for number in range(6_000)),
        "lr: 1\n" * 6_000,
        f"{'k' * 60_000}: 1\n",
    ],
    ids=lambda text: text[-30:].strip(),
)
def test_no_file_takes_time_or_memory_out_of_proportion(text, tmp_path):
    load("digits")  # what is imported on the way does not count
    file = tmp_path / "bomb.yaml"
    file.write_text(text)
    refused = pytest.raises(ConfigError)
    with bounded(growth=100 << 20), count_calls() as calls, refused as caught:
        load(file)
    assert calls.number < 6_000_000
    assert len(str(caught.value)) < 2 * len(text) + 10_000 and "fix:" in str(caught.value)


def test_a_bomb_on_the_command_line_is_refused():
    levels = ["&l0 [x]"] + [
        f"&l{level} [{', '.join([f'*l{level - 1}'] * 10)}]" for level in range(1, 10)
    ]
    refused = pytest.raises(ConfigError, match="lr is")
    with bounded(growth=100 << 20), count_calls() as calls, refused:
        load("digits", [f"lr=[{', '.join(levels)}]"])
    assert calls.number < 1_000_000


OLD = {"algo.prior=labelled": "algo.prior=labeled"}
OLD["micro_batch=2"] = "accumulate=2"


@pytest.mark.parametrize(("old", "new"), OLD.items())
def test_an_old_name_is_refused_with_the_new_one(old, new, tmp_path):
    for source in ("file", "command line"):
        file = tmp_path / f"{source}.yaml"
        key, value = old.split("=")
        text = f"algo: {{{key[5:]}: {value}}}" if key.startswith("algo.") else f"{key}: {value}"
        file.write_text(f"data: digits\n{text if source == 'file' else ''}\n")
        with pytest.raises(ConfigError) as caught:
            load(file, [old] if source == "command line" else [])
        lines = str(caught.value).splitlines()
        assert len(lines) == 2 and key in lines[0] and new in lines[1]


def test_an_old_name_hides_no_other_mistake():
    with pytest.raises(ConfigError) as caught:
        load("digits", ["algo.prior=labelled", "bach=3"])
    assert "2 problems" in str(caught.value) and "use algo.prior=labeled" in str(caught.value)


def test_old_names_in_a_run_folder_are_translated(tmp_path):
    written = load("digits", ["algo.prior=labeled"]).as_dict()
    written["algo"]["prior"] = "labelled"
    del written["accumulate"]
    written["micro_batch"] = 0
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(written))
    (tmp_path / "checkpoints").mkdir()
    resolved = load(tmp_path)
    assert resolved.settings.prior == "labeled"
    assert saved_values(written) == flatten(load("digits", ["algo.prior=labeled"]).as_dict())


def test_where_a_key_may_differ_is_metadata_of_its_field():
    ranks, resume, cells, paper = map(keys_that_may_differ, ("ranks", "resume", "cells", "paper"))
    assert ranks < resume < cells < paper < set(RunConfig.model_fields)
    assert ranks == {"store", "threads", "loader_threads", "reader"}
    assert "max_time" in resume and "seed" not in resume and "seed" in cells
    assert paper - cells == {"precision", "eval_every", "eval_every_late"}
    assert "steps" not in paper


def test_every_registered_reader_is_accepted_and_no_other():
    for name in ("auto", *READERS):
        assert load("digits", [f"reader={name}"]).config.reader == name
    with pytest.raises(ConfigError, match="reader is 'none'; expected one of: auto, dali"):
        load("digits", ["reader=none"])


@pytest.mark.parametrize(
    ("overrides", "ema", "momentum"),
    [
        (["steps=100000"], 0.999, 0.001),
        (["steps=1048576"], 0.999, 0.001),
        (["steps=1000"], 0.99, 0.1),
        (["steps=3000"], 0.994226, 0.033333),
        (["steps=50"], 0.955279, 0.1),
        (["steps=1000", "ema=0.5", "bn_momentum=0.25"], 0.5, 0.25),
        (["steps=1000", "bn_momentum=null"], 0.99, None),
        (["steps=1000", "model=resnet50"], 0.99, None),
        (["steps=3000", "model=fast-24"], 0.994226, 0.033333),
    ],
)
def test_auto_scales_the_averages_with_the_steps_of_a_short_run(overrides, ema, momentum):
    resolved = load("cifar10", overrides)
    assert resolved.config.averages() == {"ema": ema, "bn_momentum": momentum}
    shown = {row["key"]: str(row["value"]) for row in configuration(resolved)}
    assert str(ema) in shown["ema"] and ("auto" in shown["ema"]) == ("ema=0.5" not in overrides)


def test_an_average_out_of_its_range_is_refused():
    with pytest.raises(ConfigError, match="ema"):
        load("cifar10", ["ema=1"])
    with pytest.raises(ConfigError, match="bn_momentum"):
        load("cifar10", ["bn_momentum=often"])


def test_labels_per_class_are_a_number_where_the_classes_are_known():
    assert load("digits", ["labels=5/class"]).config.labels == 50
    assert load("own", ["store=x", "labels=5/class"]).config.labels == "5/class"
    assert load("own", ["store=x", "labels=40"]).config.labels == 40
    for wrong in ("0/class", "five", "5/klass", "-3", "0", "1.5", "[4]"):
        with pytest.raises(ConfigError, match=r"labels is .*; expected at least 1, N/class"):
            load("own", ["store=x", f"labels={wrong}"])


def test_the_keys_of_own_images_are_shown_without_a_store():
    assert load("own", complete=False).config.store is None
    with pytest.raises(ConfigError, match="needs a store"):
        load("own")
