# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Builds ops of the graph dialect and infers their result types.

The builder folds trivial ops (a cast to the same type, a reshape to the same shape, adding zero)
and merges equal ops, so that patterns match one form of equal computations.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Sequence

import torch

from .ir import (FLOATS, TORCH_DTYPES, GraphError, Op, Origin, TensorType, Value, broadcast_shapes,
                 scalar_of, type_of)


class Builder:
    """Appends ops to a list and returns their results."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        #: Location of the ops built next: (file, line, column) or None.
        self.location: tuple[str, int, int] | None = None
        #: The origin of the ops built next.
        self.origin = Origin()
        self._known: dict[Any, Op] = {}

    # Creation ---------------------------------------------------------------

    def create(self, name: str, operands: Sequence[Value], types: Sequence[TensorType],
               *, head: str = "", keywords: dict[str, Value] | None = None,
               attrs: dict[str, Any] | None = None) -> list[Value]:
        """Builds an op, or finds an equal one built before; returns its results."""
        keywords = {k: v for k, v in (keywords or {}).items() if v is not None}
        attrs = attrs or {}
        key = (name, head, tuple(id(v) for v in operands),
               tuple((k, id(v)) for k, v in keywords.items()),
               tuple((k, _hashable(v)) for k, v in attrs.items()), tuple(types))
        op = self._known.get(key)
        if op is None:
            op = Op(name, operands, keywords, head, attrs, types, self.location, self.origin)
            self.append(op)
            self._known[key] = op
        elif self.origin.precision and not op.origin.precision:
            op.origin = dataclasses.replace(op.origin, precision=self.origin.precision)
        return op.results

    def append(self, op: Op) -> None:
        """Appends an op that is not merged with equal ones."""
        self.ops.append(op)

    # Constants --------------------------------------------------------------

    def constant(self, tensor: torch.Tensor) -> Value:
        """Returns a constant with the elements of `tensor`."""
        return self.create("constant", [], [type_of(tensor)], attrs={"value": tensor})[0]

    def scalar(self, value: float | int | bool, dtype: str) -> Value:
        """Returns a constant of rank 0; `scalar_of` gives `value` before rounding to `dtype`."""
        tensor = torch.tensor(value, dtype=TORCH_DTYPES[dtype])
        attrs: dict[str, Any] = {"value": tensor}
        if dtype in FLOATS and dtype != "f64" and tensor.item() != value:
            attrs["number"] = float(value)
        return self.create("constant", [], [type_of(tensor)], attrs=attrs)[0]

    def full(self, value: float | int | bool, type: TensorType) -> Value:
        return self.broadcast(self.scalar(value, type.dtype), type.shape)

    def iota(self, type: TensorType, dim: int, start: int = 0) -> Value:
        return self.create("iota", [], [type], attrs={"dim": dim, "start": start})[0]

    # Element-wise -----------------------------------------------------------

    def unary(self, name: str, x: Value, **attrs: Any) -> Value:
        if name == "not" and x.is_op("not"):
            return x.op.operands[0]
        return self.create(name, [x], [x.type], attrs=attrs)[0]

    def cast(self, x: Value, dtype: str) -> Value:
        if x.dtype == dtype:
            return x
        if x.is_op("constant") and x.type.rank == 0:
            if dtype in FLOATS and x.type.is_float:
                return self.scalar(x.op.attrs.get("number", x.op.attrs["value"].item()), dtype)
            return self.constant(x.op.attrs["value"].to(TORCH_DTYPES[dtype]))
        return self.create("cast", [x], [x.type.with_dtype(dtype)])[0]

    def binary(self, name: str, a: Value, b: Value) -> Value:
        shape = broadcast_shapes(a.shape, b.shape)
        a, b = self._unbroadcast([a, b], shape)
        for x, y, commuted in ((a, b, False), (b, a, True)):
            if x.shape != shape or (commuted and name in ("sub", "div", "rem", "pow")):
                continue
            number = scalar_of(y)
            if number is not None and (
                    (name in ("add", "sub") and number == 0 and not isinstance(number, bool))
                    or (name in ("mul", "div") and number == 1)
                    or (name == "and" and number is True)
                    or (name == "or" and number is False)
                    or (name == "pow" and number == 1)):
                return x
        return self.create(name, [a, b], [TensorType(shape, a.dtype)])[0]

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        shape = broadcast_shapes(a.shape, b.shape)
        a, b = self._unbroadcast([a, b], shape)
        return self.create("compare", [a, b], [TensorType(shape, "i1")], head=predicate)[0]

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        shape = broadcast_shapes(condition.shape, a.shape, b.shape)
        condition, a, b = self._unbroadcast([condition, a, b], shape)
        if scalar_of(condition) is True and a.shape == shape:
            return a
        return self.create("select", [condition, a, b], [TensorType(shape, a.dtype)])[0]

    def _unbroadcast(self, values: list[Value], shape: tuple[int, ...]) -> list[Value]:
        """Removes broadcasts that are implicit in the consumer, whose result has `shape`."""
        values = list(values)
        for i, value in enumerate(values):
            while value.is_op("broadcast"):
                inner = value.op.operands[0]
                others = [v.shape for j, v in enumerate(values) if j != i]
                if broadcast_shapes(inner.shape, *others) != shape:
                    break
                value = values[i] = inner
        return values

    def dropout(self, x: Value, rng: Value, probability: float, id: int) -> Value:
        return self.create("dropout", [x, rng], [x.type],
                           attrs={"probability": float(probability), "id": id})[0]

    def uniform(self, type: TensorType, rng: Value, id: int) -> Value:
        return self.create("uniform", [rng], [type], attrs={"id": id})[0]

    # Shapes -----------------------------------------------------------------

    def reduce(self, kind: str, x: Value, dims: Sequence[int]) -> Value:
        dims = sorted(d % x.type.rank for d in dims) if x.type.rank else []
        if not dims:
            return x
        shape = [s for i, s in enumerate(x.shape) if i not in dims]
        if kind == "sum" and not x.type.elements:
            return self.full(0, x.type.with_shape(shape))
        return self.create("reduce", [x], [x.type.with_shape(shape)], head=kind,
                           attrs={"dims": dims})[0]

    def cumulative_sum(self, x: Value, dim: int) -> Value:
        return self.create("cumulative_sum", [x], [x.type], attrs={"dim": dim % x.type.rank})[0]

    def linear_scan(self, factor: Value, x: Value, dim: int, reverse: bool = False) -> Value:
        """Returns the states of `state = factor * state + x` along `dim`, from zero."""
        attrs = {"dim": dim % x.type.rank, **({"reverse": True} if reverse else {})}
        return self.create("linear_scan", [factor, x], [x.type], attrs=attrs)[0]

    def top_k(self, x: Value, k: int) -> tuple[Value, Value]:
        """Returns values and i64 indices of the k largest elements of the last dimension."""
        shape = x.shape[:-1] + (k,)
        types = [x.type.with_shape(shape), TensorType(shape, "i64")]
        return tuple(self.create("top_k", [x], types, attrs={"k": k}))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if math.prod(shape) != x.type.elements:
            raise GraphError(f"cannot reshape {x.type} to {shape}")
        while x.is_op("reshape"):
            x = x.op.operands[0]
        if x.shape == shape:
            return x
        return self.create("reshape", [x], [x.type.with_shape(shape)])[0]

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        permutation = [d % x.type.rank for d in permutation]
        if x.is_op("transpose"):
            inner = x.op.attrs["permutation"]
            permutation = [inner[d] for d in permutation]
            x = x.op.operands[0]
        if permutation == list(range(x.type.rank)):
            return x
        return self.create("transpose", [x],
                           [x.type.with_shape(x.shape[d] for d in permutation)],
                           attrs={"permutation": permutation})[0]

    def swap(self, x: Value, a: int, b: int) -> Value:
        permutation = list(range(x.type.rank))
        if permutation:
            permutation[a], permutation[b] = permutation[b], permutation[a]
        return self.transpose(x, permutation)

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        while x.is_op("broadcast"):
            x = x.op.operands[0]
        if x.shape == shape:
            return x
        if broadcast_shapes(x.shape, shape) != shape:
            raise GraphError(f"cannot broadcast {x.type} to {shape}")
        return self.create("broadcast", [x], [x.type.with_shape(shape)])[0]

    def slice(self, x: Value, offsets: Sequence[int], sizes: Sequence[int],
              strides: Sequence[int] | None = None) -> Value:
        strides = list(strides or [1] * x.type.rank)
        if tuple(sizes) == x.shape:
            return x
        return self.create("slice", [x], [x.type.with_shape(sizes)],
                           attrs={"offsets": list(offsets), "sizes": list(sizes),
                                  "strides": strides})[0]

    def narrow(self, x: Value, dim: int, start: int, size: int, step: int = 1) -> Value:
        """Returns the elements start, start + step, ... (`size` of them) along `dim`."""
        dim %= x.type.rank
        offsets, sizes, strides = [0] * x.type.rank, list(x.shape), [1] * x.type.rank
        offsets[dim], sizes[dim], strides[dim] = start, size, step
        return self.slice(x, offsets, sizes, strides)

    def pad(self, x: Value, value: float, low: Sequence[int], high: Sequence[int],
            interior: Sequence[int] | None = None) -> Value:
        interior = list(interior or [0] * x.type.rank)
        if not any(low) and not any(high) and not any(interior):
            return x
        shape = [l + h + (0 if s == 0 else (s - 1) * (i + 1) + 1)
                 for l, h, s, i in zip(low, high, x.shape, interior)]
        return self.create("pad", [x], [x.type.with_shape(shape)],
                           attrs={"value": float(value), "low": list(low),
                                  "high": list(high), "interior": interior})[0]

    def concat(self, values: Sequence[Value], dim: int) -> Value:
        if len(values) == 1:
            return values[0]
        dim %= values[0].type.rank
        whole = _sliced_in_order(values, dim)
        if whole is not None:
            return whole
        shape = list(values[0].shape)
        shape[dim] = sum(v.shape[dim] for v in values)
        return self.create("concat", values, [values[0].type.with_shape(shape)],
                           attrs={"dim": dim})[0]

    def gather(self, x: Value, indices: Value, dim: int,
               padding_index: int | None = None, batch: int = 0) -> Value:
        dim %= x.type.rank
        shape = x.shape[:dim] + indices.shape[batch:] + x.shape[dim + 1:]
        attrs = {"dim": dim}
        if batch:
            attrs["batch"] = batch
        if padding_index is not None:
            attrs["padding_index"] = padding_index
        return self.create("gather", [x, indices], [x.type.with_shape(shape)], attrs=attrs)[0]

    def scatter_add(self, updates: Value, indices: Value, dim: int, size: int,
                    batch: int = 0) -> Value:
        dim %= updates.type.rank
        shape = updates.shape[:dim] + (size,) + updates.shape[dim + indices.type.rank - batch:]
        attrs = {"dim": dim, "size": size}
        if batch:
            attrs["batch"] = batch
        return self.create("scatter_add", [updates, indices], [updates.type.with_shape(shape)],
                           attrs=attrs)[0]

    def patches(self, x: Value, kernel, stride, padding, dilation) -> Value:
        sizes = [(x.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1)
                 // stride[i] + 1 for i in range(2)]
        shape = (x.shape[0], *sizes, x.shape[1], *kernel)
        if {*kernel, *stride} == {1} and not any(padding):
            # Each window is one place.
            return self.reshape(self.transpose(x, (0, 2, 3, 1)), shape)
        return self.create("patches", [x], [x.type.with_shape(shape)],
                           attrs={"kernel": list(kernel), "stride": list(stride),
                                  "padding": list(padding), "dilation": list(dilation)})[0]

    # Contractions and neural ops ---------------------------------------------

    def contract(self, equation: str, a: Value, b: Value) -> Value:
        """Returns a contraction of two operands in einsum form; transposes of the operands are
        folded into the equation. One that sums nothing is an element-wise product."""
        inputs, output = equation.split("->")
        left, right = inputs.split(",")
        sizes = dict(zip(left + right, a.shape + b.shape))
        if not a.type.elements or not b.type.elements:
            return self.full(0, a.type.with_shape(sizes[c] for c in output))
        if all(c in output or sizes[c] == 1 for c in sizes):
            return self.binary("mul", self._aligned(a, left, output),
                               self._aligned(b, right, output))
        a, left = _fold_transpose(a, left)
        b, right = _fold_transpose(b, right)
        return self.create("contract", [a, b],
                           [a.type.with_shape(sizes[c] for c in output)],
                           head=f'"{left},{right}->{output}"')[0]

    def _aligned(self, x: Value, letters: str, output: str) -> Value:
        """Returns `x` with a dimension for each letter of `output`, 1 for those it lacks."""
        kept = [l for l in output if l in letters]
        x = self.transpose(x, [letters.index(l) for l in (*kept, *sorted(set(letters) - set(kept)))])
        sizes = dict(zip(kept, x.shape))
        return self.reshape(x, [sizes.get(l, 1) for l in output])

    def linear(self, x: Value, weight: Value, bias: Value | None = None) -> Value:
        return self.create("linear", [x, weight],
                           [x.type.with_shape(x.shape[:-1] + weight.shape[:1])],
                           keywords={"bias": bias})[0]

    def grouped_linear(self, rows: Value, weight: Value, groups: Value,
                       transpose: bool = False) -> Value:
        """Returns each row [..., k] times the matrix [k, m] of its group, or [m, k] if
        `transpose`."""
        if weight.is_op("transpose") and list(weight.op.attrs["permutation"]) == [0, 2, 1]:
            weight, transpose = weight.op.operands[0], not transpose
        shape = rows.shape[:-1] + (weight.shape[1 if transpose else 2],)
        return self.create("grouped_linear", [rows, weight, groups], [rows.type.with_shape(shape)],
                           attrs={"transpose": True} if transpose else {})[0]

    def grouped_linear_weight_grad(self, rows: Value, gradient: Value, groups: Value, size: int,
                                   transpose: bool = False) -> Value:
        """Returns for each group the matmul of its transposed rows and its gradients."""
        shape = (rows.shape[-1], gradient.shape[-1])
        attrs = {"size": size, "transpose": True} if transpose else {"size": size}
        return self.create("grouped_linear_weight_grad", [rows, gradient, groups],
                           [rows.type.with_shape((size, *(shape[::-1] if transpose else shape)))],
                           attrs=attrs)[0]

    def layer_norm(self, x: Value, weight, bias, epsilon: float) -> Value:
        row = _row_type(x.type)
        return self.create("layer_norm", [x], [x.type, row, row],
                           keywords={"weight": weight, "bias": bias},
                           attrs={"epsilon": float(epsilon)})[0]

    def rms_norm(self, x: Value, weight, epsilon: float) -> Value:
        return self.create("rms_norm", [x], [x.type, _row_type(x.type)],
                           keywords={"weight": weight}, attrs={"epsilon": float(epsilon)})[0]

    def softmax(self, x: Value, log: bool = False) -> Value:
        return self.create("softmax", [x], [x.type], attrs={"log": True} if log else {})[0]

    def cross_entropy(self, logits: Value, targets: Value, ignore_index: int,
                      label_smoothing: float) -> Value:
        row = _row_type(logits.type)
        return self.create("cross_entropy", [logits, targets], [row, row],
                           attrs={"ignore_index": ignore_index,
                                  "label_smoothing": float(label_smoothing)})[0]

    def rope(self, x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
        return self.create("rope", [x, cos, sin], [x.type],
                           attrs={"interleaved": True} if interleaved else {})[0]

    def attention(self, query: Value, key: Value, value: Value, *, scale: float,
                  bias=None, mask=None, segments=None, rng=None, causal=False,
                  window: int | None = None, dropout: float = 0.0,
                  dropout_id: int = 0) -> Value:
        shape = query.shape[:3] + value.shape[3:]
        attrs: dict[str, Any] = {"scale": float(scale)}
        if causal:
            attrs["causal"] = True
        if window is not None:
            attrs["window"] = window
        if dropout:
            attrs["dropout"] = float(dropout)
            attrs["dropout_id"] = dropout_id
        rows = _row_type(query.type.with_shape(shape))
        if bias is not None:  # The log-sum-exp of a biased row is stored as two numbers.
            rows = rows.with_shape((*rows.shape, 2))
        return self.create(
            "attention", [query, key, value], [query.type.with_shape(shape), rows],
            keywords={"bias": bias, "mask": mask, "segments": segments,
                      "rng": rng if dropout else None},
            attrs=attrs)[0]


def _row_type(type: TensorType) -> TensorType:
    """Returns the type of one statistic per row: at least f32, without the last dimension."""
    return TensorType(type.shape[:-1], "f64" if type.dtype == "f64" else "f32")


def _fold_transpose(x: Value, letters: str) -> tuple[Value, str]:
    """Returns the operand of a transpose and its permuted einsum letters; else `x` and
    `letters`."""
    if not x.is_op("transpose"):
        return x, letters
    source = [""] * len(letters)
    for letter, dim in zip(letters, x.op.attrs["permutation"]):
        source[dim] = letter
    return x.op.operands[0], "".join(source)


def _hashable(value: Any) -> Any:
    """Returns a hashable key that is equal for equal attributes; large tensors are compared by
    identity."""
    if isinstance(value, torch.Tensor):
        if value.numel() <= 64:
            return (str(value.dtype), tuple(value.shape), repr(value.tolist()))
        return id(value)
    if isinstance(value, list):
        return tuple(value)
    return (type(value).__name__, value)


def _sliced_in_order(values: Sequence[Value], dim: int) -> Value | None:
    """Returns the tensor of which `values` are adjacent slices that cover it in order along `dim`;
    None if there is none."""
    if not all(v.is_op("slice") for v in values):
        return None
    whole, begin = values[0].op.operands[0], 0
    for value in values:
        attrs = value.op.attrs
        offsets = [begin if d == dim else 0 for d in range(value.type.rank)]
        sizes = [value.shape[dim] if d == dim else s for d, s in enumerate(whole.shape)]
        if value.op.operands[0] is not whole or attrs["offsets"] != offsets \
                or attrs["sizes"] != sizes or any(s != 1 for s in attrs["strides"]):
            return None
        begin += value.shape[dim]
    return whole if begin == whole.shape[dim] else None
