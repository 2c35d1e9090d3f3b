# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Each argument of `cleave.compile`, of its signature, and each option of its groups, with values
that none takes: an error that names it. Nothing is accepted and ignored."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.compiler.entrance import GROUPS, OWNERS, grouped
from cleave.trace import TraceError

X, Y = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(4)
#: But for what is trained, which other tests give.
ARGUMENTS = [name for name in inspect.signature(cleave.compile).parameters
             if name not in ("model", "example_inputs", "loss_fn", "former")]
NAMES = [*ARGUMENTS, *(name for name in OWNERS if name not in ARGUMENTS)]
#: Values that no argument takes, and numbers that are out of the range of all.
VALUES = {
    "object": object(), "bytes": b"x", "complex": 1j, "set": {1}, "function": lambda: 0,
    "module": nn.Linear(2, 2), "nested": [[None]], "of none": {None: None}, "nan": float("nan"),
    "infinite": float("inf"), "negative": -(2 ** 70), "large": 2 ** 70, "nothing": "no such thing",
    "tensor": torch.ones(2), "one element": torch.tensor(0.5), "empty": set(),
    "surrogate": "\udc80", "zero": "a\0b",
}
#: Folders may have any name, and nothing may be offloaded.
TAKEN = {("offload_dir", "nothing"), ("offload_dir", "surrogate"), ("offload", "empty"),
         ("dump_phases", "nothing")}


def test_few_arguments():
    assert len(inspect.signature(cleave.compile).parameters) <= 21


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", NAMES)
def test_wrong_values(name, value):
    model = nn.Linear(4, 4)
    if (name, value) in TAKEN:
        return
    given = {name: VALUES[value]} if name in ARGUMENTS else grouped(**{name: VALUES[value]})
    with pytest.raises((TypeError, ValueError, OSError, TraceError, cleave.CompileError)) as caught:
        cleave.compile(model, (X, Y), F.cross_entropy, **given)
    text = str(caught.value)
    # A plain value in the place of a group is an option of it.
    names = [name, (GROUPS[name][1] if name in GROUPS else None) or name]
    names += {"prune": ["pruning '"], "lengths": ["shapes"]}.get(name, [])
    assert any(own in text for own in [*names, "no such thing"]), text
