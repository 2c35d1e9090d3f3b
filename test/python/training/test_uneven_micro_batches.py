# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Micro-batches that do not divide a batch: the last ones are smaller, and steps are those of the
whole batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.compiler.entrance import grouped
from training_support import assert_close

STEPS = 3


class Tokens(nn.Module):
    """Three blocks, tokens in, classes out."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(16, 11)

    def forward(self, ids):
        x = self.table(ids)
        for block in self.blocks:
            x = x + self.dropout(torch.tanh(block(self.norm(x))))
        return self.head(x)


class Divides(Tokens):
    """Divides by what is 0 of a sample without elements that are not 0."""

    def forward(self, ids):
        x = super().forward(ids)
        kept = (ids > 0).float()
        mean = (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)
        unit = mean / mean.norm(dim=-1, keepdim=True)
        return x + torch.log(unit.square().sum(-1))[:, None, None] + unit[:, None]


class Attends(Tokens):
    """Positions attend to each other, with a mask of the sample."""

    def forward(self, ids):
        x = super().forward(ids)[..., :8]
        mask = (ids > 1)[:, None, :] | torch.eye(ids.shape[1], dtype=torch.bool)
        y = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return F.pad(y, (0, 3)) + self.head(self.table(ids))


class Routes(Tokens):
    """A choice of experts by each token."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 3)

    def forward(self, ids):
        x = self.table(ids)
        weights, chosen = F.softmax(self.gate(x), -1).topk(2, -1)
        every = torch.stack([block(x) for block in self.blocks], -2)
        picked = every.gather(-2, chosen[..., None].expand(*chosen.shape, 16))
        return self.head(x + (picked * weights[..., None]).sum(-2))


def tokens(logits, labels, **options):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **options)


def per_sample(logits, labels):
    """A mean over samples of means over tokens that count."""
    each = tokens(logits, labels, reduction="none").view(labels.shape)
    counts = (labels != -100).sum(1)
    return (each.sum(1) / counts.clamp(min=1)).mean()


def weighted(logits, labels):
    weights = torch.linspace(0.5, 2, 11)
    return tokens(logits, labels, weight=weights)


def regression(logits, labels):
    return F.mse_loss(logits, F.one_hot(labels.clamp(min=0), 11).float())


LOSSES = {
    "mean": tokens, "sum": lambda x, y: tokens(x, y, reduction="sum"), "per sample": per_sample,
    "weighted": weighted, "mse": regression,
    "largest": lambda x, y: x.logsumexp(-1).amax(1).mean() + tokens(x, y),
    "smooth": lambda x, y: tokens(x, y, label_smoothing=0.1),
}
MODELS = {"tokens": Tokens, "dropout": lambda: Tokens(0.2), "divides": Divides, "attends": Attends,
          "routes": Routes}


def batches(samples):
    generator = torch.Generator().manual_seed(0)
    result = []
    for _ in range(STEPS):
        ids = torch.randint(1, 11, (samples, 6), generator=generator)
        labels = torch.randint(0, 11, (samples, 6), generator=generator)
        # Samples differ in how much of them counts.
        ignored = torch.rand(samples, 6, generator=generator)
        labels[ignored < torch.linspace(0, 0.8, samples)[:, None]] = -100
        result.append((ids, labels))
    return result


def trained(model, loss, samples, **options):
    data = batches(samples)
    torch.manual_seed(0)
    step = cleave.compile(MODELS[model](), data[0], LOSSES[loss], check="off", seed=3,
                          optimizer=cleave.AdamW(lr=1e-2, eps=1e-4, max_grad_norm=0.5),
                          **grouped(threads=1, **options))
    losses = [(float(result), float(result.grad_norm)) for result in (step(*b) for b in data)]
    state = {f"{name}.{slot}": value for name, own in step.training_state()["optimizer"].items()
             for slot, value in own.items()}
    losses.append(float(step.evaluate(*data[0])))
    return step, losses, {**step.state_dict(), **state}


CASES = [
    *(("tokens", loss, 13, 4, {}) for loss in LOSSES),
    *((model, "mean", 13, 4, {}) for model in MODELS if model != "tokens"),
    # The last micro-batch has no sample.
    ("tokens", "per sample", 5, 4, {}), ("divides", "mean", 5, 4, {}),
    ("tokens", "mean", 7, 2, {}), ("routes", "sum", 7, 3, {}),
    ("tokens", "mean", 13, 4, dict(mesh={"pp": 2})),
    ("divides", "per sample", 13, 4, dict(mesh={"pp": 2}, schedule="gpipe")),
    ("tokens", "sum", 5, 4, dict(mesh={"pp": 2})),
    ("dropout", "mean", 7, 3, dict(mesh={"pp": 2}, schedule="zb-h1")),
    ("tokens", "weighted", 13, 3, dict(mesh={"dp": 2}, plan="zero1")),
    ("attends", "per sample", 13, 4, dict(mesh={"dp": 2}, plan="zero3")),
    ("divides", "mean", 13, 4, dict(mesh={"dp": 2})),
    ("tokens", "per sample", 11, 2, dict(mesh={"dp": 2, "pp": 2})),
    ("tokens", "mean", 13, 4, dict(recompute="full")),
    ("routes", "mean", 13, 4, dict(offload=["saved"])),
    ("attends", "mean", 7, 3, dict(fused_attention=False)),
]


@pytest.mark.parametrize("model, loss, samples, parts, options", CASES, ids=str)
def test_steps_are_those_of_the_whole_batch(model, loss, samples, parts, options):
    _, expected, values = trained(model, loss, samples)
    step, losses, found = trained(model, loss, samples, micro_batches=parts, **options)
    assert_close(losses[:-1], expected[:-1], rtol=2e-5)
    assert losses[-1] == pytest.approx(expected[-1], rel=2e-5)
    assert found.keys() == values.keys()
    for name, value in values.items():
        assert_close(found[name].double(), value.double(), rtol=2e-3, atol=2e-5)


def test_memory_is_that_of_the_largest_micro_batch():
    def peak(samples, parts):
        model = nn.Sequential(*(part for _ in range(2) for part in (nn.Linear(64, 64), nn.Tanh())))
        x = torch.zeros(samples, 64, 64)
        step = cleave.compile(model, (x, x), F.mse_loss, micro_batches=parts,
                              target=cleave.Target(threads=1), check="off")
        return step.memory()["train peak"]

    assert peak(13, 4) <= 1.05 * peak(16, 4) < 0.6 * peak(13, 1)


def test_two_samples_in_three_parts_are_computed_in_two(caplog):
    step, losses, _ = trained("tokens", "mean", 2, micro_batches=3)
    assert "a batch of 2 has too few samples for 3 micro-batches; computed in 2" in caplog.text
    assert_close(losses[:-1], trained("tokens", "mean", 2)[1][:-1], rtol=2e-5)


def eager(model, loss, samples):
    """Parameters and moments of `trained` in PyTorch, in f64."""
    torch.manual_seed(0)
    module = MODELS[model]().double()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-4)
    for ids, labels in batches(samples):
        optimizer.zero_grad()
        LOSSES[loss](module(ids), labels).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
    moments = {f"{name}.{slot}": optimizer.state[p][slot] for name, p in module.named_parameters()
               for slot in ("exp_avg", "exp_avg_sq")}
    return {**dict(module.named_parameters()), **moments}


def errors(found, exact):
    """Of parameters and of each moment, all together."""
    result = {}
    for name, value in exact.items():
        kind = name.rsplit(".", 1)[1] if ".exp_avg" in name else "parameters"
        error = (found[name].double() - value.detach()).square().sum()
        result[kind] = result.get(kind, 0) + float(error)
    return {kind: error**0.5 for kind, error in result.items()}


@pytest.mark.parametrize("loss", ["mean", "per sample"])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
def test_16_and_8_bits(precision, loss):
    """Losses, parameters and moments are as near to those in f64 as without micro-batches."""
    exact = eager("divides", loss, 13)
    (_, one, whole), (_, several, parts) = (
        trained("divides", loss, 13, precision=precision, micro_batches=count) for count in (1, 4))
    assert [x for x, _ in several[:-1]] == pytest.approx([x for x, _ in one[:-1]], rel=5e-3)
    assert exact.keys() <= parts.keys() == whole.keys()
    limits, found = errors(whole, exact), errors(parts, exact)
    for kind, error in found.items():
        assert error <= 1.05 * limits[kind], kind


@pytest.mark.parametrize("options", [dict(compress="int8,smallest=1"),
                                     dict(update_delay={"*": 1, "reduce": "next"})], ids=str)
def test_what_needs_even_parts_gets_them(options, caplog):
    """Workers keep gradients of the same number of samples."""
    trained("tokens", "mean", 12, micro_batches=4, mesh={"dp": 2}, **options)
    assert "a batch of 12 is not divisible into 4 micro-batches; computed in 3" in caplog.text
