# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Complex numbers as pairs of real tensors, and Fourier transforms as contractions.

The graph dialect has no complex types: an operator with a complex operand or result is converted to
ops on the real and imaginary parts. Its gradient is that of the real function of the parts, as in
PyTorch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable

import torch

from .statistics import zero_safe_power
from ..ir import TensorType, Value
from ..registry import Unsupported, aten, converter_for


@dataclasses.dataclass
class Complex:
    """The complex tensor re + i im; both parts have one type."""

    re: Value
    im: Value

    def map(self, function: Callable[[Value], Any]) -> Complex:
        return Complex(function(self.re), function(self.im))

    def __iter__(self):
        return iter((self.re, self.im))


PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64,
         torch.complex32: torch.float16}

_CONVERTERS: dict[Any, Callable[..., Any]] = {}


def _converts(*overloads: Any):
    def register(function):
        for overload in overloads:
            _CONVERTERS[overload] = function
        return function
    return register


def converts_complex(target: Any) -> bool:
    """Returns whether an operator has a separate conversion for complex numbers."""
    return target in _CONVERTERS


def part_type(example: Any) -> torch.dtype | None:
    """Returns the element type of a complex tensor's parts; None for anything else."""
    return PARTS.get(example.dtype) if isinstance(example, torch.Tensor) else None


def convert(c, target: Any, args: tuple, kwargs: dict) -> Any:
    """Converts an operator that has a complex operand or result; `c.type` is the type of the
    result's parts. Raises Unsupported if it has no conversion."""
    if target in _CONVERTERS:
        return _CONVERTERS[target](c, *args, **kwargs)
    function = converter_for(target)
    if target in _PART_BY_PART and function is not None:
        return _by_parts(c, function, args, kwargs)
    raise Unsupported("no conversion for complex numbers")


def _by_parts(c, function, args, kwargs):
    """Applies a linear operator to the real and to the imaginary parts."""
    def part(value, i):
        if isinstance(value, Complex):
            return (value.re, value.im)[i]
        if isinstance(value, Value) and value.type.is_float:
            return c.b.full(0, value.type) if i else value
        if isinstance(value, (list, tuple)) and any(isinstance(v, Complex) for v in value):
            return type(value)(part(v, i) for v in value)
        return value

    re, im = (function(c, *(part(a, i) for a in args),
                       **{k: part(v, i) for k, v in kwargs.items()}) for i in range(2))
    if isinstance(re, tuple):
        return tuple(map(Complex, re, im))
    return Complex(re, im)


_PART_BY_PART = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.flatten.using_ints,
    aten.permute.default, aten.transpose.int, aten.movedim.int, aten.expand.default,
    aten.repeat.default, aten.slice.Tensor, aten.select.int, aten.split.Tensor,
    aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int, aten.cat.default,
    aten.stack.default, aten.roll.default, aten.flip.default, aten.index.Tensor,
    aten.index_select.default, aten.clone.default, aten.contiguous.default, aten.detach.default,
    aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.neg.default,
    aten.alias.default,
}


def _pair(c, x):
    """Returns a complex operand, a real one or a number as a Complex."""
    if isinstance(x, Complex):
        return x
    if isinstance(x, complex):
        return Complex(c.b.scalar(x.real, c.type.dtype), c.b.scalar(x.imag, c.type.dtype))
    x = c.operand(x, c.type.dtype)
    return Complex(x, c.b.full(0, x.type))


# To and from real tensors -------------------------------------------------------------


@_converts(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(c, x):
    """The last dimension of `x` has size 2 and holds the parts."""
    shape = x.shape[:-1]
    return Complex(*(c.b.reshape(c.b.narrow(x, -1, i, 1), shape) for i in range(2)))


@_converts(aten.view_as_real.default, aten.view_as_real_copy.default)
def view_as_real(c, x):
    shape = (*x.re.shape, 1)
    return c.b.concat([c.b.reshape(v, shape) for v in x], len(shape) - 1)


@_converts(aten.complex.default)
def complex_(c, re, im):
    return Complex(*c.operands(re, im))


@_converts(aten.polar.default)
def polar(c, size, angle):
    b, (size, angle) = c.b, c.operands(size, angle)
    return Complex(*(b.binary("mul", size, b.unary(name, angle)) for name in ("cos", "sin")))


@_converts(aten._to_copy.default, aten.to.dtype)
def to_copy(c, x, *_, **__):
    if isinstance(x, Complex):
        return x.map(lambda v: c.b.cast(v, c.type.dtype))
    return _pair(c, c.b.cast(x, c.type.dtype))


@_converts(aten.real.default)
def real(c, x):
    return x.re


@_converts(aten.imag.default)
def imag(c, x):
    return x.im


@_converts(aten.select.int)
def select(c, x, dim, index):
    return _by_parts(c, converter_for(aten.select.int), (x, dim, index), {})


# Arithmetic ---------------------------------------------------------------------------


@_converts(aten.conj.default, aten._conj.default, aten.conj_physical.default,
           aten._conj_physical.default)
def conj(c, x):
    return Complex(x.re, c.b.unary("neg", x.im))


@_converts(aten.resolve_conj.default, aten.resolve_neg.default)
def same(c, x):
    return x


@_converts(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def add(c, x, y, alpha=1):
    b = c.b
    name = "sub" if c.target in (aten.sub.Tensor, aten.sub.Scalar) else "add"
    x, y = _pair(c, x), _pair(c, y)
    if alpha != 1:
        y = mul(c, y, alpha)
    return Complex(*(b.binary(name, p, q) for p, q in zip(x, y)))


@_converts(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(c, x, y, alpha=1):
    return add(c, mul(c, x, -alpha), y)


@_converts(aten.mul.Tensor, aten.mul.Scalar)
def mul(c, x, y):
    b = c.b
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Complex) and not isinstance(other, (Complex, complex)):
            factor = c.operand(other, c.type.dtype)
            return one.map(lambda v: b.binary("mul", v, factor))
    x, y = _pair(c, x), _pair(c, y)
    return Complex(b.binary("sub", b.binary("mul", x.re, y.re), b.binary("mul", x.im, y.im)),
                   b.binary("add", b.binary("mul", x.re, y.im), b.binary("mul", x.im, y.re)))


def _square(c, x):
    """Returns |x|^2."""
    return c.b.binary("add", *(c.b.binary("mul", v, v) for v in x))


@_converts(aten.div.Tensor, aten.div.Scalar)
def div(c, x, y):
    b = c.b
    if not isinstance(y, (Complex, complex)):
        divisor = c.operand(y, c.type.dtype)
        return x.map(lambda v: b.binary("div", v, divisor))
    y = _pair(c, y)
    size = _square(c, y)
    return mul(c, _pair(c, x), conj(c, y)).map(lambda v: b.binary("div", v, size))


@_converts(aten.abs.default)
def abs_(c, x):
    """The gradient at 0 is 0."""
    return zero_safe_power(c, _square(c, x))


@_converts(aten.exp.default)
def exp(c, x):
    return polar(c, c.b.unary("exp", x.re), x.im)


@_converts(aten.full_like.default, aten.zeros_like.default, aten.ones_like.default)
def full_like(c, x, value=None, **_):
    if value is None:
        value = int(c.target is aten.ones_like.default)
    return Complex(c.b.full(value, c.type), c.b.full(0, c.type))


# Fourier transforms -------------------------------------------------------------------

#: The largest number of elements of a transform's matrix.
_LARGEST = 1 << 22


def _dft_matrix(c, rows, size, dtype, forward):
    """Returns the cosine and sine of -+ 2 pi i j / size, both [rows, size], the matrix of a
    discrete Fourier transform. i j is first reduced modulo `size`, for accuracy. Raises
    Unsupported for more than _LARGEST elements."""
    b = c.b
    if rows * size > _LARGEST:
        raise Unsupported(f"a Fourier transform of {size} elements: its matrix has more than "
                          f"{_LARGEST} elements")
    row, column = (b.iota(TensorType(shape, "i64"), d) for d, shape in
                   enumerate(((rows, 1), (1, size))))
    turn = b.binary("rem", b.binary("mul", row, column), b.scalar(size, "i64"))
    angle = b.binary("mul", b.cast(turn, dtype),
                     b.scalar((-2 if forward else 2) * math.pi / size, dtype))
    return b.unary("cos", angle), b.unary("sin", angle)


def _transformed(c, x, dim, forward, rows=None):
    """Transforms `x` along `dim`; `rows` limits the result to the first frequencies."""
    b, rank = c.b, x.re.type.rank
    size = x.re.shape[dim]
    cos, sin = _dft_matrix(c, size if rows is None else rows, size, x.re.dtype, forward)
    letters = [chr(ord("a") + i) for i in range(rank)]
    given, got = "".join(letters), "".join("z" if d == dim else l for d, l in enumerate(letters))
    equation = f"z{letters[dim]},{given}->{got}"

    def times(matrix, v):
        return b.contract(equation, matrix, v)
    return Complex(b.binary("sub", times(cos, x.re), times(sin, x.im)),
                   b.binary("add", times(cos, x.im), times(sin, x.re)))


def _normalised(c, x, dims, mode, sizes):
    """Normalises `x`, a transform over `dims`: divides it by 1 (mode 0), by the square root
    of the number of elements (1), or by that number (2)."""
    count = math.prod(sizes[d] for d in dims)
    if mode == 0:
        return x
    factor = c.b.scalar(1 / math.sqrt(count) if mode == 1 else 1 / count, x.re.dtype)
    return x.map(lambda v: c.b.binary("mul", v, factor))


@_converts(aten._fft_c2c.default)
def fft_c2c(c, x, dim, normalization, forward):
    dims = [d % x.re.type.rank for d in dim]
    sizes = x.re.shape
    for d in dims:
        x = _transformed(c, x, d, forward)
    return _normalised(c, x, dims, normalization, sizes)


@_converts(aten._fft_r2c.default)
def fft_r2c(c, x, dim, normalization, onesided):
    dims = [d % x.type.rank for d in dim]
    sizes, last = x.shape, dims[-1]
    x = Complex(x, c.b.full(0, x.type))
    x = _transformed(c, x, last, True, sizes[last] // 2 + 1 if onesided else None)
    for d in dims[:-1]:
        x = _transformed(c, x, d, True)
    return _normalised(c, x, dims, normalization, sizes)


@_converts(aten._fft_c2r.default)
def fft_c2r(c, x, dim, normalization, last_dim_size):
    """Transforms one half of the frequencies to real numbers; the other half are their
    conjugates."""
    b, dims, sizes = c.b, [d % x.re.type.rank for d in dim], list(x.re.shape)
    last = dims[-1]
    for d in dims[:-1]:
        x = _transformed(c, x, d, False)
    half, size = last_dim_size // 2 + 1, last_dim_size
    sizes[last] = size
    if x.re.shape[last] < half:
        raise Unsupported(f"the input has fewer than {half} frequencies along dimension {last}")
    x = x.map(lambda v: b.narrow(v, last, 0, half))
    # Frequencies whose conjugates are omitted count twice.
    number = b.iota(TensorType((half,), "i64"), 0)
    alone = b.compare("eq", number, b.scalar(0, "i64"))
    if size % 2 == 0:
        alone = b.binary("or", alone, b.compare("eq", number, b.scalar(half - 1, "i64")))
    times = b.select(alone, b.scalar(1, x.re.dtype), b.scalar(2, x.re.dtype))
    shape = [1] * last + [half] + [1] * (x.re.type.rank - last - 1)
    x = x.map(lambda v: b.binary("mul", v, b.reshape(times, shape)))
    cos, sin = _dft_matrix(c, half, size, x.re.dtype, False)
    letters = [chr(ord("a") + i) for i in range(x.re.type.rank)]
    given, got = "".join(letters), "".join("z" if d == last else l for d, l in enumerate(letters))
    equation = f"{letters[last]}z,{given}->{got}"
    result = b.binary("sub", b.contract(equation, cos, x.re), b.contract(equation, sin, x.im))
    return _normalised(c, Complex(result, result), dims, normalization, sizes).re
