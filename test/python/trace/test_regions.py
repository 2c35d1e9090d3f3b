# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Regions of autocast and of checkpoint in a trace, and of a precision policy."""

import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import cleave
from cleave.trace import PrecisionPolicy, TraceError, trace
from cleave.trace.repeat import TRACED, Repeated
from trace_support import model_phase

X, Y = torch.randn(4, 8), torch.randint(0, 8, (4,))


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.run = run

    def forward(self, x):
        return self.run(self, x)


def traced(run, loss_fn=F.cross_entropy, cast=None, **options):
    module = Net(run)
    module = module.to(cast) if cast else module
    return trace(module, (X.to(cast) if cast else X, Y), loss_fn, logits=False, **options)


def precise(mlir, op):
    """The precision of each op of this name."""
    return [re.search('graph.precision = "(.*?)"', line) and
            re.search('graph.precision = "(.*?)"', line)[1]
            for line in mlir.splitlines() if f"graph.{op} " in line]


def regions(mlir, op):
    """The checkpoint region of each op of this name."""
    places = {name: found and int(found[1]) for name, found in (
        (line.split(" = ")[0], re.search('"graph.checkpoint ([0-9]+)"', line))
        for line in mlir.splitlines() if line.startswith("#loc"))}
    return [places[re.search(r"loc\((#loc\d+)\)", line)[1]]
            for line in mlir.splitlines() if f"graph.{op} " in line]


def within(enabled, **options):
    def run(self, x):
        with torch.autocast("cpu", enabled=enabled, dtype=torch.bfloat16, **options):
            x = self.first(x)
        return self.last(x.float())
    return run


@pytest.mark.parametrize("cast, expected", [
    (None, ()), (torch.bfloat16, ("bf16",)), (torch.float16, ("fp16",))])
def test_16_bit_parameters(cast, expected):
    found = traced(lambda self, x: self.last(self.first(x)).float(), cast=cast)
    assert found.precisions == expected
    assert not re.search(r"x(bf16|f16)>", found.mlir)
    assert found.input_types[found.input_names[0]][1] == torch.float32
    assert {t.dtype for t in found.parameters} == {cast or torch.float32}


def test_types_of_eager_code_can_be_kept():
    found = traced(lambda self, x: self.last(self.first(x)).float(), cast=torch.bfloat16,
                   keep_types=True)
    assert "x8xbf16> {graph.name = \"first.weight\"" in found.mlir


def test_regions_of_autocast():
    found = traced(within(True))
    assert found.precisions == ("bf16",) and "bf16" not in found.mlir
    assert precise(found.mlir, "linear") == [None, None]
    assert traced(within(False)).precisions == ()
    assert precise(traced(within(False)).mlir, "linear") == ["f32", None]


def test_nested_regions():
    def run(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.first(x)
            with torch.autocast("cpu", enabled=False):
                x = F.linear(x.float(), self.first.weight)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    x = self.first(x)
            return self.last(x)

    found = traced(run)
    assert precise(found.mlir, "linear") == [None, "f32", None, None]


def test_16_bits_stay_so_where_autocast_is_disabled():
    """Eager code computes in the types of its operands there."""
    def run(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.last(self.first(x).float().bfloat16())

    assert precise(traced(run, cast=torch.bfloat16).mlir, "linear") == [None, None]


def test_regions_of_the_loss_and_around_the_trace():
    def loss(logits, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(logits @ logits.T.float(), targets)

    assert traced(lambda self, x: self.first(x), loss).precisions == ("bf16",)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert traced(lambda self, x: self.first(x)).precisions == ("bf16",)
        assert torch.is_autocast_enabled("cpu")
    assert traced(lambda self, x: self.first(x)).precisions == ()


def test_a_device_that_is_not_there():
    """A region of it asks for 16 bits all the same."""
    def run(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.last(self.first(x))

    assert traced(run).precisions == ("bf16",)


def test_bits_of_16_bits_are_refused():
    with pytest.raises(TraceError, match=r"test_regions.py:\d+: the bits of a 16-bit number"):
        traced(lambda self, x: self.first(x).view(torch.int16).float() + self.last(x),
               cast=torch.bfloat16)


# Precision policy ---------------------------------------------------------------------


def test_a_policy_names_modules_and_ops():
    run = lambda self, x: torch.softmax(self.last(self.first(x)), -1)
    policy = PrecisionPolicy([("*", "16bit"), ("first", "f32"), ("softmax", "f32")])
    mlir = traced(run, policy=policy).mlir
    assert precise(mlir, "linear") == ["f32", "16bit"] and precise(mlir, "softmax") == ["f32"]
    assert policy.unmatched() == []


def test_a_policy_names_ops_that_the_compiler_raises():
    """An op is what it is in the phase `model`; the smaller ops of a norm are none."""
    def run(self, x):
        x = self.first(x)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.last.weight[0]
        return self.last(x)

    policy = PrecisionPolicy([("mul", "16bit"), ("rms_norm", "f32"), ("rsqrt", "16bit")])
    mlir = model_phase(traced(run, policy=policy).mlir)
    assert precise(mlir, "rms_norm") == ["f32"] and precise(mlir, "linear") == [None, None]
    assert policy.unmatched() == ["rsqrt"]
    for pattern in ("*", "graph.rms_norm"):
        policy = PrecisionPolicy([(pattern, "16bit")])
        mlir = model_phase(traced(run, policy=policy).mlir)
        assert precise(mlir, "rms_norm") == ["16bit"] and policy.unmatched() == []


def test_a_pattern_of_a_module_is_of_all_in_it():
    module = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Linear(8, 8))
    for pattern, expected in (("0", ["f32", "f32", None]), ("0.*", ["f32", "f32", None]),
                              ("0.1", [None, "f32", None]), ("1", [None, None, "f32"])):
        mlir = trace(module, (X, Y), F.cross_entropy, logits=False,
                     policy=PrecisionPolicy([(pattern, "f32")])).mlir
        assert precise(mlir, "linear") == expected


@pytest.mark.parametrize("policy, kind, message", [
    ("first", TypeError, "must be a list of pairs"),
    ([("first", "f16")], ValueError, "entry 1: unknown precision 'f16' of 'first'; there are f32 and 16bit"),
    ([("third", "f32")], ValueError, "precision_policy has third, with which no module"),
])
def test_policies_that_are_refused(policy, kind, message):
    with pytest.raises(kind, match=message):
        cleave.compile(Net(lambda self, x: self.last(self.first(x))), (X, Y), F.cross_entropy,
                       precision=cleave.Precision(precision_policy=policy))


# Checkpoint regions -------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_regions(reentrant):
    def run(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(lambda x: torch.relu(self.first(x)), x, use_reentrant=reentrant)
        return self.last(x)

    mlir = traced(run).mlir
    assert regions(mlir, "linear") == [None, 0, 1, None]
    assert regions(mlir, "relu") == [0, 1]


def test_a_region_in_another_is_part_of_it():
    def run(self, x):
        def inner(x):
            return torch.relu(self.first(x))

        def outer(x):
            return checkpoint(inner, self.first(x), use_reentrant=False) + x

        return self.last(checkpoint(outer, x, use_reentrant=False))

    assert regions(traced(run).mlir, "linear") == [0, 0, None]


def test_copies_of_layers_have_regions_of_their_own():
    class Stack(nn.Module):
        def __init__(self, count):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))

        def forward(self, x):
            for layer in self.layers:
                x = x + checkpoint(lambda x, own=layer: torch.relu(own(x)), x, use_reentrant=False)
            return x

    with torch.device("meta"):
        module = Stack(TRACED)
    mlir = trace(module, (X, Y), F.cross_entropy, logits=False,
                 repeated=[Repeated("layers", TRACED + 3)]).mlir
    found = regions(mlir, "linear")
    assert len(set(found)) == len(found) == TRACED + 3 and None not in found
    assert regions(mlir, "relu") == found
