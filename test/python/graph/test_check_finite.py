# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A step whose loss or gradients are not finite stops and changes nothing.

What is not finite enters at one place: the loss alone, a gradient of one device, of
one stage, of one micro-batch, of one element of a tensor that devices hold in parts,
of a table alone, or a sum of finite gradients that overflows.
"""


import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.compiler.entrance import grouped
from training_support import ALL, gpt2, named_tokens, same_bits, snapshot, token_batches, tokens

BATCH, LENGTH, VOCAB, WIDTH, LAYERS = 8, 4, 32, 8, 4

LOSS, GRADIENT = "the loss is not finite", "a gradient is not finite"


class Block(nn.Module):
    """An MLP with a skip. `scale` has the gradient NaN where `spoil` is 0, and alone
    has it; values stay finite."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.rand(4 * WIDTH))

    def forward(self, x, spoil):
        h = F.gelu(self.up(x)) + 0.01 * torch.sqrt(spoil[:, None] * (self.scale ** 2 + 1))
        return x + self.down(h)


class Spoilable(nn.Module):
    """Layers whose gradients inputs can spoil, each sample for itself.

    `spoil` [batch, layers, 4 width] and `table` [batch] are 1, or 0 where a gradient
    is NaN; `added` [batch] is added to the loss, and `factor` [batch] times a
    parameter whose gradient is its sum.
    """

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB)
        self.small = nn.Parameter(torch.full((), 1e-30))

    def forward(self, ids, labels, spoil, table, added, factor):
        row = torch.sqrt(table[:, None, None] * (self.table(ids) ** 2 + 1))
        x = self.embedding(ids) + 0.01 * row
        for i, layer in enumerate(self.layers):
            x = layer(x, spoil[:, i])
        loss = F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())
        return loss + added.mean() + (factor * self.small).sum()


def inputs(seed=1, **places):
    """A batch; `places` has values of an input by index."""
    ids, labels = tokens(batch=BATCH, length=LENGTH, vocab=VOCAB, seed=seed)
    named = {"ids": ids, "labels": labels, "spoil": torch.ones(BATCH, LAYERS, 4 * WIDTH),
             "table": torch.ones(BATCH), "added": torch.zeros(BATCH), "factor": torch.ones(BATCH)}
    for name, values in places.items():
        for place, value in values.items():
            named[name][place] = value
    return tuple(named.values())


NAN, INF = float("nan"), float("inf")
#: What spoils a batch, and what the step says. The last micro-batch has the last
#: samples, and so has the last device of an axis "dp".
SPOILT = {
    "loss": (dict(added={0: INF}), LOSS),
    "loss-last": (dict(added={BATCH - 1: NAN}), LOSS),
    "loss-opposite": (dict(added={0: INF, BATCH - 1: -INF}), LOSS),
    "first-sample": (dict(spoil={(0, 0): 0}), GRADIENT),
    "last-sample": (dict(spoil={(BATCH - 1, 1): 0}), GRADIENT),
    "one-element-first": (dict(spoil={(3, 0, 0): 0}), GRADIENT),
    "one-element-last": (dict(spoil={(BATCH - 1, LAYERS - 1, 4 * WIDTH - 1): 0}), GRADIENT),
    "table": (dict(table={BATCH // 2: 0}), GRADIENT),
    # Each of them is finite, and so is the loss; their sum is not.
    "sum": (dict(factor={0: 3e38, BATCH - 1: 3e38}), GRADIENT),
}
#: A gradient of 3e38: its square overflows, and it is finite.
LARGE = dict(factor={0: 3e38})


def compiled(model=Spoilable, optimizer=None, **settings):
    torch.manual_seed(0)
    return cleave.compile(model(), inputs(), seed=5, optimizer=optimizer or cleave.AdamW(lr=1e-2),
                          **grouped(**settings))


def check_stops(step, spoilt=SPOILT):
    """Each spoilt batch stops the step with its message, and leaves all bits; a good
    batch between them trains as if they had not been."""
    other = compiled(**step._settings)
    for name, (places, message) in spoilt.items():
        before = snapshot(step)
        with pytest.raises(cleave.StepError, match=message):
            step(*inputs(**places))
        assert same_bits(snapshot(step), before), name
    for seed in (2, 3):
        assert step(*inputs(seed)) == other(*inputs(seed))
    assert same_bits(snapshot(step), snapshot(other))


def spoilable(**settings):
    step = compiled(**settings)
    step._settings = settings
    return step


def few(*names):
    return {name: SPOILT[name] for name in names}


def test_one_device():
    check_stops(spoilable())


def test_pytorch_has_these_gradients():
    """The judge of what spoils: in each case it is the loss or a gradient alone."""
    torch.manual_seed(0)
    for name, (places, message) in {**SPOILT, "": (LARGE, "")}.items():
        module = Spoilable()
        loss = module(*inputs(**places))
        loss.backward()
        spoilt = [n for n, p in module.named_parameters() if not p.grad.isfinite().all()]
        assert loss.isfinite() == (message != LOSS), name
        assert bool(spoilt) == (message == GRADIENT) and len(spoilt) <= 1, (name, spoilt)


CASES = [
    dict(optimizer=cleave.SGD(lr=0.05, momentum=0.9), micro_batches=4),
    dict(optimizer_fusion="none"),
    dict(optimizer_fusion="forward"),
    dict(optimizer_fusion="forward", micro_batches=2, mesh={"dp": 2}, plan=["zero1"]),
    dict(mesh={"dp": 2}),
    dict(mesh={"dp": 2}, plan=["zero1"], micro_batches=2),
    dict(mesh={"dp": 2}, plan=["zero2"], micro_batches=2),
    dict(mesh={"dp": 4}, plan=["zero3"]),
    dict(mesh={"tp": 2}, plan=["megatron"]),
    dict(mesh={"dp": 2, "tp": 2}, plan=["megatron", "zero1"], micro_batches=2),
    dict(mesh={"row": 2, "col": 2}, plan=["summa2d"]),
    dict(mesh={"pp": 2}),
    dict(mesh={"pp": 2}, micro_batches=4, schedule="gpipe"),
    dict(mesh={"pp": 4}, micro_batches=4, schedule="1f1b"),
    dict(mesh={"pp": 2}, micro_batches=4, schedule="zb-h1"),
    dict(mesh={"pp": 2}, micro_batches=4, schedule="zb-v"),
    dict(mesh={"pp": 2}, micro_batches=4, schedule="interleaved", virtual_stages=2),
    dict(mesh={"pp": 2}, micro_batches=4, post_validation=True),
    dict(mesh={"pp": 2, "dp": 2}, plan=["zero3"], micro_batches=2, post_validation=True),
    dict(mesh={"pp": 2, "dp": 2}, plan=["zero1"], micro_batches=2, schedule="zb-h1"),
    dict(mesh={"pp": 2, "tp": 2}, plan=["megatron"], micro_batches=2),
    dict(mesh={"pp": 2}, micro_batches=2, optimizer_fusion="forward"),
    dict(deterministic=4),
    dict(deterministic=4, mesh={"dp": 2}, plan=["zero1"]),
    dict(deterministic=4, mesh={"pp": 2, "dp": 2}),
]
SAMPLE = [1, 2, 5, 7, 9, 11, 15, 18, 19, 23]


def name_of(value):
    return ",".join(f"{k}={v}" for k, v in value.items() if k != "optimizer")


@pytest.mark.parametrize("settings", CASES if ALL else [CASES[i] for i in SAMPLE], ids=name_of)
def test_nothing_changes(settings):
    names = SPOILT if ALL else few("loss-last", "first-sample", "one-element-last", "table", "sum")
    check_stops(spoilable(**settings), names if ALL else few(*names))


@pytest.mark.parametrize("settings", [dict(), dict(mesh={"dp": 2}, plan=["zero1"])], ids=name_of)
def test_large_gradients_are_finite(settings):
    """An element whose square overflows is not a reason to stop."""
    on, off = (compiled(check_finite=check, optimizer=cleave.SGD(lr=1e-38), **settings)
               for check in (True, False))
    for step in (on, off):
        assert step(*inputs(**LARGE)) > 0
    assert same_bits(snapshot(on), snapshot(off))
    assert abs(on.state_dict()["small"]) > 0.1


def test_a_clip_checks_its_norm():
    step = compiled(optimizer=cleave.AdamW(lr=1e-2, max_grad_norm=1.0), mesh={"dp": 2})
    before = snapshot(step)
    for places, message in [(SPOILT["loss"][0], LOSS), (SPOILT["table"][0], "norm .* not finite"),
                            (LARGE, "norm .* not finite")]:
        with pytest.raises(cleave.StepError, match=message):
            step(*inputs(**places))
    assert same_bits(snapshot(step), before)


def test_without_the_check_it_trains_on():
    step = compiled(check_finite=False)
    assert "check of losses and gradients: off" in step.explain("full")
    assert step.report()["check_finite"] is False
    assert "check of losses" not in compiled().explain("full")
    assert torch.tensor(step(*inputs(**SPOILT["loss"][0]))).isinf()
    step(*inputs(**SPOILT["table"][0]))
    assert step.state_dict()["table.weight"].isnan().any()


@pytest.mark.parametrize("settings", [
    dict(), dict(micro_batches=2), dict(mesh={"dp": 2}, plan=["zero2"]),
    dict(mesh={"pp": 2, "tp": 2}, plan=["megatron-sp"], micro_batches=2, schedule="zb-h1"),
    dict(mesh={"pp": 2}, micro_batches=4, post_validation=True), dict(deterministic=4)],
    ids=name_of)
def test_finite_steps_have_the_same_bits(settings):
    dropout = dict(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    runs = []
    for check in (True, False):
        torch.manual_seed(0)
        step = cleave.compile(gpt2(**dropout), named_tokens(), seed=5,
                              optimizer=cleave.AdamW(lr=1e-2),
                              **grouped(check_finite=check, **settings))
        runs.append(([step(*batch) for batch in token_batches(3)], snapshot(step)))
    assert runs[0][0] == runs[1][0] and same_bits(runs[0][1], runs[1][1])


@pytest.mark.parametrize("settings, what", [
    (dict(optimizer_fusion="backward"), "optimizer_fusion"),
    (dict(mesh={"pp": 2}, micro_batches=2, schedule="pipedream"), "schedule"),
    (dict(mesh={"pp": 2}, micro_batches=2, schedule="F0 F1 B0 U0 B1 U1\n1F0 1B0 1U0 1F1 1B1 1U1"),
     "schedule")])
def test_what_updates_early_is_refused(settings, what):
    with pytest.raises(cleave.CompileError, match=f"{what}: .*turn check_finite off"):
        compiled(**settings)
    compiled(check_finite=False, **settings)


@pytest.mark.parametrize("value", [0, "no"])
def test_the_option_is_a_bool(value):
    with pytest.raises((TypeError, ValueError), match="check_finite"):
        compiled(check_finite=value)
