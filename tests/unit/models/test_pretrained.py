"""Weights to start from: files of many forms, what fits, what does not, and what is refused."""

import logging
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import fastssl
from fastssl.config.resolve import load as load_config
from fastssl.engine import checkpoint, devices
from fastssl.engine.build import assemble
from fastssl.engine.summary import pretraining
from fastssl.errors import ConfigError, DataError
from fastssl.models import build, pretrained
from pipelines.convert import ensure_store
from tests.image_files import write_folder
from tests.runs import TINY, whole_content

NAME = "torchvision:resnet18"


@pytest.fixture(scope="module")
def weights():
    from torchvision.models import get_model

    torch.manual_seed(7)
    return get_model("resnet18", num_classes=5).state_dict()


def loaded(path, classes=5):
    model = build(NAME, classes=classes, size=(32, 32))
    pretrained.load(model, pretrained.read_file(path), str(path))
    return model.state_dict()


FORMS = {
    "plain.pth": lambda w: w,
    "inside.pt": lambda w: {"state_dict": w, "epoch": 3},
    "model.bin": lambda w: {"model": w},
    "ema.pth": lambda w: {"ema": w, "model": {k: v + 1 for k, v in w.items()}},
    "wrapped.pth": lambda w: {f"module.backbone.{k}": v for k, v in w.items()},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_file_is_loaded_with_its_classifier(form, weights, tmp_path):
    torch.save(FORMS[form](weights), tmp_path / form)
    found = loaded(tmp_path / form)
    for name, value in weights.items():
        ours = name.replace("fc.", "classifier.") if "fc." in name else f"body.{name}"
        assert torch.equal(found[ours], value), name


def test_safetensors_are_loaded(weights, tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file({k: v.contiguous() for k, v in weights.items()}, tmp_path / "w.safetensors")
    found = loaded(tmp_path / "w.safetensors")
    assert torch.equal(found["body.conv1.weight"], weights["conv1.weight"])


def test_a_classifier_of_other_classes_keeps_its_own_and_is_listed(weights, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="fastssl")
    torch.save(weights, tmp_path / "w.pth")
    found = loaded(tmp_path / "w.pth", classes=3)
    assert torch.equal(found["body.conv1.weight"], weights["conv1.weight"])
    assert "120 of the 122 tensors" in caplog.text
    assert "classifier.weight [3, 512]" in caplog.text and "fc.weight [5, 512]" in caplog.text


def test_less_than_half_is_refused_with_names_of_both_sides(weights, tmp_path):
    some = dict(list(weights.items())[:59])
    torch.save(some, tmp_path / "w.pth")
    with pytest.raises(ConfigError, match="59 of the 120 tensors") as caught:
        loaded(tmp_path / "w.pth")
    assert "conv1.weight, bn1.weight, bn1.bias and" in caught.value.what
    assert "body.conv1.weight, body.bn1.weight, body.bn1.bias and" in caught.value.what


class Tiny(nn.Module):
    def __init__(self, name, width=4):
        super().__init__()
        self.add_module(name, nn.Conv2d(3, width, 3))
        self.classifier = nn.Linear(4, 2)


def test_a_file_of_which_only_the_classifier_fits_is_refused():
    own, other = Tiny("conv"), Tiny("layer").state_dict()
    with pytest.raises(ConfigError, match="0 of the 2 tensors"):
        pretrained.load(own, other, "w.pth")
    half = Tiny("conv", width=5).state_dict() | {"conv.bias": torch.ones(4)}
    pretrained.load(own, half, "w.pth")
    assert own.conv.bias.tolist() == [1] * 4


def test_a_network_without_a_body_takes_its_classifier():
    class Only(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = nn.Linear(4, 2)

    one, other = Only(), Only()
    pretrained.load(one, other.state_dict(), "w.pth")
    assert torch.equal(one.classifier.weight, other.classifier.weight)


def test_a_network_whose_own_names_have_a_prefix_takes_the_weights_of_its_runs():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
            self.classifier = nn.Linear(4, 2)

    one, other = Own(), Own()
    pretrained.load(other, pretrained.stripped(one.state_dict()), "a run")
    for name, value in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


@pytest.mark.parametrize("name", ["convnext_atto", "deit3_small_patch16_224"])
def test_weights_of_another_model_are_refused_in_two_lines(name):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    other = timm.create_model("vit_tiny_patch16_224", depth=1).state_dict()
    with pytest.raises(ConfigError, match=r"of the .* tensors of this model"):
        pretrained.load(build(f"timm:{name}", classes=2), other, "w.pth")


class Code:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("content", [Code(), {"state_dict": nn.Linear(2, 2)}, [1, 2], {}])
def test_a_file_that_holds_other_things_than_tensors_is_refused(content, tmp_path, capfd):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(DataError):
        pretrained.read_file(tmp_path / "w.pth")
    assert "executed" not in capfd.readouterr().out
    with pytest.raises(DataError, match="no such file"):
        pretrained.read_file(tmp_path / "missing.pth")


def test_only_the_lite_networks_of_their_package_have_a_normalization_of_their_own():
    lite = {pretrained.STEM: torch.zeros(1)}
    assert pretrained.normalization_of(lite) == ([127 / 255] * 3, [128 / 255] * 3)
    # efficientnet-pytorch: the mean and deviation of ImageNet, as timm states for these networks
    assert pretrained.normalization_of({**lite, pretrained.SQUEEZE: torch.zeros(1)}) is None
    assert pretrained.normalization_of({"conv1.weight": torch.zeros(1)}) is None


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path):
    torch.save({"weight": torch.zeros(10_000)}, tmp_path / "plain.pth")
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as plain,
        zipfile.ZipFile(tmp_path / "small.pth", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for name in plain.namelist():
            small.writestr(name, plain.read(name))
    assert len(pretrained.read_file(tmp_path / "plain.pth")) == 1
    with pytest.raises(DataError, match="is compressed, and unpacks to"):
        pretrained.read_file(tmp_path / "small.pth")


def test_a_failed_download_names_the_way_without_one(monkeypatch):
    def fail(*given, **keys):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.models.get_model", fail)
    with pytest.raises(DataError, match="cannot be downloaded: no route to host") as caught:
        pretrained.download(NAME, (32, 32))
    assert "pretrained=FILE" in caught.value.fix


def test_an_unreachable_hub_is_asked_once_and_its_cache_is_used(monkeypatch, tmp_path, caplog):
    hub = pytest.importorskip("huggingface_hub", reason="timm is not installed")
    pytest.importorskip("timm", reason="timm is not installed")
    asked = []

    class Session:
        def head(self, address, timeout):
            asked.append((address, timeout))
            raise OSError("no route to host")

    monkeypatch.setattr(hub, "get_session", Session)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match="cannot be downloaded: no route to host") as caught:
        pretrained.download("timm:resnet18", (32, 32))
    assert len(str(caught.value).splitlines()) == 2 and "pretrained=FILE" in caught.value.fix
    assert asked == [(hub.constants.ENDPOINT, hub.constants.HF_HUB_ETAG_TIMEOUT)]
    assert not caplog.records
    found = []

    def cached(*given, **keys):
        found.append(hub.is_offline_mode())
        return nn.Linear(2, 2)

    monkeypatch.setattr("timm.create_model", cached)
    assert list(pretrained.download("timm:resnet18", (32, 32))) == ["weight", "bias"]
    assert found == [True] and not hub.is_offline_mode()
    monkeypatch.setattr(Session, "head", lambda *given, **keys: None)
    pretrained.download("timm:resnet18", (32, 32))
    assert found == [True, False]


def test_true_needs_a_library_that_has_weights():
    with pytest.raises(ConfigError, match="pretrained=true needs model=timm:NAME"):
        load_config("digits", ["pretrained=true"])


def test_init_is_refused_with_its_new_name_and_read_from_old_runs(tmp_path):
    with pytest.raises(ConfigError, match="init has a new name") as caught:
        load_config("digits", ["init=runs/x"])
    assert "pretrained=runs/x" in str(caught.value)
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text("data: digits\ninit: runs/x\n")
    assert load_config(run).config.pretrained == "runs/x"


def learner(*words):
    resolved = load_config("digits", [*TINY, f"model={NAME}", *words])
    run = assemble(resolved, devices.choose(resolved.config))
    run.data.close()
    return run


def test_pretrained_weights_bring_their_normalization(data, weights, tmp_path):
    torch.save(weights, tmp_path / "w.pth")
    word = f"pretrained={tmp_path / 'w.pth'}"
    run = learner(word)
    assert run.data.loader.mean == (0.485, 0.456, 0.406)
    assert run.data.evaluations["test"].std == (0.229, 0.224, 0.225)
    assert run.learner.resolved.config.mean == [0.485, 0.456, 0.406]
    assert run.data.inputs["pretrained"] and run.data.size == (16, 16)
    store = run.data.store
    assert learner(word, "mean=null", "std=null").data.loader.mean == store.mean
    run = learner(word, "mean=[0.1,0.2,0.3]")
    assert run.data.loader.mean == (0.1, 0.2, 0.3)
    assert run.data.loader.std == (0.229, 0.224, 0.225)
    run = learner()
    assert run.data.loader.mean == store.mean and run.learner.resolved.config.mean == "auto"


def test_a_pretrained_run_keeps_its_preprocessing_and_passes_it_on(data, weights, tmp_path, capfd):
    torch.save(weights, tmp_path / "w.pth")
    keys = dict(word.split("=") for word in TINY) | {"model": NAME, "steps": 2}
    keys = {k: int(v) if str(v).isdigit() else v for k, v in keys.items()} | {"tensorboard": False}
    first, second = tmp_path / "first", tmp_path / "second"
    fastssl.train("digits", out=first, pretrained=str(tmp_path / "w.pth"), mean=[0.1] * 3, **keys)
    lines = capfd.readouterr().err
    hint = (
        "trained on images of 224x224 pixels and bilinear interpolation, not of 16x16 and bicubic"
    )
    assert f"{hint}: fastssl convert SOURCE OUT --size 224 --interpolation bilinear\n" in lines
    content = checkpoint.read(first / "checkpoints" / "best.ckpt")
    assert content["preprocessing"]["mean"] == [0.1] * 3
    assert content["preprocessing"]["std"] == [0.229, 0.224, 0.225]
    assert fastssl.load(first).preprocessing.mean == (0.1,) * 3
    Path(tmp_path / "w.pth").unlink()  # not needed any more
    assert 0 <= fastssl.evaluate(first)["error"] <= 100
    capfd.readouterr()
    fastssl.train("digits", out=second, pretrained=str(first), **keys)
    lines = capfd.readouterr().err
    # The first run has seen bicubic images.
    assert "224x224 pixels, not of 16x16: fastssl convert SOURCE OUT --size 224\n" in lines
    assert checkpoint.read(second / "checkpoints" / "best.ckpt")["preprocessing"]["mean"] == (
        [0.1] * 3
    )


@pytest.mark.parametrize(
    ("model", "method", "image_size", "expected"),
    [
        (NAME, "bilinear", 16, ""),
        (
            NAME,
            "bilinear",
            None,
            "224x224 pixels, not of 16x16: --size 224 --interpolation bilinear",
        ),
        (
            NAME,
            "bicubic",
            16,
            "bilinear interpolation, not of bicubic: --size 20 --interpolation bilinear",
        ),
        ("timm:resnet18", "bilinear", 16, "bicubic interpolation, not of bilinear: --size 20"),
        ("timm:resnet18", "bicubic", 16, ""),
    ],
)
def test_a_store_of_other_images_than_those_of_the_weights_is_noted(
    tmp_path, model, method, image_size, expected
):
    pytest.importorskip(model.split(":")[0])
    write_folder(tmp_path / "images", 2, 2)
    given = {"size": 20, "interpolation": method, "progress": False}
    store = fastssl.convert(tmp_path / "images", tmp_path / "store", **given)
    settings = {"pretrained": True, "model": model, "image_size": image_size}
    config = load_config("own_pretrained", {**settings, "store": str(store.path)}).config
    hint = f"note    {model} was trained on images of {expected}"
    hint = hint.replace(": --size", ": fastssl convert SOURCE OUT --size")
    assert pretraining(config, store, (16, 16)) == ([hint] if expected else [])


@pytest.mark.parametrize(("saved", "hints"), [(None, 0), ("bicubic", 0), ("bilinear", 1)])
def test_the_weights_of_a_run_were_trained_on_the_images_of_its_store(data, tmp_path, saved, hints):
    content = whole_content(1, {})
    content["preprocessing"] |= {"interpolation": saved} if saved else {}
    torch.save(content, tmp_path / "best.ckpt")
    config = load_config("digits", {"pretrained": str(tmp_path / "best.ckpt")}).config
    store = ensure_store("digits")
    assert len(pretraining(config, store, (16, 16))) == hints


def test_another_content_of_the_weights_is_noticed_and_a_missing_file_is_not(
    data, weights, tmp_path
):
    from fastssl.engine.build_data import changed_inputs

    torch.save(weights, tmp_path / "w.pth")
    run = learner(f"pretrained={tmp_path / 'w.pth'}")
    saved, store = dict(run.data.inputs), run.data.store
    assert changed_inputs(saved, saved, store) == []
    assert changed_inputs(saved, {**saved, "pretrained": "other"}, store) == ["pretrained"]
    gone = {key: value for key, value in saved.items() if key != "pretrained"}
    assert changed_inputs(saved, gone, store) == []


def test_position_embeddings_are_resampled_to_the_size_of_the_run(tmp_path):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    small = {"patch_size": 8, "depth": 1, "embed_dim": 24}
    plain = timm.create_model("vit_tiny_patch16_224", img_size=64, **small)
    torch.save(plain.state_dict(), tmp_path / "w.pth")
    name = "timm:vit_tiny_patch16_224:patch_size=8,depth=1,embed_dim=24"
    model = build(name, classes=10, size=(32, 32))
    pretrained.load(model, pretrained.read_file(tmp_path / "w.pth"), "w.pth")
    assert model.body.pos_embed.shape == (1, 17, 24)
    expected = timm.layers.resample_abs_pos_embed(plain.pos_embed, [4, 4], num_prefix_tokens=1)
    torch.testing.assert_close(model.body.pos_embed, expected)
