# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Which inputs the model takes, by position or by name, and which the loss function."""

import pytest
import torch

import cleave.trace
from cleave.trace import TraceError
from cleave.trace.call_plan import plan_call

X = torch.zeros(2, 3)


class Model(torch.nn.Module):
    def forward(self, x, mask=None, labels=None):
        return x


class Any(torch.nn.Module):
    def forward(self, x, **others):
        return x


@pytest.mark.parametrize("model, given, loss_fn, targets", [
    # Those that forward does not take, in the order of the loss function.
    (Model(), "x a b", lambda output, b, a: output, "b a"),
    (Model(), "x mask t", lambda output, target: output, "t"),
    # A forward that takes all: those that the loss function names, wherever they stand.
    (Any(), "x labels mask", lambda output, labels: output, "labels"),
    (Any(), "labels x", lambda output, labels: output, "labels"),
    # An input that both name is the loss function's.
    (Model(), "x labels mask", lambda output, labels: output, "labels"),
    (Model(), "x mask", lambda output: output, ""),
])
def test_targets(model, given, loss_fn, targets):
    call = plan_call(model, dict.fromkeys(given.split(), X), loss_fn)
    assert call.targets == targets.split()
    assert sorted(call.keyword) == sorted(set(given.split()) - set(targets.split()))


@pytest.mark.parametrize("model, given, loss_fn, said", [
    (Any(), "x y", lambda output, target: output, "no input is a target: .*name the target"),
    (Model(), "x labels mask", lambda output, labels, mask: output,
     "labels, mask are arguments of the model's forward and of loss_fn"),
])
def test_what_does_not_tell_is_refused(model, given, loss_fn, said):
    with pytest.raises(TraceError, match=said):
        plan_call(model, dict.fromkeys(given.split(), X), loss_fn)


class Asked(torch.nn.Module):
    """Its loss is that of `labels`, if they are given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, mask=None, labels=None):
        y = x * self.weight if mask is None else x * self.weight * mask
        return y if labels is None else ((y - labels) ** 2).mean()


def test_a_tuple_is_passed_by_position_alone():
    call = plan_call(Asked(), (X, X), None)
    assert (call.positional, call.keyword, call.targets) == (["x", "mask"], {}, [])
    assert plan_call(Asked(), (X, X, X), None).positional == ["x", "mask", "labels"]


def test_labels_in_a_tuple_are_the_next_argument():
    """As in eager code, where `model(x, y)` gives y to `mask`."""
    with pytest.raises(TraceError, match="no scalar loss; .* by name"):
        cleave.trace.trace(Asked(), (X, X))
    traced = cleave.trace.trace(Asked(), dict(x=X, labels=X))
    assert [t.name for t in traced.tensors if t.role == "parameter"] == ["weight"]


class Cached(Asked):
    """Its second parameter is not a tensor."""

    def forward(self, x, cache=None, labels=None):
        y = super().forward(x) if cache is None else super().forward(x) * cache.length()
        return y if labels is None else ((y - labels) ** 2).mean()


def test_errors_name_the_parameters_that_a_tuple_is_passed_to():
    said = "the inputs are passed by position, as {}: pass a dict to give them by name$"
    with pytest.raises(TraceError, match="no scalar loss; .*; " + said.format("x, mask")):
        cleave.trace.trace(Asked(), (X, X))
    with pytest.raises(TraceError, match="no attribute 'length'; " + said.format("x, cache")):
        cleave.trace.trace(Cached(), (X, X))
    with pytest.raises(TraceError, match="no attribute 'length'$"):
        cleave.trace.trace(Cached(), dict(x=X, cache=X, labels=X))
    with pytest.raises(TraceError, match="no attribute 'length'$"):
        cleave.trace.trace(Cached(), (X, X, X))
    cleave.trace.trace(Cached(), dict(x=X, labels=X))


def test_a_keyword_only_argument_takes_no_place():
    class Keyword(torch.nn.Module):
        def forward(self, x, *, labels):
            return ((x - labels) ** 2).mean()

    with pytest.raises(TraceError, match=r"takes 1 input \(x\), and 2 are given"):
        plan_call(Keyword(), (X, X), None)
    assert plan_call(Keyword(), dict(x=X, labels=X), None).keyword == dict(x="x", labels="labels")


def test_a_model_of_transformers_takes_its_inputs_by_name():
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=8, n_layer=1, n_head=2, vocab_size=16, n_positions=8))
    ids = torch.zeros(1, 4, dtype=torch.int64)
    named = plan_call(model, dict(input_ids=ids, labels=ids), None)
    assert named.keyword == dict(input_ids="input_ids", labels="labels")
    assert "labels" not in plan_call(model, (ids, ids), None).inputs
