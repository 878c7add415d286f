"""Every algorithm a second time, written from its formula as plainly as possible.

Nothing here is fast, and nothing here is taken from fastssl.algorithms but the random numbers of
a step. `memory` is what the algorithm remembers: a dict that starts empty.
"""

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fastssl.algorithms.common import rng
from pipelines.loader.batch import Batch

Memory = dict[str, Any]
ROUNDED_TO = 4  # strong views of a pass with forward=skip


def quiet(net: nn.Module, x: Tensor, **options: Any) -> Any:
    """Run in train mode on copies of all buffers, so that the running statistics stay."""
    copies = {name: buffer.clone() for name, buffer in net.named_buffers()}
    return functional_call(net, copies, (x,), options)


def p(logits: Tensor) -> Tensor:
    return torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)


def entropy_to(target: Tensor, logits: Tensor) -> Tensor:
    return torch.stack([-(t * torch.log(q)).sum() for t, q in zip(target, p(logits), strict=True)])


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    return torch.stack([torch.eye(like.shape[1], dtype=like.dtype)[label] for label in labels])


def cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    return entropy_to(one_hot(labels, logits), logits)


def rising(t: float, length: float) -> float:
    return min(1.0, t / length) if length else 1.0


def three(net, teacher, batch, config, decide) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the logits of labeled, weak and strong images, and what `decide` says of the weak."""
    weak, strong = batch.views["weak"], batch.views["strong"]
    b, u = len(batch.images), len(weak)
    if config.forward == "together":
        out = net(torch.cat([batch.images, weak, strong]))
        w = out[b : b + u]
        return out[:b], w, out[b + u :], decide(w.detach())
    with torch.no_grad():
        w = quiet(teacher if config.pseudo_labels == "teacher" else net, weak)
    mask, passed = decide(w), list(range(u))
    if config.forward == "skip":
        passed.sort(key=lambda i: mask[i] == 0)  # stable: trusted ones first
        count = math.ceil(sum(m > 0 for m in mask.tolist()) / ROUNDED_TO) * ROUNDED_TO
        passed = passed[: min(count, config.slots or u)]
        mask = torch.stack([m if i in passed else 0 * m for i, m in enumerate(mask)])
    out = net(torch.cat([batch.images, *(strong[i : i + 1] for i in passed)]))
    rows = [torch.zeros_like(w[0]) for _ in range(u)]
    for i, row in zip(passed, out[b:], strict=True):
        rows[i] = row
    return out[:b], w, torch.stack(rows), mask


def aligned(answer: Tensor, memory: Memory, decay: float) -> Tensor:
    mean, old = answer.mean(0), memory.get("mean")
    memory["mean"] = mean if old is None else decay * old + (1 - decay) * mean
    answer = answer / answer.shape[1] / memory["mean"]
    return answer / answer.sum(1, keepdim=True)


def supervised(net, teacher, batch, memory, config, t):
    return cross_entropy(batch.labels, net(batch.images)).mean()


def fixmatch(net, teacher, batch, memory, config, t):
    answers = []

    def decide(w):
        answers.append(aligned(p(w), memory, config.alignment_decay) if config.alignment else p(w))
        return torch.tensor([float(a.max() >= config.threshold) for a in answers[0]])

    x, w, s, mask = three(net, teacher, batch, config, decide)
    total = cross_entropy(batch.labels, x).mean()
    hard = cross_entropy(answers[0].argmax(1), s)
    total = total + config.unlabeled_weight * (mask * hard).sum() / len(w)
    if config.class_balance:
        over = {"weak": w, "strong": s, "labeled": x, "all": torch.cat([x, w, s])}
        mean = p(over[config.balance_over]).mean(0)
        q = 1 / len(mean)
        total = total + config.class_balance * sum(q * torch.log(q / m) for m in mean)
    return total


def flexible_mask(answer: Tensor, batch: Batch, memory: Memory, config: Any) -> Tensor:
    """CPL by recounting everything, in the published way."""
    from tests.steps import IMAGES, facts

    classes = answer.shape[1]
    marks = memory.setdefault("marks", [-1] * IMAGES)
    count = Counter(marks)
    scale = [1.0] * classes
    if config.prior == "labeled":
        scale = [
            max(classes * float(share), 0.01) for share in facts(dtype=torch.float64).labeled_shares
        ]
    if config.prior == "estimated":
        mean = answer.mean(0)
        old = memory.get("share")
        d = config.prior_decay
        memory["share"] = mean if old is None else d * old + (1 - d) * mean
        scale = [max(classes * float(share), 0.01) for share in memory["share"]]
    learnt = [count[c] / scale[c] for c in range(classes)]
    most = max(*learnt, count[-1]) if config.warmup else max(learnt)
    mapping = {
        "convex": lambda x: x / (2 - x),
        "linear": lambda x: x,
        "concave": lambda x: math.log(x + 1) / math.log(2),
    }[config.mapping]
    heights = [mapping(n / most if most else 0) for n in learnt]
    if config.range == "scale":
        limits = [(1 - h) * config.floor + h * config.threshold for h in heights]
    else:
        limits = [max(config.floor, h * config.threshold) for h in heights]
    memory["limits"] = limits
    best, pseudo_label = answer.max(1)
    mask = [
        float(b >= limits[g]) for b, g in zip(best.tolist(), pseudo_label.tolist(), strict=True)
    ]
    for b, g, place in zip(
        best.tolist(), pseudo_label.tolist(), batch.global_positions.tolist(), strict=True
    ):
        if b >= config.threshold:
            marks[place] = g
    return torch.tensor(mask)


def flexmatch(net, teacher, batch, memory, config, t):
    answers = []

    def decide(w):
        answers.append(aligned(p(w), memory, config.alignment_decay) if config.alignment else p(w))
        return flexible_mask(answers[0], batch, memory, config)

    x, w, s, mask = three(net, teacher, batch, config, decide)
    hard = cross_entropy(answers[0].argmax(1), s)
    supervised_part = cross_entropy(batch.labels, x).mean()
    return supervised_part + config.unlabeled_weight * (mask * hard).sum() / len(w)


def annealed(x: Tensor, labels: Tensor, config: Any, t: float) -> Tensor:
    hard = cross_entropy(labels, x)
    if config.tsa == "none":
        return hard.mean()
    risen = {"linear": t, "log": 1 - math.exp(-5 * t), "exp": math.exp(5 * (t - 1))}[config.tsa]
    limit = risen * (1 - 1 / x.shape[1]) + 1 / x.shape[1]
    return sum(h for h, a in zip(hard, p(x), strict=True) if a.max() <= limit) / len(x)


def uda(net, teacher, batch, memory, config, t):
    def decide(w):
        return torch.tensor([float(a.max() >= config.threshold) for a in p(w)])

    x, w, s, mask = three(net, teacher, batch, config, decide)
    soft = entropy_to(p(w.detach() / config.temperature), s)
    first = annealed(x, batch.labels, config, t)
    return first + config.unlabeled_weight * (mask * soft).sum() / len(w)


def flexuda(net, teacher, batch, memory, config, t):
    def decide(w):
        return flexible_mask(p(w), batch, memory, config)

    x, w, s, mask = three(net, teacher, batch, config, decide)
    soft = entropy_to(p(w.detach() / config.temperature), s)
    first = annealed(x, batch.labels, config, t)
    return first + config.unlabeled_weight * (mask * soft).sum() / len(w)


def pseudolabel(net, teacher, batch, memory, config, t):
    x = net(batch.images)
    w = quiet(net, batch.views["weak"])
    answer = p(w.detach())
    mask = torch.tensor([float(a.max() >= config.threshold) for a in answer])
    hard = cross_entropy(answer.argmax(1), w)
    weight = config.unlabeled_weight * rising(t, config.ramp)
    return cross_entropy(batch.labels, x).mean() + weight * (mask * hard).sum() / len(w)


def flexpl(net, teacher, batch, memory, config, t):
    x = net(batch.images)
    w = quiet(net, batch.views["weak"])
    answer = p(w.detach())
    mask = flexible_mask(answer, batch, memory, config)
    hard = cross_entropy(answer.argmax(1), w)
    weight = config.unlabeled_weight * rising(t, config.ramp)
    return cross_entropy(batch.labels, x).mean() + weight * (mask * hard).sum() / len(w)


def pimodel(net, teacher, batch, memory, config, t):
    x = net(batch.images)
    one = p(quiet(net, batch.views["one"]))
    other = p(quiet(net, batch.views["other"])).detach()
    weight = config.unlabeled_weight * rising(t, config.ramp)
    return cross_entropy(batch.labels, x).mean() + weight * ((one - other) ** 2).mean()


def meanteacher(net, teacher, batch, memory, config, t):
    x = net(batch.images)
    learner = p(quiet(net, batch.views["other"]))
    target = p(quiet(teacher, batch.views["one"])).detach()
    weight = config.unlabeled_weight * rising(t, config.ramp)
    return cross_entropy(batch.labels, x).mean() + weight * ((learner - target) ** 2).mean()


def vat(net, teacher, batch, memory, config, t):
    x = net(batch.images)
    images = batch.views["weak"]
    w = quiet(net, images)
    target = p(w.detach())

    def divergence(z: Tensor) -> Tensor:
        return (target * (torch.log(target) - torch.log(p(z)))).sum(1).mean()

    drawn = rng.normal(batch.key, 0, images.numel()).to(images.dtype)
    d = drawn.reshape(images.shape)
    for _ in range(config.iterations):
        d = torch.stack([config.probe * row / row.norm() for row in d]).requires_grad_()
        d = torch.autograd.grad(divergence(quiet(net, images + d)), d)[0]
    a = torch.stack([config.radius * row / row.norm() for row in d])
    uncertainty = -(p(w) * torch.log(p(w))).sum(1).mean()
    return (
        cross_entropy(batch.labels, x).mean()
        + config.unlabeled_weight * rising(t, config.ramp) * divergence(quiet(net, images + a))
        + config.entropy_weight * uncertainty
    )


def sharper(q: Tensor, temperature: float) -> Tensor:
    return q ** (1 / temperature) / (q ** (1 / temperature)).sum(1, keepdim=True)


def mixed_logits(net, x, y, batch, config):
    """Mix, interleave, run chunk by chunk, and put the logits back in order."""
    n, b = len(x), len(batch.images)
    order = rng.permutation(batch.key, 0, n)
    drawn = rng.beta(batch.key, 1, n if config.per_sample else 1, config.alpha).to(y.dtype)
    weights = [max(float(v), 1 - float(v)) for v in drawn.expand(n)]
    mixed_x = torch.stack([a * x[i] + (1 - a) * x[order[i]] for i, a in enumerate(weights)])
    mixed_y = torch.stack([a * y[i] + (1 - a) * y[order[i]] for i, a in enumerate(weights)])
    chunks = n // b
    sizes = [b // chunks + (i >= chunks - b % chunks) for i in range(chunks)]
    place = list(range(n))  # place[k]: which image stands at place k after interleaving
    start = 0
    for i, size in enumerate(sizes):
        for j in range(start, start + size):
            place[j], place[i * b + j] = place[i * b + j], place[j]
        start += size
    logits: list[Any] = [None] * n
    for i in range(chunks):
        part = place[i * b : (i + 1) * b]
        out = net(mixed_x[part]) if i == 0 else quiet(net, mixed_x[part])
        for k, row in zip(part, out, strict=True):
            logits[k] = row
    return torch.stack(logits), mixed_y


def mixmatch(net, teacher, batch, memory, config, t):
    one, other = batch.views["one"], batch.views["other"]
    with torch.no_grad():
        q = sharper((p(quiet(net, one)) + p(quiet(net, other))) / 2, config.temperature)
    y = torch.cat([one_hot(batch.labels, q), q, q])
    logits, y = mixed_logits(net, torch.cat([batch.images, one, other]), y, batch, config)
    b = len(batch.images)
    first = entropy_to(y[:b], logits[:b]).mean()
    weight = config.unlabeled_weight * rising(t, config.ramp)
    return first + weight * ((p(logits[b:]) - y[b:]) ** 2).mean()


def remixmatch(net, teacher, batch, memory, config, t):
    from tests.steps import facts

    weak, strong, other = batch.views["weak"], batch.views["strong"], batch.views["other"]
    with torch.no_grad():
        answer = p(quiet(net, weak))
        mean, old = answer.mean(0), memory.get("mean")
        d = config.decay
        memory["mean"] = mean if old is None else d * old + (1 - d) * mean
        q = answer * facts(dtype=torch.float64).labeled_shares / memory["mean"]
        q = sharper(q / q.sum(1, keepdim=True), config.temperature)
    x = torch.cat([batch.images, strong, other, weak])
    y = torch.cat([one_hot(batch.labels, q), q, q, q])
    logits, y = mixed_logits(net, x, y, batch, config)
    b = len(batch.images)
    turns = rng.choice(batch.key, 100, len(weak), 4)
    turned = torch.stack(
        [torch.rot90(s, int(k), (1, 2)) for s, k in zip(strong, turns, strict=True)]
    )
    rotation = cross_entropy(turns, quiet(net, turned, heads=True)["rotation"]).mean()
    r = rising(t, config.ramp)
    return (
        entropy_to(y[:b], logits[:b]).mean()
        + config.unlabeled_weight * r * entropy_to(y[b:], logits[b:]).mean()
        + config.strong_weight * r * entropy_to(q, quiet(net, strong)).mean()
        + config.rotation_weight * rotation
    )


def freematch(net, teacher, batch, memory, config, t):
    def decide(w):
        best, pseudo_label = p(w).max(1)
        n, classes = w.shape
        histogram = w.new_tensor([float((pseudo_label == c).sum()) / n for c in range(classes)])
        m = config.decay
        for name, now in (("t", best.mean()), ("a", p(w).mean(0)), ("h", histogram)):
            memory[name] = m * memory.get(name, 1 / classes) + (1 - m) * now
        overall = min(max(float(memory["t"]), config.lowest), config.highest)
        limits = overall * memory["a"] / memory["a"].max()
        return (best >= limits[pseudo_label]).double()

    x, w, s, mask = three(net, teacher, batch, config, decide)
    n, pseudo_label = len(w), p(w).argmax(1)
    used = [i for i in range(n) if mask[i]]
    total = cross_entropy(batch.labels, x).mean()
    hard = cross_entropy(pseudo_label, s)
    total = total + config.unlabeled_weight * sum(hard[i] for i in used) / n
    if used:
        mean = p(s)[used].mean(0)
        drawn = Counter(p(s)[used].argmax(1).tolist())
        b = {c: mean[c] / drawn[c] for c in drawn}
        a = memory["a"] / memory["h"]
        a = a / a.sum()
        fairness = sum(a[c] * torch.log(b[c] / sum(b.values())) for c in drawn)
        total = total + config.fairness_weight * fairness
    return total


def softmatch(net, teacher, batch, memory, config, t):
    x, w, s, _ = three(net, teacher, batch, config, lambda w: None)
    answer = p(w.detach())
    pseudo_label, classes = answer.argmax(1), answer.shape[1]
    m = config.decay
    if config.alignment:
        answer = aligned(answer, memory, m)
    best = answer.max(1)[0]
    memory["u"] = m * memory.get("u", 1 / classes) + (1 - m) * best.mean()
    memory["v"] = m * memory.get("v", 1.0) + (1 - m) * best.var(unbiased=True)
    weight = torch.stack(
        [
            torch.exp(-((b - memory["u"]) ** 2) / (2 * memory["v"] / config.sigmas**2))
            if b < memory["u"]
            else torch.ones((), dtype=b.dtype)
            for b in best
        ]
    )
    hard = cross_entropy(pseudo_label, s)
    first = cross_entropy(batch.labels, x).mean()
    return first + config.unlabeled_weight * (weight * hard).mean()


fullysupervised = supervised
