# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Element-wise operators, creation, conversions."""

import torch
import torch.nn.functional as F

from converter_cases.registry import FINITE_PAIRS, PAIRS, case, edges, inf, nan, normal, numbers

aten = torch.ops.aten

FINITE_BELOW = edges()[edges() != -inf]

# One operand ------------------------------------------------------------------

for name in ("exp", "log", "sqrt", "rsqrt", "relu", "neg", "abs", "floor", "ceil", "reciprocal", "square",
             "exp2", "log1p", "sign", "erf"):
    case(name, getattr(torch, name), edges())
# The framework takes y + 1 for the slope, which is 0 from -17 on.
case("expm1", torch.expm1, edges(), floor=1e-7)
# 1 - y, of which the slope is made, loses what y was rounded by.
case("sigmoid", torch.sigmoid, edges(), share=1e-7)
case("tanh", torch.tanh, edges(), share=2e-7)
# Beyond this the C library reduces arguments in another way.
case("sin", torch.sin, normal(64, scale=20.0), ulps=32)
case("cos", torch.cos, normal(64, scale=20.0), ulps=32)
case("sin of edges", torch.sin, numbers(0.0, -0.0, 1e-45, 1e-30, 1e-4, inf, -inf, nan))
case("log2", torch.log2, edges())
case("log2 near 1", torch.log2, 1 + normal(64, scale=1e-3), ulps=32)
case("silu", F.silu, edges(), ulps=32)
# Far below zero what is left is the difference of numbers near one.
case("gelu", F.gelu, normal(64, scale=2.0), share=1e-7)
case("gelu of edges", F.gelu, numbers(0.0, -0.0, 1e-45, 1e-30, 1e-6, 20.0, -20.0, 1e4, -1e4, nan))
case("gelu by tanh", lambda x: F.gelu(x, approximate="tanh"), normal(64, scale=2.0), share=1e-7)
case("logical_not", torch.logical_not, edges())
case("bitwise_not", lambda x: aten.bitwise_not((x > 0)), edges())
case("isnan", torch.isnan, edges())
case("softplus", F.softplus, edges())
case("softplus, beta", lambda x: F.softplus(x, 2.0, 5.0), edges(2.5, 2.4999))
case("log of softplus", lambda x: F.softplus(x).log(), numbers(-80, -20, -16, -10, -1, 0, 1, 20, 80))
case("log_sigmoid", F.logsigmoid, edges())
case("leaky_relu", F.leaky_relu, edges())
case("leaky_relu, negative slope", lambda x: F.leaky_relu(x, -0.5), edges())
case("elu", F.elu, edges())
case("elu, alpha", lambda x: F.elu(x, 2.5), edges())
case("selu", F.selu, edges())
case("celu", lambda x: F.celu(x, 0.5), edges())
# Its gradient is a difference of terms of size 1 that cancel at -1.19.
case("mish", F.mish, edges(), ulps=64, floor=2.0**-24)
case("hardsigmoid", F.hardsigmoid, edges(-3.0, 3.0))
case("hardswish", F.hardswish, edges(-3.0, 3.0))
case("relu6", F.relu6, edges())
case("hardtanh", F.hardtanh, edges())
case("clamp, bounds of NaN", lambda x, y: torch.clamp(x, y[:, None], 1 - y[:, None]), numbers(-7, 0, 3, inf),
     numbers(nan))
case("hardtanh, bounds", lambda x: F.hardtanh(x, -2.0, 3.0), edges())
case("threshold", lambda x: F.threshold(x, 0.5, -7.0), edges())
case("hardshrink", F.hardshrink, edges())
case("softshrink", F.softshrink, edges())
case("tanhshrink", F.tanhshrink, normal(64), share=1e-7)
case("softsign", F.softsign, edges())
case("glu", lambda x: F.glu(x, -1), normal(8, 8))
for n in (0, 1, 2, 3, 4, 8, 0.5, -1, -2, 9):
    case(f"power {n}", lambda x, n=n: x.pow(n), edges(), ulps=32)
# Of -inf the framework takes roots in some of these and not in others.
for n in (-0.5, 1.5, 2.5, -1.5):
    case(f"power {n}", lambda x, n=n: x.pow(n), FINITE_BELOW, ulps=32)

#: Pairs without a divisor of 0.
DIVISIONS = tuple(x[FINITE_PAIRS[1] != 0] for x in FINITE_PAIRS)

# Two operands -----------------------------------------------------------------

for name in ("add", "sub", "mul", "true_divide", "maximum", "minimum", "max", "min"):
    case(f"{name} of pairs", getattr(torch, name), *PAIRS)
case("div", torch.div, *PAIRS)
# The framework has no gradient of it.
case("floor_divide of pairs", lambda a, b: torch.floor_divide(a.detach(), b.detach()), *PAIRS)
case("div, floor", lambda a, b: torch.div(a, b, rounding_mode="floor"), *PAIRS)
case("remainder", lambda a, b: torch.remainder(a, b.detach()), *PAIRS)
case("remainder, divisor", torch.remainder, *DIVISIONS)
case("remainder by 0.1", lambda a: torch.remainder(a, 0.1), numbers(1.0, 0.3, -0.3, 7.7, 1e4, 1e-30, -1e-30, 0.1, 0.0))
case("remainder by -3", lambda a: torch.remainder(a, -3), edges())
case("floor_divide by 0.1", lambda a: a.detach() // 0.1, numbers(1.0, 0.3, -0.3, 7.7, 1e-30, 0.1, 0.0))
case("floor_divide, Scalar", lambda a: aten.floor_divide.Scalar(a.detach(), 3), edges())
case("div, mode, Scalar", lambda a: aten.div.Scalar_mode(a, 3, rounding_mode="floor"), edges())
case("fmod", lambda a, b: torch.fmod(a, b.detach()), *PAIRS)
case("fmod, divisor", torch.fmod, *DIVISIONS)
case("fmod by 0.1", lambda a: torch.fmod(a, 0.1), numbers(1.0, 0.3, -0.3, 7.7, 1e4, 1e-30, -1e-30, 0.1, 0.0))
case("floor_divide of integers", lambda a, b: a.long() // (b.long() * 2 + 1), *FINITE_PAIRS)
case("power of pairs", torch.pow, *PAIRS, ulps=32)
case("power of a number", lambda a: torch.pow(2.5, a), edges(), ulps=32)
case("power of zero", lambda a: torch.pow(0.0, a), edges(), ulps=32)
for name in ("add", "sub", "rsub", "mul", "div"):
    case(f"{name}, Scalar", lambda a, f=getattr(aten, name).Scalar: f(a, 2.5), edges())
case("rsub", lambda a, b: torch.rsub(a, b, alpha=2), *PAIRS)
case("add, alpha", lambda a, b: torch.add(a, b, alpha=-0.5), *PAIRS)
case("sub, alpha", lambda a, b: torch.sub(a, b, alpha=3), *PAIRS)
case("clamp", lambda x: x.clamp(-1, 1), edges())
case("clamp below", lambda x: x.clamp(min=0.5), edges())
case("clamp above", lambda x: x.clamp(max=0.5), edges())
case("clamp, crossed bounds", lambda x: x.clamp(2, -1), edges())
case("clamp, infinite bounds", lambda x: x.clamp(-inf, inf), edges())
case("clamp of integers", lambda x: x.clamp(-1e9, 1e9).nan_to_num(0.0).long().clamp(-2, 3), edges())
case("clip", lambda x: aten.clip.default(x, -1, 1), edges())
case("clamp_min", lambda x: aten.clamp_min.default(x, 1), edges())
case("clamp_max", lambda x: aten.clamp_max.default(x, 1), edges())
case("clamp, Tensor", lambda x, y: torch.clamp(x, min=y), *PAIRS)
case("clamp, Tensor above", lambda x, y: torch.clamp(x, max=y), *PAIRS)
case("clamp, Tensors", lambda x, y, z: torch.clamp(x, y[:, None], z[:, None]), numbers(-7, -1, 0, 0.5, 1, 2, 3, 1e30, -inf), numbers(0, 1, -1, -2, 3),
     numbers(0, 2, -1, inf, -3))
case("clamp_min, Tensor", lambda x, y: aten.clamp_min.Tensor(x, y), *PAIRS)
case("clamp_max, Tensor", lambda x, y: aten.clamp_max.Tensor(x, y), *PAIRS)
case("addcmul", lambda a, b: torch.addcmul(a, a, b, value=0.5), *FINITE_PAIRS, share=1e-7)
case("lerp", lambda a, b: torch.lerp(a, b, 0.25), *FINITE_PAIRS, ulps=64)
case("lerp above one half", lambda a, b: torch.lerp(a, b, 0.75), *FINITE_PAIRS, ulps=64)
case("lerp, Tensor", lambda a, b, c: torch.lerp(a, b, c), normal(64), normal(64, seed=1), normal(64, seed=2).sigmoid(),
     share=1e-6)
for name in ("eq", "ne", "lt", "le", "gt", "ge"):
    case(f"{name} of pairs", getattr(torch, name), *PAIRS)
    case(f"{name}, Scalar", lambda a, f=getattr(torch, name): f(a, 1.0), edges())
for name in ("logical_and", "logical_or", "logical_xor"):
    case(name, lambda a, b, f=getattr(torch, name): f(a > 0, b > 0), *PAIRS)
for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__"):
    case(name, lambda a, b, f=getattr(aten, name).Tensor: f(a > 0, b > 0), *PAIRS)
for name in ("bitwise_and", "bitwise_or", "__and__", "__or__"):
    case(f"{name}, Scalar", lambda a, f=getattr(aten, name).Scalar: f(a > 0, True), edges())
case("sums and products of booleans", lambda a, b: (a > 0) * (b > 0) + (a > 1), *PAIRS)
case("where", lambda a, b: torch.where(a > b, a, b), *PAIRS)
case("where, ScalarOther", lambda a: aten.where.ScalarOther(a > 0, a, 3.0), edges())
case("where, ScalarSelf", lambda a: aten.where.ScalarSelf(a > 0, 3.0, a), edges())
case("where, Scalar", lambda a: aten.where.Scalar(a > 0, 3.0, 4.0), edges())
case("masked_fill", lambda a: a.masked_fill(a > 1, -inf), edges())
case("masked_fill, Tensor", lambda a, b: a.masked_fill(a > 1, b[0]), edges(), numbers(2))

# Conversions, copies, creation ----------------------------------------------------

case("to_copy", lambda x: aten._to_copy.default(x, dtype=torch.float64).to(x), edges())
case("to", lambda x: x.to(torch.float64) * 1.0, edges())
case("to other", lambda x: aten.to.other(x, x.double()) + aten.to.device(x, "cpu", torch.float32)
     + aten.to.dtype_layout(x, dtype=torch.float32), edges())
case("to an integer and back", lambda x: x.clamp(-1e6, 1e6).nan_to_num(0.0).int().to(x), edges())
case("type_as", lambda x: x.type_as(x.double()), edges())
for name in ("clone", "alias", "contiguous", "lift_fresh_copy", "lift_fresh"):
    case(name, lambda x, f=getattr(aten, name).default: f(x * 1.0) * 2.0, edges())
case("detach", lambda x: x.detach() * x, edges())
case("copy", lambda x, y: aten.copy.default(x.detach(), y.detach()), normal(3, 4), normal(4))
case("fill", lambda x: aten.fill.Scalar(x, 2.0), edges())
case("fill, Tensor", lambda x, y: aten.fill.Tensor(x, y), edges(), normal())
case("full", lambda x: x * torch.full((3,), 2.5).to(x) * torch.full_like(x, 2.0) * x.new_full((3,), -1.0), normal(3))
case("zeros", lambda x: x * (torch.zeros(3).to(x) + torch.zeros_like(x) + x.new_zeros(3)
                             + 0 * aten.empty.memory_format([3]) + 0 * torch.empty_like(x) + 0 * x.new_empty(3)), normal(3))
case("ones", lambda x: x * torch.ones(3).to(x) * torch.ones_like(x) * x.new_ones(3), normal(3))
case("scalar_tensor", lambda x: x * torch.scalar_tensor(2.5).to(x), normal(3))
case("arange", lambda x: x * torch.arange(4) + torch.arange(3, 7) + torch.arange(1.5, 5.5) + torch.arange(0.0, 2.0, 0.5), normal(4))
case("linspace", lambda x: x * torch.linspace(-1, 1, 5).to(x), normal(5))
