# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Activations composed of other ops.

Gradients at kinks and bounds equal PyTorch's. The operand of a `select` that is not selected must
not overflow: its gradient would be 0 times infinity, which is NaN.
"""

from __future__ import annotations

from .elementwise import clamp
from ..registry import aten, converts


@converts(aten.softplus.default)
def softplus(c, x, beta=1, threshold=20):
    b = c.b
    scaled = b.binary("mul", x, b.scalar(beta, x.dtype))
    straight = b.compare("gt", scaled, b.scalar(threshold, x.dtype))
    # The exponential is 0 where it is not selected, so that it cannot overflow.
    soft = b.unary("log1p", b.unary("exp", b.select(straight, b.scalar(0, x.dtype), scaled)))
    return b.select(straight, x, b.binary("div", soft, b.scalar(beta, x.dtype)))


def _negative_abs(b, x):
    """Returns whether `x` is negative, and -|x| with the derivative -1 at 0: softplus and
    log-sigmoid computed from it have their derivative of 1/2 at 0."""
    negative = b.compare("lt", x, b.scalar(0, x.dtype))
    return negative, b.select(negative, x, b.unary("neg", x))


def softplus_terms(b, x):
    """Returns max(x, 0), with the derivative 1 at 0, and log(1 + exp(-|x|)); their sum is
    log(1 + exp(x))."""
    negative, size = _negative_abs(b, x)
    return (b.select(negative, b.scalar(0, x.dtype), x),
            b.unary("log1p", b.unary("exp", size)))


@converts(aten.log_sigmoid.default)
def log_sigmoid(c, x):
    b = c.b
    negative, size = _negative_abs(b, x)
    tail = b.unary("log1p", b.unary("exp", size))
    return b.binary("sub", b.select(negative, x, b.scalar(0, x.dtype)), tail)


@converts(aten.leaky_relu.default)
def leaky_relu(c, x, slope=0.01):
    scaled = c.b.binary("mul", x, c.b.scalar(slope, x.dtype))
    return c.b.select(c.b.compare("gt", x, c.b.scalar(0, x.dtype)), x, scaled)


@converts(aten.elu.default)
def elu(c, x, alpha=1, scale=1, input_scale=1):
    b = c.b
    zero = b.scalar(0, x.dtype)
    negative = b.compare("le", x, zero)
    low = b.binary("mul", b.select(negative, x, zero), b.scalar(input_scale, x.dtype))
    low = b.binary("mul", b.unary("expm1", low), b.scalar(alpha * scale, x.dtype))
    return b.select(negative, low, b.binary("mul", x, b.scalar(scale, x.dtype)))


@converts(aten.selu.default)
def selu(c, x):
    return elu(c, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@converts(aten.celu.default)
def celu(c, x, alpha=1.0):
    return elu(c, x, alpha, 1, 1 / alpha)


@converts(aten.mish.default)
def mish(c, x):
    return c.b.binary("mul", x, c.b.unary("tanh", softplus(c, x)))


@converts(aten.hardsigmoid.default)
def hardsigmoid(c, x):
    b, dtype = c.b, x.dtype
    inside = b.binary("and", b.compare("gt", x, b.scalar(-3, dtype)),
                      b.compare("lt", x, b.scalar(3, dtype)))
    shifted = b.binary("div", b.binary("add", x, b.scalar(3, dtype)), b.scalar(6, dtype))
    return b.select(inside, shifted, _clamped(b, shifted, 0, 1))


@converts(aten.hardswish.default)
def hardswish(c, x):
    # x (x + 3) / 6 between -3 and 3, 0 below and x above.
    b, dtype = c.b, x.dtype
    above = b.compare("ge", x, b.scalar(3, dtype))
    below = b.compare("le", x, b.scalar(-3, dtype))
    inner = b.select(b.binary("or", above, below), b.scalar(0, dtype), x)
    inner = b.binary("mul", inner, b.binary("div", b.binary("add", inner, b.scalar(3, dtype)),
                                            b.scalar(6, dtype)))
    # 0 below -3, but NaN for -inf, as in PyTorch.
    zero = b.binary("mul", b.unary("stop_gradient", x), b.scalar(0, dtype))
    return b.select(above, x, b.select(below, zero, inner))


def _clamped(b, x, low, high):
    """Returns `x` clamped to [low, high], without a gradient."""
    x = b.unary("stop_gradient", x)
    return b.binary("minimum", b.binary("maximum", x, b.scalar(low, x.dtype)),
                    b.scalar(high, x.dtype))


@converts(aten.hardtanh.default)
def hardtanh(c, x, min_val=-1, max_val=1):
    """The gradient is 0 at both bounds; that of clamp is 1 there."""
    b = c.b
    if not x.type.is_float:
        return clamp(c, x, min_val, max_val)
    low, high = b.scalar(min_val, x.dtype), b.scalar(max_val, x.dtype)
    result = b.select(b.compare("ge", x, high), high, x)
    return b.select(b.compare("le", x, low), low, result)


@converts(aten.relu6.default)
def relu6(c, x):
    return hardtanh(c, x, 0, 6)
