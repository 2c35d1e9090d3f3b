# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Parts of a model in evaluation mode, while the model is trained."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
import cleave.trace
from eager_support import X, Y, Two, compiled, eager, same


def resting_norm(m):
    torch.manual_seed(3)
    m.norm = nn.BatchNorm1d(4)
    m.norm.running_mean.normal_()
    m.norm.running_var.uniform_(0.5, 2)
    m.norm.weight.data.uniform_(0.5, 2)
    m.norm.eval()
    m.compute = lambda m, x: m.b(m.norm(m.a(x)))


def resting_dropout(m):
    m.drop = nn.Dropout(0.5).eval()
    m.compute = lambda m, x: m.b(m.drop(m.a(x)))


@pytest.mark.parametrize("prepare", [resting_norm, resting_dropout], ids=lambda f: f.__name__)
def test_parts_in_evaluation_mode_remain_so(prepare):
    module = Two(prepare=prepare).train(True)
    prepare(module)
    assert module.training and not all(m.training for m in module.modules())
    same(compiled(module), eager(module))


def test_a_norm_writes_its_statistics_in_training_alone():
    module = Two(prepare=resting_norm).train()
    written = cleave.trace.trace(module, (X, Y), F.mse_loss).written
    assert {name.rsplit(".", 1)[-1] for name in written} == {
        "running_mean", "running_var", "num_batches_tracked"}
    module.norm.eval()
    assert not cleave.trace.trace(module, (X, Y), F.mse_loss).written


def test_modes_are_those_of_compilation():
    """A batch of another shape is traced when the model may be in another mode."""
    module = Two(prepare=resting_dropout).train()
    resting_dropout(module)
    step = cleave.compile(module, (X, Y), F.mse_loss, threads=1, optimizer=cleave.SGD(lr=0.0))
    module.eval()
    expected = float(F.mse_loss(module(X[:4]), Y[:4]))
    assert float(step(X[:4], Y[:4])) == pytest.approx(expected, rel=1e-5)
    assert not any(m.training for m in module.modules())
