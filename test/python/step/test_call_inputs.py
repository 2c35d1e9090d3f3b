# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Inputs that a call of a step leaves out, values that it does not return, and attributes that cannot be set."""

import dataclasses
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.compiler.entrance import grouped

IDS = torch.randint(0, 61, (4, 8), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(8) < 5).long().expand(4, 8).contiguous()


class Masked(nn.Module):
    """A model whose mask is ones where it is left out."""

    def __init__(self, output=None):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.a, self.head = nn.Embedding(61, 16), nn.Linear(16, 16), nn.Linear(16, 61)
        self.output = output

    def forward(self, input_ids, attention_mask=None, labels=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden = self.embed(input_ids) * mask[..., None]
        logits = self.head(torch.tanh(self.a(hidden)) + hidden.mean(1, keepdim=True))
        if labels is None:
            return logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return self.output(loss, logits, hidden) if self.output else (loss, logits)


def compiled(module, names, **options):
    given = {"input_ids": IDS, "attention_mask": MASK, "labels": IDS}
    return cleave.compile(module, {n: given[n] for n in names}, optimizer=cleave.SGD(lr=0.1),
                          **grouped(threads=1, **options))


ORDERS = [("input_ids", "attention_mask", "labels"), ("input_ids", "labels", "attention_mask"),
          ("labels", "attention_mask", "input_ids")]


@pytest.mark.parametrize("names", ORDERS, ids=",".join)
def test_logits_take_what_they_depend_on(names):
    module = Masked()
    step = compiled(module, names)
    for batch in (4, 3):
        ids, mask = IDS[:batch], MASK[:batch]
        found = step.logits(input_ids=ids, attention_mask=mask)
        torch.testing.assert_close(found, module(ids, mask), rtol=1e-4, atol=1e-5)
        found = step.logits(input_ids=ids, attention_mask=mask, labels=ids)
        torch.testing.assert_close(found, module(ids, mask), rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="depend on 'attention_mask', which is left out; give it"):
        step.logits(input_ids=IDS)
    with pytest.raises(TypeError, match="'attention_mask'"):
        step.logits(input_ids=IDS, labels=IDS)
    for call in (step, step.evaluate):
        with pytest.raises(TypeError, match="input 'attention_mask' is missing"):
            call(input_ids=IDS, labels=IDS)


def test_logits_by_position():
    module = Masked()
    step = compiled(module, ORDERS[0])
    torch.testing.assert_close(step.logits(IDS, MASK), module(IDS, MASK), rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="'attention_mask'"):
        step.logits(IDS)
    with pytest.raises(TypeError, match="'input_ids', 'attention_mask', which are"):
        step.logits(labels=IDS)


def test_without_the_mask_it_is_no_input():
    module = Masked()
    step = compiled(module, ("input_ids", "labels"))
    torch.testing.assert_close(step.logits(IDS), module(IDS), rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="by name attention_mask"):
        step.logits(IDS, attention_mask=MASK)


def test_logits_of_padded_batches_by_name():
    module = Masked(None)
    step = compiled(module, ORDERS[1], shapes=[8, 12], check="off")
    found = step.logits(input_ids=IDS[:, :6], attention_mask=MASK[:, :6])
    assert found.shape == (4, 6, 61)


# What a step does not return ----------------------------------------------------------


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor


OUTPUTS = {
    "dict": (lambda loss, logits, h: {"loss": loss, "logits": logits, "accuracy": h.mean(),
                                      "parts": {"hidden": [h]}}, "'accuracy', 'parts'"),
    "tuple": (lambda loss, logits, h: (loss, logits, h, None), "output 2"),
    "object": (Output, "'hidden'"),
    "labels": (lambda loss, logits, h: (loss, logits, h.argmax(-1)), "output 2"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_is_dropped_is_named_once(name):
    output, named = OUTPUTS[name]
    with pytest.warns(UserWarning, match=f"the model also returns {named}, which a step") as found:
        step = compiled(Masked(output), ORDERS[0], check="on")
    assert len([w for w in found if "also returns" in str(w.message)]) == 1
    assert abs(float(step(IDS, MASK, IDS)) - 4.2) < 1


def test_nothing_is_said_where_nothing_is_dropped():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(Masked(), ORDERS[0])
        compiled(Masked(lambda loss, logits, h: {"loss": loss, "logits": logits, "cache": None}),
                 ORDERS[0])
        # The loss function reads all of the output.
        cleave.compile(Both(), (torch.randn(3, 4),), lambda out: (out["a"] + out["b"]).mean(),
                       target=cleave.Target(threads=1))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return {"a": self.a(x), "b": x}


# What cannot be set -------------------------------------------------------------------


@pytest.mark.parametrize("name, message", [
    ("lr", r"'lr' of a step cannot be set: .*cleave.Schedule"),
    ("seed", "argument of cleave.compile"),
    ("step", "load_training_state"),
    ("loss_scale", "argument of cleave.compile"),
    ("last", "cannot be replaced"),
    ("evaluate", "cannot be replaced"),
    ("data_positon", "it has data_position.* What can be set is data_position"),
    ("training", "what cleave.compile has made"),
])
def test_attributes_that_cannot_be_set(name, message):
    step = compiled(Masked(), ORDERS[0])
    with pytest.raises(AttributeError, match=message):
        setattr(step, name, 0.5)
    assert name in ("last", "evaluate", "step", "loss_scale") or not hasattr(step, name)
    step.data_position = 3
    assert step.data_position == 3


# Messages about inputs ----------------------------------------------------------------


def test_inputs_of_different_numbers_of_samples_are_both_named():
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    step = cleave.compile(nn.Linear(16, 16), (x, y), F.mse_loss, target=cleave.Target(threads=1))
    with pytest.raises(cleave.trace.TraceError,
                       match="first dimensions of the inputs differ: 'input' has 4, 'target' has 8"):
        step(x[:4], y)


@pytest.mark.parametrize("options, samples", [
    ({"mesh": {"dp": 4}}, 3), ({"deterministic": 4}, 6),
    ({"mesh": {"dp": 4}, "micro_batches": 2}, 3)], ids=str)
def test_a_batch_that_does_not_fit_names_its_input(options, samples):
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    step = cleave.compile(nn.Linear(16, 16), (x, y), F.mse_loss, **grouped(**options))
    with pytest.raises(cleave.CompileError, match=f'input "input" has {samples} samples') as caught:
        step(x[:samples], y[:samples])
    assert "func.func" not in str(caught.value)


@pytest.mark.parametrize("lr", [lambda step: 0.1,
                                torch.optim.lr_scheduler.LambdaLR(
                                    torch.optim.SGD([torch.ones(1)], lr=1.0), lambda step: 0.1)])
def test_a_rate_that_is_a_function_is_a_schedule(lr):
    with pytest.raises(TypeError, match=r"lr=cleave.Schedule\(0.1, function\)"):
        cleave.SGD(lr=lr)


def test_a_schedule_of_a_function():
    schedule = cleave.Schedule(0.5, lambda step: 1 / (step + 1))
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    step = cleave.compile(nn.Linear(16, 16), (x, y), F.mse_loss, target=cleave.Target(threads=1),
                          optimizer=cleave.SGD(lr=schedule))
    assert [step(x, y).lr for _ in range(3)] == [0.5, 0.25, 0.5 / 3]
    assert repr(schedule).startswith("Schedule(0.5, ")
    with pytest.raises(TypeError, match="factor is 3"):
        cleave.Schedule(0.5, 3)
    with pytest.raises(ValueError, match="lr of step 2 is nan"):
        cleave.Schedule(0.5, lambda step: float("nan")).value(2)
