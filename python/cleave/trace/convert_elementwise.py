# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Element-wise operators, creation of tensors, conversions of type."""

from __future__ import annotations

import math

import torch

from .ir import DTYPES, TensorType
from .registry import Unsupported, aten, converts


def _float(c, x):
    """`x` in the result's type, for functions that turn integers to floats."""
    return c.b.cast(x, c.type.dtype)


for _overload, _name in {
    aten.exp.default: "exp", aten.log.default: "log", aten.sqrt.default: "sqrt",
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


@converts(aten.logical_not.default, aten.bitwise_not.default)
def logical_not(c, x):
    if x.dtype != "i1":
        if c.type.dtype != "i1":
            raise Unsupported("bitwise not of integers")
        x = c.b.cast(x, "i1")
    return c.b.unary("not", x)


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
    return c.b.unary("exp", c.b.binary("mul", _float(c, x),
                                       c.b.scalar(math.log(2), c.type.dtype)))


@converts(aten.log1p.default)
def log1p(c, x):
    return c.b.unary("log", c.b.binary("add", _float(c, x), c.b.scalar(1, c.type.dtype)))


@converts(aten.sign.default)
def sign(c, x):
    zero = c.b.scalar(0, x.dtype)
    up = c.b.cast(c.b.compare("gt", x, zero), x.dtype)
    return c.b.binary("sub", up, c.b.cast(c.b.compare("lt", x, zero), x.dtype))


@converts(aten.softplus.default)
def softplus(c, x, beta=1, threshold=20):
    b = c.b
    scaled = b.binary("mul", x, b.scalar(beta, x.dtype))
    tail = b.unary("log", b.binary("add", b.scalar(1, x.dtype), b.unary(
        "exp", b.unary("neg", b.unary("abs", scaled)))))
    soft = b.binary("add", b.unary("relu", scaled), tail)
    soft = b.binary("div", soft, b.scalar(beta, x.dtype))
    return b.select(b.compare("gt", scaled, b.scalar(threshold, x.dtype)), x, soft)


@converts(aten.log_sigmoid.default)
def log_sigmoid(c, x):
    b = c.b
    tail = b.unary("log", b.binary("add", b.scalar(1, x.dtype), b.unary(
        "exp", b.unary("neg", b.unary("abs", x)))))
    return b.binary("sub", b.binary("minimum", x, b.scalar(0, x.dtype)), tail)


@converts(aten.leaky_relu.default)
def leaky_relu(c, x, slope=0.01):
    scaled = c.b.binary("mul", x, c.b.scalar(slope, x.dtype))
    return c.b.select(c.b.compare("gt", x, c.b.scalar(0, x.dtype)), x, scaled)


@converts(aten.elu.default)
def elu(c, x, alpha=1, scale=1, input_scale=1):
    b = c.b
    low = b.binary("minimum", x, b.scalar(0, x.dtype))
    low = b.unary("exp", b.binary("mul", low, b.scalar(input_scale, x.dtype)))
    low = b.binary("mul", b.binary("sub", low, b.scalar(1, x.dtype)), b.scalar(alpha, x.dtype))
    result = b.select(b.compare("gt", x, b.scalar(0, x.dtype)), x, low)
    return b.binary("mul", result, b.scalar(scale, x.dtype))


@converts(aten.mish.default)
def mish(c, x):
    return c.b.binary("mul", x, c.b.unary("tanh", softplus(c, x)))


@converts(aten.hardsigmoid.default)
def hardsigmoid(c, x):
    shifted = clamp(c, c.b.binary("add", x, c.b.scalar(3, x.dtype)), 0, 6)
    return c.b.binary("div", shifted, c.b.scalar(6, x.dtype))


@converts(aten.hardswish.default)
def hardswish(c, x):
    return c.b.binary("mul", x, hardsigmoid(c, x))


@converts(aten.relu6.default)
def relu6(c, x):
    return clamp(c, x, 0, 6)


# Two operands -----------------------------------------------------------------


def _arithmetic(c, name, a, b):
    return c.b.binary(name, c.operand(a, c.type.dtype), c.operand(b, c.type.dtype))


@converts(aten.add.Tensor, aten.add.Scalar)
def add(c, a, b, alpha=1):
    if c.type.dtype == "i1":
        return c.b.binary("or", a, c.operand(b, "i1"))
    if alpha != 1:
        b = _arithmetic(c, "mul", b, alpha)
    return _arithmetic(c, "add", a, b)


@converts(aten.sub.Tensor, aten.sub.Scalar)
def sub(c, a, b, alpha=1):
    if alpha != 1:
        b = _arithmetic(c, "mul", b, alpha)
    return _arithmetic(c, "sub", a, b)


@converts(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(c, a, b, alpha=1):
    if alpha != 1:
        a = _arithmetic(c, "mul", a, alpha)
    return _arithmetic(c, "sub", b, a)


@converts(aten.mul.Tensor, aten.mul.Scalar)
def mul(c, a, b):
    if c.type.dtype == "i1":
        return c.b.binary("and", a, c.operand(b, "i1"))
    return _arithmetic(c, "mul", a, b)


@converts(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(c, a, b):
    return _arithmetic(c, "div", a, b)


@converts(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(c, a, b, rounding_mode=None):
    if rounding_mode == "floor":
        return floor_divide(c, a, b)
    if rounding_mode == "trunc" and c.type.is_float:
        raise Unsupported("truncating division of floats")
    return _arithmetic(c, "div", a, b)


@converts(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(c, x, y):
    quotient = _arithmetic(c, "div", x, y)
    if c.type.is_float:
        return c.b.unary("floor", quotient)
    b, dtype = c.b, c.type.dtype
    x, y = c.operand(x, dtype), c.operand(y, dtype)
    zero = b.scalar(0, dtype)
    rest = b.binary("sub", x, b.binary("mul", quotient, y))
    opposite = b.unary("not", b.compare("eq", b.cast(b.compare("lt", rest, zero), "i64"),
                                        b.cast(b.compare("lt", y, zero), "i64")))
    down = b.binary("and", b.compare("ne", rest, zero), opposite)
    return b.binary("sub", quotient, b.cast(down, dtype))


@converts(aten.remainder.Scalar, aten.remainder.Tensor)
def remainder(c, x, y):
    whole = floor_divide(c, x, y)
    return c.b.binary("sub", c.operand(x, c.type.dtype),
                      c.b.binary("mul", whole, c.operand(y, c.type.dtype)))


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
    return _arithmetic(c, "pow", x, exponent)


@converts(aten.maximum.default, aten.max.other)
def maximum(c, a, b):
    return _arithmetic(c, "maximum", a, b)


@converts(aten.minimum.default, aten.min.other)
def minimum(c, a, b):
    return _arithmetic(c, "minimum", a, b)


@converts(aten.clamp.default, aten.clamp.Tensor, aten.clip.default, aten.hardtanh.default)
def clamp(c, x, min=None, max=None):
    dtype = c.type.dtype if c.type else x.dtype
    x = c.operand(x, dtype)
    if min is not None:
        x = c.b.binary("maximum", x, c.operand(min, dtype))
    if max is not None:
        x = c.b.binary("minimum", x, c.operand(max, dtype))
    return x


@converts(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(c, x, min):
    return clamp(c, x, min=min)


@converts(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(c, x, max):
    return clamp(c, x, max=max)


def _logic(c, name, a, b):
    if c.type.dtype != "i1":
        raise Unsupported("bitwise arithmetic of integers")
    return c.b.binary(name, c.operand(a, "i1"), c.operand(b, "i1"))


@converts(aten.logical_and.default, aten.bitwise_and.Tensor, aten.bitwise_and.Scalar,
          aten.__and__.Tensor, aten.__and__.Scalar)
def logical_and(c, a, b):
    return _logic(c, "and", a, b)


@converts(aten.logical_or.default, aten.bitwise_or.Tensor, aten.bitwise_or.Scalar,
          aten.__or__.Tensor, aten.__or__.Scalar)
def logical_or(c, a, b):
    return _logic(c, "or", a, b)


@converts(aten.logical_xor.default, aten.bitwise_xor.Tensor)
def logical_xor(c, a, b):
    either, both = _logic(c, "or", a, b), _logic(c, "and", a, b)
    return c.b.binary("and", either, c.b.unary("not", both))


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


# Conversions of type, copies --------------------------------------------------


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
    b, dtype = c.b, c.type.dtype
    if step == 1 and float(start).is_integer():
        return b.iota(c.type, 0, int(start))
    x = b.iota(TensorType(c.type.shape, dtype), 0)
    x = b.binary("mul", x, b.scalar(step, dtype))
    return b.binary("add", x, b.scalar(start, dtype))
