"""YAML files of TorchSSL and USB, turned into ours."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fastssl.algorithms import ALGORITHMS
from fastssl.cli.command import app
from fastssl.config.migration import migrate
from fastssl.config.resolve import load
from fastssl.errors import ConfigError

TORCHSSL = """
save_dir: ./saved_models
save_name: flexmatch_svhn_250_0
resume: False
load_path: None
overwrite: True
use_tensorboard: True
epoch: 1
num_train_iter: 5000
num_eval_iter: 500
num_labels: 250
batch_size: 32
eval_batch_size: 1024
hard_label: True
T: 0.5
p_cutoff: 0.9
ulb_loss_ratio: 2.0
uratio: 5
ema_m: 0.99
optim: SGD
lr: 0.02
momentum: 0.8
weight_decay: 0.001
amp: False
net: WideResNet
net_from_name: False
depth: 28
widen_factor: 8
leaky_slope: 0.1
dropout: 0.0
data_dir: ./data
dataset: svhn
train_sampler: RandomSampler
num_classes: 10
num_workers: 1
alg: flexmatch
thresh_warmup: False
seed: 3
world_size: 1
rank: 0
multiprocessing_distributed: True
dist_url: tcp://127.0.0.1:10001
dist_backend: nccl
gpu: None
"""

USB = """
algorithm: uda
num_train_iter: 1000
num_log_iter: 50
num_labels: 400
tsa_schedule: log
T: 0.4
p_cutoff: 0.8
uratio: 7
crop_ratio: 0.875
img_size: 32
optim: AdamW
lr: 0.0005
layer_decay: 0.5
num_warmup_iter: 10
amp: True
clip: 1.0
use_cat: False
net: wrn_28_8
dataset: cifar100
include_lb_to_ulb: False
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_every_value_of_torchssl_arrives(tmp_path: Path) -> None:
    done = migrate(write(tmp_path / "theirs.yaml", TORCHSSL))
    resolved = load(write(tmp_path / "ours.yaml", done.text()))
    config, settings = resolved.config, resolved.settings
    assert (config.data, resolved.algorithm.name, config.model) == ("svhn", "flexmatch", "wrn-28-8")
    assert (config.steps, config.eval_every, config.labels, config.batch) == (5000, 500, 250, 32)
    assert (config.eval_batch, config.ratio, config.ema, config.lr) == (1024, 5, 0.99, 0.02)
    assert (config.momentum, config.weight_decay, config.seed) == (0.8, 0.001, 3)
    assert (config.precision, config.tensorboard) == ("fp32", True)
    assert (settings.threshold, settings.unlabeled_weight, settings.warmup) == (0.9, 2.0, False)
    carried = set(done.lost)
    assert {"save_dir", "resume", "epoch", "dist_url", "gpu", "T", "data_dir"} <= carried
    assert not {"p_cutoff", "hard_label", "optim", "leaky_slope", "thresh_warmup"} & carried


def test_every_value_of_usb_arrives_or_is_named(tmp_path: Path) -> None:
    done = migrate(write(tmp_path / "theirs.yaml", USB))
    resolved = load(write(tmp_path / "ours.yaml", done.text()))
    assert (resolved.config.model, resolved.config.clip, resolved.config.log_every) == (
        "wrn-28-8",
        1,
        50,
    )
    assert (resolved.config.image_size, resolved.config.include_labeled) == (32, False)
    assert (resolved.settings.tsa, resolved.settings.temperature) == ("log", 0.4)
    assert (resolved.config.optimizer, resolved.config.lr) == ("adamw", 0.0005)
    assert (resolved.config.layer_decay, resolved.config.warmup) == (0.5, 10)
    assert set(done.lost) == {"use_cat"}


def test_the_command_prints_yaml_and_names_the_rest(tmp_path: Path) -> None:
    file = write(tmp_path / "theirs.yaml", TORCHSSL)
    done = CliRunner().invoke(app, ["config", "--from-torchssl", str(file)])
    assert yaml.safe_load(done.stdout)["algo"]["threshold"] == 0.9
    assert "not carried over: T: flexmatch has no such setting" in done.stderr


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("pseudolabel_flex", "flexpl"),
        ("uda_flex", "flexuda"),
        ("pimodel", "pimodel"),
        ("MeanTeacher", "meanteacher"),
        ("fullysupervised", "fullysupervised"),
        ("freematch", "freematch"),
        ("softmatch", "softmatch"),
        ("vat", "vat"),
        ("mixmatch", "mixmatch"),
        ("remixmatch", "remixmatch"),
        ("pseudolabel", "pseudolabel"),
    ],
)
def test_algorithms_are_found_by_their_names(tmp_path: Path, theirs: str, ours: str) -> None:
    done = migrate(write(tmp_path / "theirs.yaml", f"alg: {theirs}\nnum_labels: 40\n"))
    assert done.values["algorithm"] == ours and ours in ALGORITHMS


def test_remixmatch_keeps_its_three_weights(tmp_path: Path) -> None:
    text = "alg: remixmatch\nulb_loss_ratio: 1.0\nw_kl: 0.4\nw_match: 1.25\nw_rot: 0.3\n"
    done = migrate(write(tmp_path / "theirs.yaml", text + "warm_up: 0.015625\nalpha: 0.7\n"))
    assert done.algo == {
        "unlabeled_weight": 1.25,
        "strong_weight": 0.4,
        "rotation_weight": 0.3,
        "ramp": 0.015625,
        "alpha": 0.7,
    }


def test_what_is_not_ours_is_reported(tmp_path: Path) -> None:
    text = "alg: fixmatch\ndataset: medmnist\nnet: vit_small\nfrobnicate: 3\nhard_label: False\n"
    done = migrate(write(tmp_path / "theirs.yaml", text))
    assert {"dataset", "net", "frobnicate", "hard_label"} == set(done.lost)
    assert done.values["data"] == "own"
    for bad in ("num_labels: 40\n", "alg: comatch\n", "alg: fixmatch\nlr: quick\n"):
        with pytest.raises(ConfigError):
            migrate(write(tmp_path / "bad.yaml", bad))
