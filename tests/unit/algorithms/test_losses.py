"""Shared pieces: statistics that stay, chunks that interleave, numbers known on paper."""

import math

import pytest
import torch
from torch import nn

from fastssl.algorithms import ALGORITHMS
from fastssl.algorithms.common import losses, mixup
from fastssl.algorithms.common.settings import WeakStrongSettings
from fastssl.algorithms.uda import annealed_loss
from fastssl.distributed.collectives import Ranks
from tests.steps import CLASSES, UNLABELED, TinyNet, facts, make_batch, tiny_nets


def test_statistics_stay_where_and_as_they_are():
    net = TinyNet()
    kept = {name: (b.data_ptr(), b.clone()) for name, b in net.named_buffers()}
    x = torch.randn(8, 3, 4, 4) * 3 + 2
    with losses.frozen_statistics(net):
        inside = net(x)
    for name, buffer in net.named_buffers():
        address, value = kept[name]
        assert buffer.data_ptr() == address and torch.equal(buffer, value)
    torch.testing.assert_close(inside, net(x))  # batch statistics, as in training
    assert not torch.equal(net.bn.running_mean, kept["bn.running_mean"][1])


def test_modes_come_back_even_after_an_error():
    norms = nn.ModuleList([nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.SyncBatchNorm(2)])
    norms[0].eval()
    norms[1].track_running_stats = False
    with pytest.raises(ZeroDivisionError), losses.frozen_statistics(norms):
        assert all(n.training and not n.track_running_stats for n in norms)
        raise ZeroDivisionError
    assert [(n.training, n.track_running_stats) for n in norms] == [
        (False, True),
        (True, False),
        (True, True),
    ]


def test_a_split_pass_keeps_no_graph_of_the_weak_views():
    batch = make_batch(ALGORITHMS["fixmatch"])
    for mode, weak_has_graph in (("together", True), ("split", False)):
        passes = losses.Passes(tiny_nets(), batch, WeakStrongSettings(forward=mode), Ranks())
        assert passes.weak.requires_grad == weak_has_graph
        labeled, strong, _ = passes.finish(torch.ones(UNLABELED))
        assert labeled.requires_grad and strong.requires_grad


def test_logits_leave_half_precision_where_they_leave_the_network():
    net, x = TinyNet(), torch.randn(4, 3, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x).dtype == torch.bfloat16
        logits = (*losses.forward(net, x), *losses.forward(net, x, x))
    assert {z.dtype for z in logits} == {torch.float32}


WITH_THRESHOLD = [
    name for name in ALGORITHMS if "threshold" in ALGORITHMS[name].config.model_fields
]


@pytest.mark.parametrize("name", WITH_THRESHOLD)
def test_a_guess_just_at_the_threshold_counts(name):
    """An undecided network gives every class 1/C to the bit; so `>=` differs from `>`."""
    algorithm, nets = ALGORITHMS[name], tiny_nets()
    nn.init.zeros_(nets.student.classifier.weight)
    nn.init.zeros_(nets.student.classifier.bias)
    flexible = {"warmup": False} if "warmup" in algorithm.config.model_fields else {}
    config = algorithm.config(threshold=1 / CLASSES, **flexible)
    state = algorithm.init_state(config, facts())
    batch = make_batch(algorithm)
    for _ in range(2):  # the second time the class is learnt, and its flexible threshold is tau
        out = algorithm.step(nets, batch, state, config, torch.tensor(0.5), Ranks())
        assert out.trusted.min() == 1
    if flexible:
        assert out.tables["thresholds"][0] == torch.tensor(1 / CLASSES)
        assert (state["marks"][batch.position] == 0).all()


def test_interleaving_twice_is_nothing_and_the_first_chunk_sees_all():
    chunks = [torch.arange(7) + 100 * i for i in range(3)]
    mixed = mixup.interleave(chunks)
    assert mixed[0].tolist() == [0, 1, 102, 103, 204, 205, 206]
    assert mixed[1].tolist() == [100, 101, 2, 3, 104, 105, 106]
    again = mixup.interleave(mixed)
    assert all(torch.equal(a, b) for a, b in zip(again, chunks, strict=True))


def test_rotation_turns_each_image_by_its_own_quarters():
    images = torch.randn(5, 3, 4, 4)
    turns = torch.tensor([0, 1, 2, 3, 1])
    rotated = mixup.rotate(images, turns)
    for image, turn, got in zip(images, turns, rotated, strict=True):
        assert torch.equal(got, torch.rot90(image, int(turn), (1, 2)))


def test_a_mix_keeps_more_of_the_image_than_of_the_other():
    images = [torch.eye(12)[i : i + 4].reshape(4, 3, 2, 2) for i in (0, 4, 8)]
    targets = [torch.eye(12)[i : i + 4] for i in (0, 4, 8)]
    key = torch.tensor([3, 4])
    mixed = mixup.mix(images, targets, key, Ranks(), alpha=0.75, per_sample=True)
    flat = torch.cat(mixed.images).reshape(12, 12)
    torch.testing.assert_close(flat, mixed.targets)  # images and labels are mixed alike
    torch.testing.assert_close(flat.sum(1), torch.ones(12))
    assert (flat.max(1).values >= 0.5).all() and (flat.max(1).values < 1).any()
    own = flat.argmax(1)
    assert torch.equal((own < 4).float(), mixed.labeled)
    assert all(m.is_contiguous(memory_format=torch.channels_last) for m in mixed.images)


@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_mix_as_one_process_does(rank):
    images, targets = torch.randn(3, 4, 3, 2, 2), torch.randn(3, 4, 5)  # [groups, n, ...]
    options = {"key": torch.tensor([3, 4]), "alpha": 0.75, "per_sample": True}

    class TwoRanks(Ranks):
        def gather(self, tensor):
            whole = images if tensor.ndim == 4 else targets
            return torch.cat([*whole[:, :2], *whole[:, 2:]])

    part = slice(2 * rank, 2 * rank + 2)
    ranks = TwoRanks(rank=rank, world=2)
    mixed = mixup.mix([*images[:, part]], [*targets[:, part]], ranks=ranks, **options)
    whole = mixup.mix([*images], [*targets], ranks=Ranks(), **options)
    assert torch.equal(torch.stack(mixed.images), torch.stack(whole.images)[:, part])
    assert torch.equal(mixed.targets, whole.targets.view(3, 4, 5)[:, part].flatten(0, 1))
    assert torch.equal(mixed.labeled, whole.labeled.view(3, 4)[:, part].flatten())


def test_numbers_known_on_paper():
    half = torch.tensor([[0.5, 0.5]])
    zero = torch.zeros(1, 2)
    log2 = torch.tensor(2.0).log()
    torch.testing.assert_close(losses.soft_cross_entropy(zero, half), log2)
    torch.testing.assert_close(
        losses.masked_cross_entropy(zero, torch.tensor([0]), torch.ones(1)), log2
    )
    sharp = losses.sharpen(torch.tensor([[0.75, 0.25]]), 0.5)
    torch.testing.assert_close(sharp, torch.tensor([[0.9, 0.1]]))
    square = losses.squared_error(zero, torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(square, torch.tensor(0.25))
    ramps = [losses.ramp(torch.tensor(t), 0.4).item() for t in (0.0, 0.1, 0.4, 1.0)]
    assert ramps == pytest.approx([0, 0.25, 1, 1])
    assert losses.ramp(torch.tensor(0.0), 0).item() == 1


def test_an_average_starts_with_its_first_value():
    memory = torch.zeros(2)
    losses.update_average(memory, torch.tensor([0.2, 0.8]), 0.9)
    assert memory.tolist() == pytest.approx([0.2, 0.8])
    losses.update_average(memory, torch.tensor([1.0, 0.0]), 0.9)
    assert memory.tolist() == pytest.approx([0.28, 0.72])


@pytest.mark.parametrize("t", [0.0, 0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("tsa", ["linear", "log", "exp"])
def test_annealing_drops_what_is_learnt_beyond_the_limit(tsa, t):
    confidence = torch.linspace(0.5, 0.999, 200, dtype=torch.float64)  # of the first of two classes
    logits = torch.stack(
        [torch.log(confidence / (1 - confidence)), torch.zeros_like(confidence)], dim=1
    )
    risen = {"linear": t, "log": 1 - math.exp(-5 * t), "exp": math.exp(5 * t - 5)}[tsa]
    kept = confidence <= 0.5 + risen / 2
    labels = torch.zeros(200, dtype=torch.int64)
    loss = annealed_loss(logits, labels, tsa, torch.tensor(t, dtype=torch.float64))
    torch.testing.assert_close(loss, -confidence[kept].log().sum() / 200)
