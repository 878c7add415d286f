"""Two CPU ranks compute what one process does: losses, gradients, statistics, memories."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fastssl.algorithms import ALGORITHMS, Nets
from fastssl.distributed.collectives import Ranks
from fastssl.distributed.process_group import joined
from tests import ranked
from tests.steps import facts, gradients, make_batch, make_nets, tiny_nets

CASES = {
    "flexmatch": {"threshold": 0.7, "prior": "estimated"},
    "flexpl": {"threshold": 0.7},
    "fixmatch": {"threshold": 0.7, "class_balance": 1.0},
    "freematch": {"fairness_weight": 0.5, "decay": 0.6},
    "softmatch": {"decay": 0.6},
    "mixmatch": {"per_sample": True},
    "remixmatch": {},
    "vat": {},
    "meanteacher": {},
}
# collectives of a step beside those of BatchNorm and of the gradients
COLLECTIVES = {"flexpl": 1, "fixmatch": 1, "freematch": 2, "softmatch": 2, "mixmatch": 2, "vat": 0}
STEPS = 2
DEEP = ("flexmatch", "vat")  # on a network with parameters that get no gradient; the rest is quick

CALLS = []


class Counted(Ranks):
    """Ranks that note their collectives."""

    def gather(self, tensor):
        CALLS.append("gather")
        return super().gather(tensor)

    def mean(self, tensor):
        CALLS.append("mean")
        return super().mean(tensor)


def nets_for(name):
    if name in DEEP:
        return make_nets(torch.float64)
    nets = tiny_nets()
    return Nets(nets.student.double(), nets.teacher.double())


def steps(name, nets, ranks):
    """Take steps without moving the weights; give all that must agree."""
    algorithm = ALGORITHMS[name]
    config = algorithm.config(**CASES[name])
    state = algorithm.init_state(config, facts())
    message = []
    for seed in range(STEPS):
        batch = make_batch(algorithm, seed, torch.float64)
        mine = replace(
            batch,
            images=ranks.take(batch.images),
            labels=ranks.take(batch.labels),
            views={view: ranks.take(images) for view, images in batch.views.items()},
            position=ranks.take(batch.position),
        )
        progress = torch.tensor(0.3, dtype=torch.float64)
        CALLS.clear()
        out = algorithm.step(nets, mine, state, config, progress, ranks)
        calls = len(CALLS)
        nets.student.zero_grad()
        out.loss.backward()
        bare = getattr(nets.student, "module", nets.student)
        message.append(
            {
                "loss": ranks.mean(out.loss),
                "labeled": ranks.mean(out.metrics["loss/labeled"]),
                **{f"gradient of {k}": v for k, v in gradients(bare).items()},
                **{f"buffer {k}": v.clone() for k, v in bare.named_buffers()},
                **{f"state {k}": v.clone() for k, v in state.items()},
            }
        )
    return message, calls


def rank_main(rank, folder):
    """Be one of two ranks; leave what it computed in a file."""
    torch.set_num_threads(1)
    with joined() as group:
        message = compute(rank, Counted(group.ranks.rank, group.ranks.world))
        torch.save(message, Path(folder) / f"{rank}.pt")
        group.ranks.max(0)


def compute(rank, ranks):
    from torch.nn.parallel import DistributedDataParallel

    from fastssl.distributed.sync_batchnorm import convert

    message = {}
    for name in CASES:
        nets = nets_for(name)
        student = DistributedDataParallel(
            convert(nets.student), static_graph=True, broadcast_buffers=False
        )
        message[name] = steps(name, Nets(student, convert(nets.teacher)), ranks)
    own = torch.arange(3) + 10 * rank
    message["gather"] = ranks.gather(own)
    message["take"] = ranks.take(ranks.gather(own))
    return message


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    assert ranked.wait(ranked.start(2, rank_main, str(folder))) == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", list(CASES))
def test_two_ranks_are_one_process(name, two):
    alone, _ = steps(name, nets_for(name), Ranks())
    for rank in range(2):
        shared, calls = two[rank][name]
        for step in range(STEPS):
            assert alone[step].keys() == shared[step].keys()
            for key, value in alone[step].items():
                torch.testing.assert_close(
                    shared[step][key],
                    value,
                    rtol=1e-6,
                    atol=1e-7,
                    msg=lambda m, key=key, step=step: f"{key}, step {step}: {m}",
                )
        assert calls == COLLECTIVES.get(name, calls)


def test_slices_and_order(two):
    for rank in range(2):
        assert two[rank]["gather"].tolist() == [0, 1, 2, 10, 11, 12]
        assert two[rank]["take"].tolist() == [0 + 10 * rank, 1 + 10 * rank, 2 + 10 * rank]


def test_one_process_has_everything():
    ranks = Ranks()
    tensor = torch.ones(3, requires_grad=True)
    assert ranks.take(tensor) is tensor and ranks.mean_with_grad(tensor) is tensor
    assert not ranks.gather(tensor).requires_grad and not ranks.mean(tensor).requires_grad
