# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Which inputs of a dict the model takes, and which the loss function."""

import pytest
import torch

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
