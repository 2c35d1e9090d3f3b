# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What a model returns: what a step does not return is named once, nothing is refused for it, and
`loss_fn` gets what it gets in eager code."""

import collections
import dataclasses
import types
import typing
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.trace import trace

X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 5


@dataclasses.dataclass
class Inner:
    accuracy: object = None
    count: object = None


@dataclasses.dataclass
class Output:
    loss: object = None
    logits: object = None
    extra: object = None


@dataclasses.dataclass(slots=True)
class Slots:
    loss: object
    extra: object


class Named(typing.NamedTuple):
    loss: object
    extra: object
    logits: object


class Plain:
    def __init__(self, **parts):
        self.__dict__.update(parts)


def library_output(**parts):
    transformers = pytest.importorskip("transformers")
    return transformers.modeling_outputs.CausalLMOutputWithPast(**parts)


#: Outputs by loss, logits and a metric, and the names of what a step does not return.
NAMED = {
    "dict": (lambda l, g, a: {"loss": l, "logits": g, "accuracy": a, 1: a}, "'accuracy', '1'"),
    "nested dict": (lambda l, g, a: {"loss": l, "parts": {"a": [None, {"b": (a,)}]}}, "'parts'"),
    "dict of a dataclass": (lambda l, g, a: {"loss": l, "parts": Inner(a)}, "'parts'"),
    "dict of an object": (lambda l, g, a: {"loss": l, "parts": Plain(a=a)}, "'parts'"),
    "numbers": (lambda l, g, a: {"loss": l, "n": Y.numel(), "f": 0.5, "s": "x"}, "'n', 'f', 's'"),
    "shape": (lambda l, g, a: {"loss": l, "shape": g.shape}, "'shape'"),
    "item": (lambda l, g, a: {"loss": l, "accuracy": a.item()}, "'accuracy'"),
    "list": (lambda l, g, a: {"loss": l, "best": g.argmax(-1).tolist()}, "'best'"),
    "set": (lambda l, g, a: {"loss": l, "parts": {a}}, "'parts'"),
    "ordered": (lambda l, g, a: collections.OrderedDict(loss=l, accuracy=a), "'accuracy'"),
    "dataclass": (lambda l, g, a: Output(l, g, Inner(a)), "'extra'"),
    "slots": (lambda l, g, a: Slots(l, a), "'extra'"),
    "named tuple": (lambda l, g, a: Named(l, a, g), "'extra'"),
    "tuple": (lambda l, g, a: (l, g, a, None, [a]), "output 2, output 4"),
    "tuple of a dataclass": (lambda l, g, a: (l, g, Inner(a)), "output 2"),
    "object": (lambda l, g, a: types.SimpleNamespace(loss=l, accuracy=a), "'accuracy'"),
    "output of the library": (lambda l, g, a: library_output(
        loss=l, logits=g, hidden_states=(g, g * 2)), "'hidden_states'"),
    "integers": (lambda l, g, a: {"loss": l, "best": g.argmax(-1)}, "'best'"),
    "shape of values": (lambda l, g, a: {"loss": l, "a": (g > 0).nonzero(), "b": g[g > 0]},
                        "'a', 'b'"),
    "no conversion": (lambda l, g, a: {"loss": l, "a": torch.linalg.svdvals(g.detach()),
                                       "b": torch.poisson(g.exp())}, "'a', 'b'"),
    "detached": (lambda l, g, a: (l, l.detach()), "output 1"),
    "selected": (lambda l, g, a: (l, g, g.masked_select(g > 0)), "output 2"),
}
#: Outputs of which nothing is dropped.
WHOLE = {
    "loss": lambda l, g, a: l,
    "dict": lambda l, g, a: {"loss": l, "logits": g, "cache": None, "parts": [None, {}, ()]},
    "dataclass": lambda l, g, a: Output(l, g, Inner()),
    "tuple": lambda l, g, a: (l, g, None),
    "twice": lambda l, g, a: {"loss": l, "total": l, "outputs": (g,), "logits": g},
    "output of the library": lambda l, g, a: library_output(loss=l, logits=g),
}


class Model(nn.Module):
    def __init__(self, output):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.output = nn.Linear(6, 5), output

    def forward(self, x, y):
        logits = self.a(x)
        accuracy = (logits.argmax(-1) == y).float().mean()
        return self.output(F.cross_entropy(logits, y), logits, accuracy)


def said(model, *args):
    """The warnings of a trace, and the traced model."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trace(model, *args)
    return [str(w.message) for w in found if "also returns" in str(w.message)]


@pytest.mark.parametrize("name", NAMED)
def test_what_a_step_does_not_return_is_named(name):
    output, named = NAMED[name]
    assert said(Model(output), (X, Y)) == [
        f"the model also returns {named}, which a step does not return: it has the loss, and "
        "`logits` the logits"]


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_said_where_nothing_else_is_returned(name):
    assert said(Model(WHOLE[name]), (X, Y)) == []


# Logits -------------------------------------------------------------------------------

#: Outputs of which the first tensor, or what is named so, cannot be traced.
NO_LOGITS = {
    "selected": lambda l, g, a: (l, g.masked_select(g > 0)),
    "by a mask": lambda l, g, a: (l, g[g > 0]),
    "nonzero": lambda l, g, a: (l, (g > 0).nonzero().float()),
    "no conversion": lambda l, g, a: (l, torch.digamma(g)),
    "drawn": lambda l, g, a: {"loss": l, "logits": torch.poisson(g.exp())},
}


@pytest.mark.parametrize("name", NO_LOGITS)
def test_logits_that_cannot_be_traced_are_left_out(name):
    module = Model(NO_LOGITS[name])
    with pytest.warns(UserWarning, match="(?s)has no `logits`, because they cannot be traced: .*"
                      rf"{__file__}:{NO_LOGITS[name].__code__.co_firstlineno}: "):
        step = cleave.compile(module, (X, Y), target=cleave.Target(threads=1),
                              optimizer=cleave.SGD(lr=0.1))
    with pytest.raises(cleave.StepError, match="logits cannot be traced: "):
        step.logits(X, Y)
    trained = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        trained.zero_grad()
        found = module(X, Y)
        loss = found["loss"] if isinstance(found, dict) else found[0]
        loss.backward()
        trained.step()
        assert float(step(X, Y)) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert float(step.evaluate(X, Y)) < float(loss.detach())
    for key, value in module.state_dict().items():
        torch.testing.assert_close(step.state_dict()[key], value, rtol=1e-4, atol=1e-6)


# The argument of loss_fn --------------------------------------------------------------


class Two(nn.Module):
    """Two results, in a container that `output` makes."""

    def __init__(self, output):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.output = nn.Linear(6, 8), nn.Linear(6, 5), output

    def forward(self, x):
        return self.output(self.a(x), self.b(x).square().mean())


def with_label_check(output, y):
    if y.min() >= 1:
        raise ValueError("from 0")
    return F.cross_entropy(output, y)


def under_autocast(output, y):
    with torch.autocast("cpu", enabled=False):
        return F.cross_entropy(output, y)


#: Outputs, loss functions, what these get, and what is not returned.
LOSSES = {
    "tuple": (lambda a, b: (a, b), lambda o, y: F.mse_loss(o[0], torch.ones(8)) + o[1], ""),
    "list": (lambda a, b: [a, b], lambda o, y: F.cross_entropy(o[0], y) + o[1], ""),
    "unpacked": (lambda a, b: (a, b, None), lambda o, y: (lambda p, q, _: p.mean() * q)(*o), ""),
    "named tuple": (lambda a, b: Named(None, b, a), lambda o, y: o.extra + o.logits.mean(), ""),
    "dict": (lambda a, b: {"logits": a, "aux": b}, lambda o, y: o["aux"] + o["logits"].mean(), ""),
    "dataclass": (lambda a, b: Output(None, a, b), lambda o, y: o.extra * o.logits.mean(), ""),
    "object": (lambda a, b: Plain(p=a, q=b), lambda o, y: o.q + F.cross_entropy(o.p, y), ""),
    "of the library": (lambda a, b: library_output(loss=b, logits=a),
                       lambda o, y: o.loss + F.cross_entropy(o.logits, y), ""),
    "logits of a tuple": (lambda a, b: (a, b), F.cross_entropy, "output 1"),
    "logits of a dict": (lambda a, b: {"logits": a, "loss": b}, F.cross_entropy, "'loss'"),
    "logits of a dataclass": (lambda a, b: Output(b, a), F.cross_entropy, "'loss'"),
    "logits, checked": (lambda a, b: (a, b), with_label_check, "output 1"),
    "logits, autocast": (lambda a, b: (a, b), under_autocast, "output 1"),
}


def logits_of(output):
    return output["logits"] if isinstance(output, dict) else \
        output[0] if isinstance(output, tuple) else output.logits


@pytest.mark.parametrize("name", LOSSES)
def test_loss_fn_gets_the_output(name):
    """Or the logits in it, if it computes no loss of that; three steps are those of eager code."""
    output, loss_fn, named = LOSSES[name]
    module, labels = Two(output), torch.arange(8)
    messages = said(module, (X, labels), loss_fn)
    assert messages == ([] if not named else [
        f"the model also returns {named}, which a step does not return, and loss_fn, called with "
        "the logits, does not read: it has the loss, and `logits` the logits"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = cleave.compile(module, (X, labels), loss_fn, target=cleave.Target(threads=1),
                              check="on", optimizer=cleave.SGD(lr=0.1, momentum=0.9))
    trained = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        trained.zero_grad()
        found = module(X)
        loss = loss_fn(logits_of(found) if named else found, labels)
        loss.backward()
        trained.step()
        assert float(step(X, labels)) == pytest.approx(float(loss.detach()), rel=1e-5)
    for key, value in module.state_dict().items():
        torch.testing.assert_close(step.state_dict()[key], value, rtol=1e-4, atol=1e-6)


def test_a_check_in_loss_fn_of_the_output_is_one():
    """An error that it raises for values does not have it called with the logits."""
    def loss_fn(output, y):
        if y.min() >= 1:
            raise ValueError("from 0")
        return F.cross_entropy(output[0], y) + output[1]

    module, labels = Two(lambda a, b: (a, b)), torch.arange(8) % 5
    step = cleave.compile(module, (X, labels), loss_fn, target=cleave.Target(threads=1))
    assert float(step.evaluate(X, labels)) == pytest.approx(
        float(loss_fn(module(X), labels).detach()), rel=1e-5)
    with pytest.raises(cleave.StepError, match="ValueError: from 0"):
        step(X, labels + 1)


def test_an_object_without_loss_or_logits_needs_loss_fn():
    with pytest.raises(cleave.trace.TraceError, match="returns Plain, which.*or pass loss_fn"):
        trace(Two(lambda a, b: Plain(p=a, q=b)), (X,))
