"""The curriculum against recounting every mark in Python, and the code it compiles to."""

import itertools
import math
import re
from collections import Counter

import pytest
import torch

from fastssl.algorithms import DatasetInfo
from fastssl.algorithms.common import cpl
from fastssl.distributed.collectives import Ranks
from pipelines.loader.batch import Batch
from tests.installed import needs_compiler

MAPPINGS = {
    "convex": lambda x: x / (2 - x),
    "linear": lambda x: x,
    "concave": lambda x: math.log(x + 1) / math.log(2),
}


def batch_at(position):
    nothing = position[:0]
    return Batch(nothing, nothing, {}, position, position, nothing)


def start(config, classes, images):
    shares = torch.full((classes,), 1 / classes)
    return cpl.init_state(config, DatasetInfo(classes, images, shares, "cpu"))


def draw(classes, images, count, seed):
    """Return logits of which about half are confident, and distinct positions."""
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=source)
    favourite = (torch.rand(count, generator=source) ** 2 * classes).long()
    boost = math.log(classes) + 6 * torch.rand(count, generator=source)
    logits[torch.arange(count), favourite] += boost
    return logits, torch.randperm(images, generator=source)[:count]


class Plain:
    """The published way: count all marks with a Counter, every step."""

    def __init__(self, config, classes, images):
        self.config, self.classes = config, classes
        self.marks = [-1] * images

    def step(self, logits, position):
        config, count = self.config, Counter(self.marks)
        most = max(count[c] for c in range(self.classes))
        if config.warmup:
            most = max(most, count[-1])
        learned = [count[c] / most if most else 0.0 for c in range(self.classes)]
        heights = [MAPPINGS[config.mapping](x) for x in learned]
        limits = [max(config.floor, config.threshold * x) for x in heights]
        if config.range == "scale":
            limits = [(1 - x) * config.floor + x * config.threshold for x in heights]
        best, pseudo_label = logits.softmax(1).max(1)
        best, pseudo_label = best.tolist(), pseudo_label.tolist()
        mask = [b >= limits[g] for b, g in zip(best, pseudo_label, strict=True)]
        for b, g, place in zip(best, pseudo_label, position.tolist(), strict=True):
            if b >= config.threshold:
                self.marks[place] = g
        return mask, limits


def compare(decide, config, classes, images, count, seeds):
    plain, state = Plain(config, classes, images), start(config, classes, images)
    used = 0
    for seed in seeds:
        logits, position = draw(classes, images, count, seed)
        decision = decide(logits, batch_at(position), state, config, Ranks())
        mask, limits = plain.step(logits, position)
        assert decision.trusted.tolist() == mask
        torch.testing.assert_close(decision.thresholds, torch.tensor(limits), rtol=1e-6, atol=1e-7)
        assert state["marks"].tolist() == plain.marks
        counter = Counter(plain.marks)
        assert state["counts"].tolist() == [counter[c] for c in range(classes)] + [counter[-1]]
        used += sum(mask)
    assert 0 < used < count * len(seeds), "the test tests nothing"


WAYS = list(itertools.product((2, 10, 100, 1000), MAPPINGS, (True, False)))


@pytest.mark.parametrize(("classes", "mapping", "warmup"), WAYS)
def test_equals_the_counter(classes, mapping, warmup):
    # six ways of 334 steps for each number of classes: 2,004 random steps
    number = WAYS.index((classes, mapping, warmup))
    floor = 0.5 if number % 3 == 0 else 0.0
    kept = "scale" if number % 6 == 3 else "clamp"
    config = cpl.CurriculumSettings(mapping=mapping, warmup=warmup, floor=floor, range=kept)
    seeds = range(334 * number, 334 * (number + 1))
    compare(cpl.curriculum, config, classes, images=150, count=24, seeds=seeds)


def test_a_mark_only_changes_by_a_confident_prediction():
    config = cpl.CurriculumSettings()
    state = start(config, 3, 4)
    confident, not_confident = 20.0, 0.1
    for label, size in ((0, confident), (1, confident), (2, not_confident)):
        logits = torch.zeros(1, 3)
        logits[0, label] = size
        cpl.curriculum(logits, batch_at(torch.tensor([1])), state, config, Ranks())
    assert state["marks"].tolist() == [-1, 1, -1, -1]
    assert state["counts"].tolist() == [0, 1, 0, 3]


def test_marks_take_less_than_eight_bytes_an_image():
    state = start(cpl.CurriculumSettings(), 1000, 100)
    assert state["marks"].element_size() == 2
    assert start(cpl.CurriculumSettings(), 40_000, 100)["marks"].element_size() == 4


def test_a_rare_class_is_learned_with_fewer_marks():
    shares = torch.tensor([0.6, 0.3, 0.1])
    config = cpl.CurriculumSettings(prior="labeled", mapping="linear", threshold=1.0)
    state = cpl.init_state(config, DatasetInfo(3, 100, shares, "cpu"))
    state["counts"].copy_(torch.tensor([60, 15, 10, 15]))
    torch.testing.assert_close(cpl.thresholds(state, config), torch.tensor([1.0, 0.5, 1.0]))
    uniform = cpl.CurriculumSettings(mapping="linear", threshold=1.0)
    torch.testing.assert_close(cpl.thresholds(state, uniform), torch.tensor([1, 1 / 4, 1 / 6]))


def test_a_class_that_is_not_expected_has_a_threshold_all_the_same():
    config = cpl.CurriculumSettings(prior="labeled", mapping="linear", threshold=1.0)
    state = cpl.init_state(config, DatasetInfo(3, 100, torch.tensor([0.5, 0.5, 0.0]), "cpu"))
    state["counts"].copy_(torch.tensor([60, 30, 0, 10]))
    torch.testing.assert_close(cpl.thresholds(state, config), torch.tensor([1.0, 0.5, 0.0]))


@pytest.mark.parametrize("prior", ["uniform", "estimated"])
def test_two_ranks_hold_the_table_of_one(prior):
    """Each rank decides for its half and gathers the other's: the tables are one."""
    config, classes, images = cpl.CurriculumSettings(prior=prior, prior_decay=0.8), 10, 60
    one = start(config, classes, images)
    two = [start(config, classes, images) for _ in range(2)]

    class Half:
        def __init__(self, sent, mean):
            self.sent, self.of_both = sent, mean

        def gather(self, tensor):
            return torch.cat(self.sent)

        def mean(self, tensor):
            return self.of_both

    for seed in range(20):
        logits, position = draw(classes, images, 16, seed)
        whole = cpl.curriculum(logits, batch_at(position), one, config, Ranks())
        answer = logits.softmax(1)
        best, pseudo_label = answer.max(1)
        confident = torch.where(best >= config.threshold, pseudo_label, -1).int()
        both = Half(confident.split(8), answer.mean(0))
        for rank, state in enumerate(two):
            mine = slice(8 * rank, 8 * rank + 8)
            batch = Batch(None, None, {}, position[mine], position, None)
            part = cpl.curriculum(logits[mine], batch, state, config, both)
            assert torch.equal(part.trusted, whole.trusted[mine])
            assert all(torch.equal(state[key], one[key]) for key in one)


@needs_compiler
@pytest.mark.parametrize("settings", [{}, {"range": "scale", "floor": 0.5}], ids=str)
def test_compiles_to_one_kernel_called_once(settings):
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    config, ranks = cpl.CurriculumSettings(**settings), Ranks()

    def decide(logits, batch, state, config, ranks):
        return cpl.curriculum(logits, batch, state, config, ranks)

    compiled = torch.compile(decide, fullgraph=True)
    logits, position = draw(10, 150, 24, 0)
    _, codes = run_and_get_code(
        compiled, logits, batch_at(position), start(config, 10, 150), config, ranks
    )
    (code,) = codes
    kernels = re.findall(r"^(cpp_fused\w*) = async_compile", code, re.MULTILINE)
    calls = re.findall(r"^\s+(cpp_fused\w*)\(", code, re.MULTILINE)
    assert len(kernels) == 1 and calls == kernels
    fallback = re.findall(r"extern_kernels\.|torch\.ops\.aten\.\w+\.|aten\.\w+\.\w+\(", code)
    assert not fallback
    compare(compiled, config, 10, images=150, count=24, seeds=range(60))
