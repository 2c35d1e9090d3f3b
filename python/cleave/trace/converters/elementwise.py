# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Element-wise operators, creation of tensors, type conversions."""

from __future__ import annotations

import math

import torch

from ..ir import DTYPES, TensorType
from ..registry import Unsupported, aten, converts


def _float(c, x):
    """Casts `x` to the result's type, for functions that map integers to floats."""
    return c.b.cast(x, c.type.dtype)


for _overload, _name in {
    aten.exp.default: "exp", aten.expm1.default: "expm1", aten.log.default: "log",
    aten.log1p.default: "log1p", aten.sqrt.default: "sqrt",
    aten.rsqrt.default: "rsqrt", aten.sin.default: "sin", aten.cos.default: "cos",
    aten.tanh.default: "tanh", aten.erf.default: "erf",
    aten.sigmoid.default: "sigmoid", aten.silu.default: "silu",
    aten.relu.default: "relu", aten.neg.default: "neg", aten.abs.default: "abs",
}.items():
    def _convert_unary(c, x, *, _name=_name):
        if x.dtype == "i1" and _name == "abs":
            return x
        return c.b.unary(_name, _float(c, x))
    converts(_overload)(_convert_unary)


@converts(aten.floor.default)
def floor(c, x):
    return c.b.unary("floor", x) if x.type.is_float else x


@converts(aten.ceil.default)
def ceil(c, x):
    return c.b.unary("neg", c.b.unary("floor", c.b.unary("neg", x))) if x.type.is_float else x


@converts(aten.gelu.default)
def gelu(c, x, approximate="none"):
    return c.b.unary("gelu", x, **({"tanh": True} if approximate == "tanh" else {}))


@converts(aten.reciprocal.default)
def reciprocal(c, x):
    return c.b.binary("div", c.b.scalar(1, c.type.dtype), _float(c, x))


@converts(aten.square.default)
def square(c, x):
    return c.b.binary("mul", x, x)


@converts(aten.log2.default)
def log2(c, x):
    return c.b.binary("mul", c.b.unary("log", _float(c, x)),
                      c.b.scalar(1 / math.log(2), c.type.dtype))


@converts(aten.exp2.default)
def exp2(c, x):
    return c.b.binary("pow", c.b.scalar(2, c.type.dtype), _float(c, x))


@converts(aten.sign.default)
def sign(c, x):
    zero = c.b.scalar(0, x.dtype)
    up = c.b.cast(c.b.compare("gt", x, zero), x.dtype)
    return c.b.binary("sub", up, c.b.cast(c.b.compare("lt", x, zero), x.dtype))


# Two operands -----------------------------------------------------------------


def arithmetic(c, name, a, b):
    """Applies the binary op `name` to values or numbers in the result's type."""
    return c.b.binary(name, c.operand(a, c.type.dtype), c.operand(b, c.type.dtype))


@converts(aten.add.Tensor, aten.add.Scalar)
def add(c, a, b, alpha=1):
    if c.type.dtype == "i1":
        return c.b.binary("or", a, c.operand(b, "i1"))
    if alpha != 1:
        b = arithmetic(c, "mul", b, alpha)
    return arithmetic(c, "add", a, b)


@converts(aten.sub.Tensor, aten.sub.Scalar)
def sub(c, a, b, alpha=1):
    if alpha != 1:
        b = arithmetic(c, "mul", b, alpha)
    return arithmetic(c, "sub", a, b)


@converts(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(c, a, b, alpha=1):
    if alpha != 1:
        a = arithmetic(c, "mul", a, alpha)
    return arithmetic(c, "sub", b, a)


@converts(aten.mul.Tensor, aten.mul.Scalar)
def mul(c, a, b):
    if c.type.dtype == "i1":
        return c.b.binary("and", a, c.operand(b, "i1"))
    return arithmetic(c, "mul", a, b)


@converts(aten.pow.Tensor_Scalar)
def pow_scalar(c, x, exponent):
    b = c.b
    if not c.type.is_float and not (isinstance(exponent, int) and 0 <= exponent <= 8):
        raise Unsupported(f"integer to the power {exponent}")
    x = b.cast(x, c.type.dtype)
    if exponent == 0:
        return b.full(1, c.type)
    if exponent in (1, 2, 3, 4, 5, 6, 7, 8):
        result = x
        for _ in range(int(exponent) - 1):
            result = b.binary("mul", result, x)
        return result
    if exponent == 0.5:
        return b.unary("sqrt", x)
    if exponent == -0.5:
        return b.unary("rsqrt", x)
    if exponent == -1:
        return b.binary("div", b.scalar(1, x.dtype), x)
    return b.binary("pow", x, b.scalar(exponent, x.dtype))


@converts(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(c, x, exponent):
    if not c.type.is_float:
        raise Unsupported("power of integers")
    return arithmetic(c, "pow", x, exponent)


@converts(aten.maximum.default, aten.max.other)
def maximum(c, a, b):
    return arithmetic(c, "maximum", a, b)


@converts(aten.minimum.default, aten.min.other)
def minimum(c, a, b):
    return arithmetic(c, "minimum", a, b)


@converts(aten.clamp.default, aten.clamp.Tensor, aten.clip.default)
def clamp(c, x, min=None, max=None):
    """At a bound the gradient goes only to `x`; elements that are NaN have no gradient."""
    b, dtype = c.b, c.type.dtype
    x = c.operand(x, dtype)
    low = None if min is None else c.operand(min, dtype)
    high = None if max is None else c.operand(max, dtype)
    if not c.type.is_float:
        x = x if low is None else b.binary("maximum", x, low)
        return x if high is None else b.binary("minimum", x, high)
    # maximum and minimum propagate NaN; their gradient, halved between equal operands, is
    # not that of clamp and is stopped.
    limited, inside = b.unary("stop_gradient", x), None
    for name, test, bound in (("maximum", "ge", low), ("minimum", "le", high)):
        if bound is not None:
            limited = b.binary(name, limited, b.unary("stop_gradient", bound))
            kept = b.compare(test, x, bound)
            inside = kept if inside is None else b.binary("and", inside, kept)
    result = limited
    if low is not None and low.trained:
        below = b.compare("lt", x, low)
        if high is not None:
            below = b.binary("and", below, b.compare("lt", low, high))
        result = b.select(b.binary("and", below, b.compare("eq", limited, low)), low, result)
    if high is not None and high.trained:
        above = b.compare("gt", x, high)
        if low is not None:
            above = b.binary("or", above, b.compare("lt", high, low))
        result = b.select(b.binary("and", above, b.compare("eq", limited, high)), high, result)
    return b.select(inside, x, result)


@converts(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(c, x, min):
    return clamp(c, x, min=min)


@converts(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(c, x, max):
    return clamp(c, x, max=max)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    def _convert_compare(c, a, b, *, _name=_name):
        a, b = c.operands(a, b)
        if a.dtype == "i1":
            a, b = c.b.cast(a, "i32"), c.b.cast(b, "i32")
        return c.b.compare(_name, a, b)
    _packet = getattr(aten, _name)
    converts(_packet.Tensor, _packet.Scalar)(_convert_compare)


@converts(aten.isnan.default)
def isnan(c, x):
    return c.b.compare("ne", x, x)


@converts(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(c, condition, a, b):
    dtype = c.type.dtype
    return c.b.select(c.b.cast(condition, "i1"), c.operand(a, dtype), c.operand(b, dtype))


@converts(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(c, x, mask, value):
    return c.b.select(mask, c.operand(value, x.dtype), x)


@converts(aten.addcmul.default)
def addcmul(c, x, a, b, value=1):
    product = c.b.binary("mul", a, b)
    if value != 1:
        product = c.b.binary("mul", product, c.b.scalar(value, product.dtype))
    return c.b.binary("add", x, product)


@converts(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(c, a, b, weight):
    step = c.b.binary("mul", c.b.binary("sub", b, a), c.operand(weight, a.dtype))
    return c.b.binary("add", a, step)


# Type conversions, copies -----------------------------------------------------


@converts(aten._to_copy.default)
def to_copy(c, x, dtype=None, **_):
    return c.b.cast(x, c.type.dtype)


@converts(aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.to.other,
          aten.type_as.default)
def to(c, x, *_, **__):
    return c.b.cast(x, c.type.dtype)


@converts(aten.clone.default, aten.alias.default, aten.detach_.default,
          aten.contiguous.default, aten.lift_fresh_copy.default, aten.lift_fresh.default)
def identity(c, x, *_, **__):
    return x


@converts(aten.detach.default)
def detach(c, x):
    return c.b.unary("stop_gradient", x) if x.type.is_float and not x.constant else x


@converts(aten.copy.default)
def copy(c, destination, source, *_):
    return c.b.broadcast(c.b.cast(source, destination.dtype), destination.shape)


@converts(aten.fill.Scalar, aten.fill.Tensor)
def fill(c, x, value):
    return c.b.broadcast(c.operand(value, x.dtype), x.shape)


# Creation -----------------------------------------------------------------------


@converts(aten.full.default, aten.full_like.default, aten.new_full.default)
def full(c, _, *rest, fill_value=None, **__):
    value = fill_value if fill_value is not None else rest[-1]
    return c.b.broadcast(c.operand(value, c.type.dtype), c.type.shape)


@converts(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default,
          aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default)
def zeros(c, *_, **__):
    return c.b.full(0, c.type)


@converts(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(c, *_, **__):
    return c.b.full(1, c.type)


@converts(aten.scalar_tensor.default)
def scalar_tensor(c, value, **_):
    return c.b.scalar(value, c.type.dtype)


@converts(aten.arange.default)
def arange(c, end, **_):
    return _range(c, 0, 1)


@converts(aten.arange.start)
def arange_start(c, start, end, **_):
    return _range(c, start, 1)


@converts(aten.arange.start_step)
def arange_step(c, start, end, step=1, **_):
    return _range(c, start, step)


@converts(aten.linspace.default)
def linspace(c, start, end, steps, **_):
    return c.b.constant(torch.linspace(start, end, steps, dtype=torch.float64)
                        .to(_torch_dtype(c)))


def _torch_dtype(c):
    return {name: dtype for dtype, name in DTYPES.items()}[c.type.dtype]


def _range(c, start, step):
    """Returns start, start + step, ... in the result's type and shape."""
    b, dtype = c.b, c.type.dtype
    if step == 1 and float(start).is_integer():
        return b.iota(c.type, 0, int(start))
    x = b.iota(TensorType(c.type.shape, dtype), 0)
    x = b.binary("mul", x, b.scalar(step, dtype))
    return b.binary("add", x, b.scalar(start, dtype))
