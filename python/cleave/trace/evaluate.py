# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Evaluates graph ops with torch.

Tracing evaluates values that depend on no input, such as positions, masks and tables. Only ops that
compute such values are implemented; the dialect's reference semantics are in lib/Interpreter.
"""

from __future__ import annotations

from typing import Callable

import torch

from .ir import TORCH_DTYPES, Op, Value

_SEMANTICS: dict[str, Callable[[Op, list[torch.Tensor]], torch.Tensor]] = {}


def _semantics(*names: str):
    def register(function):
        for name in names:
            _SEMANTICS[name] = function
        return function
    return register


def _unexpanded(x: torch.Tensor) -> torch.Tensor:
    """Returns `x` with size 1 along each dimension of stride 0 (a broadcast dimension)."""
    for dim, stride in enumerate(x.stride()):
        if stride == 0 and x.shape[dim] > 1:
            x = x.narrow(dim, 0, 1)
    return x


def _as_broadcast(x: torch.Tensor) -> torch.Tensor:
    """Returns `x`, as a broadcast of its first slice if all slices along dimension 0 are
    equal."""
    if 1 < x.numel() <= 1 << 20 and x.dim() > 1 and x.shape[0] > 1 and x.stride(0) != 0:
        if bool((x == x[:1]).all()):
            return x[:1].expand(x.shape)
    return x


class Evaluator:
    """Computes and caches values known at trace time; `arguments` maps id(value) of known arguments
    to their tensors."""

    #: The largest number of elements of a value that is computed.
    LIMIT = 1 << 28

    def __init__(self, arguments: dict[int, torch.Tensor] | None = None):
        self._values: dict[int, torch.Tensor | None] = dict(arguments or {})
        self._keep: list[Value] = []

    def remember(self, value: Value, tensor: torch.Tensor) -> None:
        """Sets the elements of an argument."""
        self._values[id(value)] = tensor
        self._keep.append(value)

    def value(self, value: Value) -> torch.Tensor | None:
        """Returns the elements of `value`, or None if they are not known."""
        if id(value) in self._values:
            return self._values[id(value)]
        result = None
        if value.constant and value.op is not None and value.op.name in _SEMANTICS:
            inputs = [self.value(v) for v in value.op.inputs()]
            if all(x is not None for x in inputs) and self._fits(value, inputs):
                result = _as_broadcast(_SEMANTICS[value.op.name](value.op, inputs))
        self._values[id(value)] = result
        self._keep.append(value)
        return result

    def _fits(self, value: Value, inputs: list[torch.Tensor]) -> bool:
        """Returns whether computing `value` allocates at most LIMIT elements."""
        if value.type.elements <= self.LIMIT or value.op.name == "broadcast":
            return True
        cores = [_unexpanded(x).shape for x in inputs]
        return torch.Size(torch.broadcast_shapes(*cores)).numel() <= self.LIMIT


def _pointwise(function: Callable[..., torch.Tensor]):
    """Returns the semantics of an element-wise op; broadcast dimensions are not expanded."""
    def run(op: Op, inputs: list[torch.Tensor]) -> torch.Tensor:
        shape = op.results[0].shape
        result = function(*(_unexpanded(x) for x in inputs))
        return result.to(TORCH_DTYPES[op.results[0].dtype]).expand(shape)
    return run


for _name, _function in {
    "neg": torch.neg, "abs": torch.abs, "exp": torch.exp,
    "expm1": torch.expm1, "log": torch.log, "log1p": torch.log1p, "rem": torch.fmod,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos,
    "tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu, "relu": torch.relu, "floor": torch.floor,
    "stop_gradient": torch.detach,
    "not": torch.logical_not, "add": torch.add, "sub": torch.sub, "mul": torch.mul,
    "maximum": torch.maximum, "minimum": torch.minimum, "pow": torch.pow,
    "and": torch.logical_and, "or": torch.logical_or, "select": torch.where,
    "cast": lambda x: x,
}.items():
    _SEMANTICS[_name] = _pointwise(_function)


@_semantics("div")
def _div(op, inputs):
    a, b = map(_unexpanded, inputs)
    mode = None if a.is_floating_point() else "trunc"
    return torch.div(a, b, rounding_mode=mode).expand(op.results[0].shape)


_COMPARE = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le,
            "gt": torch.gt, "ge": torch.ge}


@_semantics("compare")
def _compare(op, inputs):
    return _COMPARE[op.head](*map(_unexpanded, inputs)).expand(op.results[0].shape)


@_semantics("constant")
def _constant(op, inputs):
    return op.attrs["value"]


@_semantics("iota")
def _iota(op, inputs):
    type, dim = op.results[0].type, op.attrs["dim"]
    line = torch.arange(type.shape[dim], dtype=torch.int64) + op.attrs["start"]
    shape = [1] * type.rank
    shape[dim] = -1
    return line.to(TORCH_DTYPES[type.dtype]).reshape(shape).expand(type.shape)


@_semantics("reshape")
def _reshape(op, inputs):
    return inputs[0].reshape(op.results[0].shape)


@_semantics("transpose")
def _transpose(op, inputs):
    return inputs[0].permute(op.attrs["permutation"])


@_semantics("broadcast")
def _broadcast(op, inputs):
    return inputs[0].expand(op.results[0].shape)


@_semantics("slice")
def _slice(op, inputs):
    attrs = op.attrs
    index = tuple(slice(o, o + (n - 1) * s + 1 if n else o, s) for o, n, s in
                  zip(attrs["offsets"], attrs["sizes"], attrs["strides"]))
    return inputs[0][index]


@_semantics("pad")
def _pad(op, inputs):
    attrs = op.attrs
    result = torch.full(op.results[0].shape, attrs["value"],
                        dtype=TORCH_DTYPES[op.results[0].dtype])
    index = tuple(slice(l, l + (n - 1) * (i + 1) + 1 if n else l, i + 1) for l, n, i in
                  zip(attrs["low"], inputs[0].shape, attrs["interior"]))
    result[index] = inputs[0]
    return result


@_semantics("concat")
def _concat(op, inputs):
    return torch.cat(inputs, op.attrs["dim"])


@_semantics("reduce")
def _reduce(op, inputs):
    reduction = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[op.head]
    return reduction(inputs[0], dim=op.attrs["dims"]).to(inputs[0].dtype)


@_semantics("cumulative_sum")
def _cumulative_sum(op, inputs):
    return inputs[0].cumsum(op.attrs["dim"]).to(inputs[0].dtype)


@_semantics("gather")
def _gather(op, inputs):
    x, indices = inputs
    dim, batch = op.attrs["dim"], op.attrs.get("batch", 0)
    shape = list(op.results[0].shape)
    if batch == 0:
        return x.index_select(dim, indices.reshape(-1)).reshape(shape)
    own = indices.dim() - batch
    flat = indices.reshape(*indices.shape[:batch], *[1] * (dim - batch), -1,
                           *[1] * (x.dim() - dim - 1))
    full = shape[:dim] + [flat.shape[dim]] + shape[dim + own:]
    return torch.gather(x, dim, flat.expand(full)).reshape(shape)
