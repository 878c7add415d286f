"""Muon, against torch.optim.Muon on matrices, torch.optim.SGD on the rest, and its equations."""

import copy

import pytest
import torch
from torch import nn

from fastssl import models
from fastssl.config.schema import RunConfig
from fastssl.engine import optim
from fastssl.engine.muon import Muon, as_matrix, orthogonalized
from fastssl.errors import ConfigError
from tests.fake_cuda import fake_cuda, no_host_wait


def with_gradients(parameters, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return parameters


def muon(weights, **options):
    group = {"params": weights, "matrices": True, "momentum": options.pop("momentum", 0.6)}
    return Muon([group], options.pop("lr", 0.05), **options)


@pytest.mark.parametrize("iterations", [3, 5])
@pytest.mark.parametrize("shape", [(4, 4), (3, 8), (8, 3)])
def test_a_matrix_takes_the_steps_of_torch(shape, iterations):
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(shape))
    theirs = nn.Parameter(ours.detach().clone())
    settings = {"momentum": 0.6, "weight_decay": 0, "ns_steps": iterations}
    expected = torch.optim.Muon([theirs], 0.05, **settings)
    found = muon([ours], rescale=False, iterations=iterations)
    for step in range(5):
        with_gradients([ours], step)
        theirs.grad = ours.grad.clone()
        found.step()
        expected.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    buffers = (opt.state[w]["momentum_buffer"] for opt, w in ((found, ours), (expected, theirs)))
    torch.testing.assert_close(*buffers)


def test_a_convolution_takes_the_step_of_its_matrix():
    torch.manual_seed(0)
    weight = torch.randn(6, 5, 3, 2).to(memory_format=torch.channels_last)
    gradient = torch.randn(6, 5, 3, 2)
    four, two = nn.Parameter(weight.clone()), nn.Parameter(torch.empty(6, 30))
    with torch.no_grad():
        for row in range(6):
            for channel in range(5):
                for y in range(3):
                    for x in range(2):
                        two[row, (y * 2 + x) * 5 + channel] = weight[row, channel, y, x]
    four.grad, two.grad = gradient, as_matrix(gradient)
    assert torch.equal(as_matrix(weight), two)
    muon([four]).step()
    muon([two]).step()
    torch.testing.assert_close(as_matrix(four), two)
    assert four.is_contiguous(memory_format=torch.channels_last)


def test_a_matrix_is_rescaled_before_its_step():
    torch.manual_seed(0)
    weight = nn.Parameter(7 * torch.randn(5, 9))
    expected = weight.detach() / weight.detach().norm() * 5**0.5
    weight.grad = torch.randn(5, 9)
    expected = expected - 0.05 * orthogonalized(weight.grad, 3)
    muon([weight]).step()
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-2, atol=1e-3)  # bf16 inside


def test_an_update_is_nearly_orthogonal_with_the_same_singular_vectors():
    torch.manual_seed(0)
    update = torch.randn(12, 40)
    found = orthogonalized(update, 5).float()
    assert ((torch.linalg.svdvals(found) - 1).abs() < 0.35).all()
    left, _, right = torch.linalg.svd(update, full_matrices=False)
    rotated = left.T @ found @ right.T  # diagonal if the singular vectors are the same
    assert (rotated - rotated.diag().diag()).abs().max() < 0.05
    zeros = torch.zeros(3, 4)
    assert torch.equal(orthogonalized(zeros, 3), zeros.bfloat16())


def test_a_network_has_matrices_and_the_rest_takes_the_steps_of_sgd():
    torch.manual_seed(0)
    ours = models.build("fast-8", classes=3, heads={"rotation": 4})
    theirs = copy.deepcopy(ours)
    config = RunConfig(optimizer="muon", lr=0.02, muon_lr=0.3, weight_decay=0.1, steps=10)
    optimizer = optim.build(ours, config)
    decayed, others, matrices = optimizer.param_groups
    names = {parameter: name for name, parameter in ours.named_parameters()}
    found = [{names[p] for p in group["params"]} for group in optimizer.param_groups]
    assert found[0] == {"classifier.weight", "heads.rotation.weight"}
    assert found[2] == {name for name, one in ours.named_parameters() if one.ndim == 4}
    assert all(parameter.ndim == 1 for parameter in others["params"]) and sum(
        map(len, found)
    ) == len(names)
    assert (decayed["weight_decay"], others["weight_decay"], matrices["weight_decay"]) == (
        0.1,
        0,
        0,
    )
    assert (decayed["momentum"], matrices["momentum"]) == (0.9, 0.6)
    rest = [[one for one in theirs.parameters() if one.ndim == size] for size in (2, 1)]
    groups = [{"params": some, "weight_decay": d} for some, d in zip(rest, (0.1, 0), strict=True)]
    plain = torch.optim.SGD(groups, lr=0.02, momentum=0.9, nesterov=True)
    for step in range(3):
        with_gradients(list(ours.parameters()), step)
        with_gradients(list(theirs.parameters()), step)
        rate = optim.learning_rate(config, step)
        optim.set_learning_rate(optimizer, rate)
        assert matrices["lr"] == pytest.approx(rate * 15)
        for group in plain.param_groups:
            group["lr"] = rate
        optimizer.step()
        plain.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        if one.ndim == 4:
            assert not torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other)


class Hidden(nn.Module):
    """A network with a hidden linear layer and a table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(3, 4))
        self.hidden = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, 2)


def test_the_kind_of_a_layer_decides_what_a_matrix_is():
    assert optim.matrix_names(Hidden()) == {"hidden.weight"}
    with pytest.raises(ConfigError, match="optimizer=muon needs the classifier"):
        optim.matrix_names(nn.Sequential(nn.Linear(4, 2)))


def test_nothing_moves_unless_the_flag_is_zero():
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in ((4, 3, 2, 2), (4, 4), (4,))]
    groups = [{"params": parameters[:2], "matrices": True}, {"params": parameters[2:]}]
    optimizer = Muon(groups, 0.1)
    with_gradients(parameters)
    optimizer.step()
    before = copy.deepcopy((parameters, optimizer.state_dict()))
    for parameter in parameters:
        parameter.grad.fill_(torch.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    for one, other in zip(parameters, before[0], strict=True):
        assert torch.equal(one, other)
    for key, entry in optimizer.state_dict()["state"].items():
        assert torch.equal(entry["momentum_buffer"], before[1]["state"][key]["momentum_buffer"])


def test_a_step_does_not_wait_for_a_gpu():
    with fake_cuda():  # matrices alone: it has no fused SGD
        weight = nn.Parameter(torch.empty(4, 3, 2, 2, device="cuda"))
        weight.grad = torch.empty_like(weight)
        optimizer = muon([weight])
        optimizer.found_inf = torch.zeros((), device="cuda")
        with no_host_wait():
            optimizer.step()


def test_fp16_is_refused_where_auto_chose_it():
    model = models.build("fast-8", classes=3)
    with pytest.raises(ConfigError, match="fp16") as caught:
        optim.build(model, RunConfig(optimizer="muon"), "fp16")
    assert "precision=fp32" in caught.value.fix
    optim.build(model, RunConfig(optimizer="muon"), "bf16")
