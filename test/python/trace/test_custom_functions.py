# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Functions with custom backwards and checkpoints are refused where a compiled step would compute
other gradients or buffers than eager code."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import cleave.trace
from cleave.trace import TraceError
from eager_support import X, Y, Two, compiled, eager, nothing_is_left, same  # noqa: F401


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Clipped(torch.autograd.Function):
    """Clips its gradient, by a setup of its own."""

    @staticmethod
    def forward(x, most):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.most = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-ctx.most, ctx.most), None


@pytest.mark.parametrize("function", [Reverse, Round])
def test_functions_with_a_backward_are_refused(function):
    module = Two(lambda m, x: m.b(function.apply(m.a(x))))
    with pytest.raises(TraceError, match=rf"test_custom_functions.py:\d+: {function.__name__} is an autogr"):
        cleave.trace.trace(module, (X, Y), F.mse_loss)


def test_a_function_that_clips_its_gradient_is_refused():
    with pytest.raises(TraceError, match="Clipped is an autograd.Function"):
        cleave.trace.trace(Two(lambda m, x: m.b(Clipped.apply(m.a(x), 1.0))), (X, Y), F.mse_loss)


class FarClipped(torch.autograd.Function):
    """Clips gradients that a small model does not have."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-100, 100)


class Sparse(FarClipped):
    """Drops small gradients."""

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (gradient.abs() > 1e-4)


class OneAtZero(torch.autograd.Function):
    """Another derivative at a kink."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0] >= 0)


@pytest.mark.parametrize("function", [FarClipped, Sparse, OneAtZero])
def test_a_backward_that_differs_somewhere_is_refused(function):
    with pytest.raises(TraceError, match=f"{function.__name__} is an autograd.Function"):
        cleave.trace.trace(Two(lambda m, x: m.b(function.apply(m.a(x)))), (X, Y), F.mse_loss)


class Swish(torch.autograd.Function):
    """Saves memory; its backward is the derivative."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * torch.sigmoid(scale * x)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        s = torch.sigmoid(ctx.scale * x)
        return gradient * (s + ctx.scale * x * s * (1 - s)), None


def test_a_function_whose_backward_is_its_derivative_is_honoured():
    module = Two(lambda m, x: m.b(Swish.apply(m.a(x), 1.5)))
    same(compiled(module), eager(module))


@pytest.mark.parametrize("reentrant", [False, True])
def test_buffers_written_within_a_checkpoint_are_refused(reentrant):
    """Eager code writes them again in backward."""
    def forward(m, x):
        return m.b(checkpoint(lambda y: m.norm(y).relu(), m.a(x), use_reentrant=reentrant))

    module = Two(forward, lambda m: m.add_module("norm", nn.BatchNorm1d(4)))
    with pytest.raises(TraceError, match="test_custom_functions.py:[0-9]+: buffer 'norm.* twice per step"):
        cleave.trace.trace(module, (X, Y), F.mse_loss)
    module.norm.eval()
    cleave.trace.trace(module, (X, Y), F.mse_loss)
