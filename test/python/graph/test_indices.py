# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Indices that a model computes: where PyTorch raises, a step ends with an error at the
model's line, and nothing has changed."""

import pytest
import torch
import torch.nn.functional as F

import cleave
from cleave import StepError
from cleave.compiler.entrance import grouped
from training_support import same_bits, snapshot

ROWS, WIDTH = 10, 8


class Shifted(torch.nn.Module):
    """Looks up what lies `shift` rows further."""

    def __init__(self, shift, positions=None):
        super().__init__()
        self.shift = shift
        self.table = torch.nn.Embedding(ROWS, WIDTH)
        self.positions = torch.nn.Embedding(positions or 16, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 16), torch.nn.Linear(16, WIDTH)
        self.head = torch.nn.Linear(WIDTH, ROWS)

    def forward(self, ids):
        x = self.table(ids + self.shift)
        x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.head(x + self.down(torch.tanh(self.up(x))))


def loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def compiled(shift=0, *, positions=None, loss_fn=loss, **settings):
    torch.manual_seed(0)
    model = Shifted(shift, positions)
    ids = torch.arange(6).repeat(4, 1)
    return model, (ids, ids), cleave.compile(model, (ids, ids), loss_fn=loss_fn,
                                             optimizer=cleave.SGD(lr=0.1, max_grad_norm=1.0),
                                             **grouped(**settings))


MESHES = [{}, {"mesh": {"dp": 2}}, {"mesh": {"pp": 2}, "micro_batches": 2},
          {"mesh": {"tp": 2}, "plan": ["megatron"]}]


@pytest.mark.parametrize("settings", MESHES, ids=str)
@pytest.mark.parametrize("shift", [5, -1, 10**12])
def test_a_computed_row_that_is_not_there(settings, shift):
    model, batch, step = compiled(shift, **settings)
    before = snapshot(step)
    with pytest.raises(StepError, match=r"test_indices.py:\d+: an index is outside of \[0, 10\)"):
        step(*batch)
    assert same_bits(snapshot(step), before)
    with pytest.raises(StepError, match="outside of"):
        step.logits(batch[0])
    # What is there is what it was.
    inside = batch[0].clamp(0, 1) if shift == 5 else batch[0].clamp(1, 5) if shift == -1 else None
    if inside is not None:
        expected = loss(model(inside), batch[1])
        assert float(step(inside, batch[1])) == pytest.approx(expected.item(), rel=1e-5)


def test_more_places_than_the_model_has():
    model, batch, step = compiled(positions=4)
    with pytest.raises(IndexError):
        model(batch[0])
    with pytest.raises(StepError, match=r"an index is outside of \[0, 4\)"):
        step(*batch)


def test_a_computed_class_that_is_not_there():
    def shifted(logits, labels):
        return loss(logits, labels + 5)

    _, (ids, _), step = compiled(loss_fn=shifted)
    with pytest.raises(StepError, match=r"outside of \[0, 10\) and is not -100, which is left out"):
        step(ids, ids)
    assert float(step(ids, ids.clamp(max=4))) > 0


def test_rows_that_are_known_to_be_there_cost_nothing():
    """Inputs are looked at when they are given, places in a sequence are known."""
    _, _, step = compiled(1)
    assert "an index is outside of [0, 10)" in step.ir("step")
    assert "an index is outside of [0, 16)" not in step.ir("step")

    class Plain(Shifted):
        def forward(self, ids):
            return self.head(self.table(ids) + self.positions(torch.arange(ids.shape[1])))

    ids = torch.arange(6).repeat(4, 1)
    step = cleave.compile(Plain(0), (ids, ids), loss_fn=loss, optimizer=cleave.SGD(lr=0.1))
    assert "an index is outside" not in step.ir("step")


# Several layers of one line -------------------------------------------------------------


class Look(torch.nn.Module):
    """Reads a row that its input and a parameter choose."""

    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.zeros(WIDTH))
        self.table = torch.nn.Embedding(ROWS, WIDTH)

    def forward(self, x):
        return 0.5 * x + self.table((x * self.gain).sum(-1).to(torch.int64))


class Looks(torch.nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.embed = torch.nn.Embedding(ROWS, WIDTH)
        self.layers = torch.nn.ModuleList(Look() for _ in range(4))
        self.head = torch.nn.Linear(WIDTH, ROWS)
        torch.nn.init.constant_(self.embed.weight, 0.1)
        for layer in self.layers:
            torch.nn.init.zeros_(layer.table.weight)
        if wrong is not None:
            torch.nn.init.constant_(self.layers[wrong].gain, -1000.0)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.mark.parametrize("settings", [
    dict(micro_batches=2), dict(mesh={"pp": 2}), dict(mesh={"pp": 2}, micro_batches=2),
    dict(mesh={"pp": 4}, micro_batches=2), dict(mesh={"dp": 2, "pp": 2}, micro_batches=2),
    dict(mesh={"pp": 2}, micro_batches=4, schedule="interleaved", virtual_stages=2),
    dict(mesh={"pp": 2}, micro_batches=4, schedule="zb-v"),
], ids=str)
def test_each_layer_is_guarded(settings):
    """Checks of one message are several, and the step says what one of them has found,
    in whichever stage."""
    ids = torch.arange(6).repeat(4, 1)
    for wrong in (None, 0, 1, 2, 3):
        torch.manual_seed(0)
        step = cleave.compile(Looks(wrong), (ids, ids), loss_fn=loss, optimizer=cleave.SGD(lr=0.1),
                              **grouped(**settings))
        before = snapshot(step)
        if wrong is None:
            assert float(step(ids, ids)) > 0 and not same_bits(snapshot(step), before)
            continue
        for run in (step, step.evaluate):
            with pytest.raises(StepError,
                               match=r"^test_indices.py:\d+: an index is outside of \[0, 10\)$"):
                run(ids, ids)
        assert same_bits(snapshot(step), before)
