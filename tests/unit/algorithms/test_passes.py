"""Strong views that are left out: the same loss, fewer images, equally many on every rank."""

import copy

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from fastssl.algorithms import ALGORITHMS, Nets
from fastssl.algorithms.common import losses
from fastssl.distributed.collectives import Ranks
from fastssl.models.classifier import freeze
from tests.steps import LABELED, UNLABELED, facts, gradients, make_batch, make_nets, tiny_nets

HALF = torch.tensor(0.5, dtype=torch.float64)
NEVER = {"threshold": 1.0}
# by algorithm: settings with which no image, some and all of them are trusted
SHARES = {
    "fixmatch": [NEVER, {"threshold": 0.7}, {"threshold": 1e-9}],
    "flexmatch": [NEVER | {"floor": 1.0}, {"floor": 0.7}, {}],
    "uda": [NEVER, {"threshold": 0.7}, {"threshold": 1e-9}],
    "flexuda": [NEVER | {"floor": 1.0}, {"floor": 0.7}, {}],
    "freematch": [{"lowest": 1.0}, {"lowest": 0.8}, {"highest": 0.0}],
}
WAYS = [(name, part) for name in SHARES for part in range(3)]


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch):
    monkeypatch.setattr(losses, "ROUNDED_TO", 4)


def nets_for(part):
    """Return double networks; for the first of the shares, ones that are never confident."""
    nets = make_nets(torch.float64)
    if part == 0:
        for net in (nets.student, nets.teacher):
            nn.init.normal_(net.classifier.weight, std=0.01)
    return nets


def take(name, nets, ranks=None, step=None, **settings):
    """Take a step with some settings; return its output and the images of each pass."""
    algorithm, passes = ALGORITHMS[name], []
    config = algorithm.config(**settings)
    hook = nets.student.register_forward_hook(lambda _, given, out: passes.append(len(given[0])))
    state = algorithm.init_state(config, facts(dtype=torch.float64))
    batch = make_batch(algorithm, 1, torch.float64)
    out = (step or algorithm.step)(nets, batch, state, config, HALF, ranks or Ranks())
    hook.remove()
    out.loss.backward()
    return out, passes


@pytest.mark.parametrize(("name", "part"), WAYS)
def test_with_frozen_batchnorm_skipping_changes_no_loss_and_no_gradient(name, part):
    settings, nets = SHARES[name][part], nets_for(part)
    for net in (nets.student, nets.teacher):
        net.eval()  # the loss of a network whose BatchNorm is frozen is that of its images alone
        freeze(net, "batchnorm")
    twins = copy.deepcopy(nets)
    whole, _ = take(name, twins, forward="split", **settings)
    out, passes = take(name, nets, forward="skip", **settings)
    share = int(whole.trusted.sum())
    assert (share == 0, 0 < share < UNLABELED, share == UNLABELED)[part]
    torch.testing.assert_close(out.loss, whole.loss, rtol=1e-6, atol=1e-9)
    assert torch.equal(out.trusted, whole.trusted)
    assert torch.equal(out.pseudo_label, whole.pseudo_label)
    theirs = gradients(twins.student)
    for key, value in gradients(nets.student).items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-6, atol=1e-9)
    assert passes == [UNLABELED, LABELED + -(-share // 4) * 4]


def test_slots_leave_out_trusted_images_and_still_divide_by_all():
    nets = make_nets(torch.float64)
    freeze(nets.student.eval(), "batchnorm")
    batch = make_batch(ALGORITHMS["fixmatch"], 1, torch.float64)
    out, passes = take("fixmatch", nets, forward="skip", slots=3, threshold=1e-9)
    assert passes[1] == LABELED + 3
    assert out.trusted.tolist() == [1] * 3 + [0] * (UNLABELED - 3)
    each = nn.functional.cross_entropy(
        nets.student(batch.views["strong"][:3]), out.pseudo_label[:3], reduction="sum"
    )
    torch.testing.assert_close(out.metrics["loss/unlabeled"], each.detach() / UNLABELED)


class Fuller(Ranks):
    """The first of two ranks, of which the other trusts 7 images."""

    def max(self, value):
        return max(value, 7)

    def mean(self, tensor):
        return tensor.detach()

    def gather(self, tensor):
        return tensor.detach()


def test_a_rank_passes_as_many_images_as_the_one_with_most():
    _, passes = take("fixmatch", make_nets(torch.float64), Fuller(0, 2), forward="skip", **NEVER)
    assert passes[1] == LABELED + 8
    skip = {"forward": "skip", "slots": 10}
    _, passes = take("fixmatch", make_nets(torch.float64), Fuller(0, 2), **skip, **NEVER)
    assert passes[1] == LABELED + 5, "slots are over all ranks"


@pytest.mark.parametrize("slots", [0, 4])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "flexmatch" else pytest.mark.slow) for n in SHARES]
)
def test_a_compiled_step_passes_a_fixed_number_of_images(name, slots):
    torch._dynamo.reset()
    # Without slots that is all of them, even if none is trusted: then the loss is that of split,
    # with BatchNorm's statistics of all. With them, as many are trusted.
    settings = {"forward": "skip", "slots": slots, **SHARES[name][2 if slots else 0]}
    compiled = torch.compile(ALGORITHMS[name].step, fullgraph=True, backend="aot_eager")
    nets = tiny_nets()
    nets = Nets(nets.student.double(), nets.teacher.double())
    twins = copy.deepcopy(nets)
    wanted = settings if slots else {**settings, "forward": "split"}
    eager, passes = take(name, nets, **wanted)
    assert passes[1] == LABELED + (slots or UNLABELED)
    batch = make_batch(ALGORITHMS[name], 1, torch.float64)
    config = ALGORITHMS[name].config(**settings)
    state = ALGORITHMS[name].init_state(config, facts(dtype=torch.float64))
    out = compiled(twins, batch, state, config, HALF, Ranks())
    assert int(out.trusted.sum()) == slots or (not slots and out.trusted.sum() < UNLABELED - 4)
    torch.testing.assert_close(out.loss, eager.loss)
    assert torch.equal(out.trusted, eager.trusted)


def test_skipped_images_stay_channels_last():
    seen, nets = [], make_nets(torch.float64)
    nets.student.register_forward_hook(
        lambda _, given, out: seen.append(given[0].is_contiguous(memory_format=torch.channels_last))
    )
    take("fixmatch", nets, forward="skip", threshold=0.7)
    assert seen == [True, True]


def test_the_teacher_gives_pseudo_labels_by_batch_statistics_and_stays_as_it_is():
    nets = make_nets(torch.float64)
    images = make_batch(ALGORITHMS["fixmatch"], 1, torch.float64).views["weak"]
    answer = copy.deepcopy(nets.teacher).train()(images).argmax(dim=1)
    nets.teacher.eval()
    before = copy.deepcopy(nets.teacher.state_dict())
    out, passes = take("fixmatch", nets, forward="split", pseudo_labels="teacher")
    assert torch.equal(out.pseudo_label, answer)
    assert passes == [LABELED + UNLABELED], "the student does not see weak views"
    assert not nets.teacher.training
    assert all(torch.equal(before[key], v) for key, v in nets.teacher.state_dict().items())


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("fixmatch", {"slots": 4}, "slots needs forward=skip"),
        ("fixmatch", {"slots": 4, "forward": "split"}, "slots needs forward=skip"),
        ("flexmatch", {"slots": -1, "forward": "skip"}, "greater than or equal to 0"),
        ("flexmatch", {"pseudo_labels": "teacher"}, "needs forward=split or forward=skip"),
        ("softmatch", {"forward": "skip"}, "type algo.forward=split"),
        ("flexmatch", {"alignment": True, "prior": "labeled"}, "alignment expects equal classes"),
        ("flexpl", {"range": "scale", "floor": 0.96}, "expected at most threshold"),
        (
            "fixmatch",
            {"forward": "skip", "class_balance": 1.0, "balance_over": "strong"},
            "does not go with forward=skip",
        ),
        (
            "fixmatch",
            {"forward": "skip", "class_balance": 1.0, "balance_over": "all"},
            "needs forward=together",
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(name, settings, message):
    with pytest.raises(ValidationError, match=message):
        ALGORITHMS[name].config(**settings)
