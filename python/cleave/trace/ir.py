# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The graph dialect as Python objects: types, values, ops, functions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Iterable, NamedTuple, Sequence

import torch

#: Element types of the dialect by torch dtype.
DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.bool: "i1",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
}
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
FLOATS = ("f64", "f32", "f16", "bf16", "f8E4M3FN", "f8E5M2")


class GraphError(Exception):
    """Raised for a computation that the graph dialect cannot express."""


class TensorType(NamedTuple):
    """A static shape, in elements, and an element type such as "f32"."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def __str__(self) -> str:
        return "tensor<" + "".join(f"{d}x" for d in self.shape) + self.dtype + ">"

    def with_shape(self, shape: Iterable[int]) -> TensorType:
        return TensorType(tuple(int(d) for d in shape), self.dtype)

    def with_dtype(self, dtype: str) -> TensorType:
        return TensorType(self.shape, dtype)


def type_of(tensor: Any) -> TensorType:
    """Returns the type of a torch tensor (or a fake one). Raises GraphError if the element type has
    no equivalent or the shape is not static."""
    if tensor.dtype not in DTYPES:
        raise GraphError(f"element type {tensor.dtype} has no equivalent; convert "
                         "the tensor to one of " + ", ".join(map(str, DTYPES)))
    for dim in tensor.shape:
        if not isinstance(dim, int):
            raise GraphError(f"shape {tuple(tensor.shape)} is not static")
    return TensorType(tuple(tensor.shape), DTYPES[tensor.dtype])


class Value:
    """An SSA value: an argument (`op` is None) or result `index` of `op`."""

    __slots__ = ("type", "op", "index", "constant", "trained")

    def __init__(self, type: TensorType, op: Op | None = None, index: int = 0,
                 constant: bool = False, trained: bool = False):
        self.type = type
        self.op = op
        self.index = index
        #: Whether it depends on no input and no parameter, and is known at trace time.
        self.constant = constant
        #: Whether it depends on a trained parameter, and may need a gradient.
        self.trained = trained

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    def is_op(self, *names: str) -> bool:
        return self.op is not None and self.op.name in names


class RandomId(int):
    """An attribute that numbers the random ops of a function, in their order."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """The place in the model that an op comes from, and the precision that the model requests."""

    #: The path of the innermost module, such as "layers.0.mlp"; empty outside of modules.
    module: str = ""
    #: The number of the region of torch.utils.checkpoint, or None.
    checkpoint: int | None = None
    #: The precision that overrides the policy of mixed precision: "f32" or "16bit".
    precision: str | None = None


class Op:
    """One operation. `head` is the text between the op's name and its operands, such as the
    predicate of a compare; `keywords` are operands that follow a keyword, such as `bias`."""

    __slots__ = ("name", "operands", "keywords", "head", "attrs", "results", "location", "origin")

    def __init__(self, name, operands, keywords, head, attrs, types, location,
                 origin: Origin = Origin()):
        self.name: str = name
        self.operands: list[Value] = list(operands)
        self.keywords: dict[str, Value] = dict(keywords)
        self.head: str = head
        self.attrs: dict[str, Any] = attrs
        self.location = location
        self.origin = origin
        known = (name != "dropout" and "rng" not in self.keywords
                 and all(v.constant for v in self.inputs()))
        trained = any(v.trained for v in self.inputs())
        self.results = [Value(t, self, i, known, trained and t.is_float)
                        for i, t in enumerate(types)]

    def inputs(self) -> list[Value]:
        """Returns all operands, with those after keywords last."""
        return self.operands + list(self.keywords.values())


@dataclasses.dataclass
class Argument:
    """A function argument: its value, and its name and role ("parameter", "buffer", "input" or
    "rng")."""

    value: Value
    name: str
    role: str
    aliases: tuple[str, ...] = ()
    frozen: bool = False
    batch_dim: int | None = None
    #: For a buffer, whether the state_dict contains it, and its elements if they are few.
    persistent: bool = True
    content: torch.Tensor | None = None
    #: For a parameter, whether it is a stack of parameters of the module.
    stacked: bool = False


@dataclasses.dataclass
class Result:
    """A named function result; with `updates`, the new value of the buffer of that name."""

    value: Value
    name: str
    batch_dim: int | None = None
    updates: bool = False


@dataclasses.dataclass
class Check:
    """A condition, without which a step stops with `message`."""

    value: Value
    message: str
    location: tuple[str, int, int] | None


@dataclasses.dataclass
class Function:
    """One entry of the module, such as `@loss`."""

    name: str
    arguments: list[Argument]
    ops: list[Op]
    results: list[Result]
    #: Lines (`file:line`) at which statistics over several samples are computed.
    batch_statistics: list[str] = dataclasses.field(default_factory=list)
    checks: list[Check] = dataclasses.field(default_factory=list)

    def prune(self) -> None:
        """Removes ops that no result and no check depends on, and then unused arguments; parameters
        and buffers that the function updates stay."""
        live = {id(x.value) for x in (*self.results, *self.checks)}
        kept = []
        for op in reversed(self.ops):
            if any(id(v) in live for v in op.results):
                kept.append(op)
                live.update(id(v) for v in op.inputs())
        self.ops = kept[::-1]
        written = {r.name for r in self.results if r.updates}
        self.arguments = [a for a in self.arguments if a.role == "parameter"
                          or id(a.value) in live or a.name in written]

    def drop_other_checks(self) -> None:
        """Removes checks of inputs that no result depends on."""
        inputs = {id(a.value) for a in self.arguments if a.role == "input"}
        read = _depends_on([r.value for r in self.results])
        self.checks = [c for c in self.checks if _depends_on([c.value]) & inputs <= read]

    def unused_parameters(self) -> set[str]:
        """Returns the names of the parameters without a use."""
        used = {id(v) for op in self.ops for v in op.inputs()}
        used.update(id(r.value) for r in self.results)
        return {a.name for a in self.arguments
                if a.role == "parameter" and id(a.value) not in used}


def _depends_on(values: Iterable[Value]) -> set[int]:
    """Returns the ids of the values that `values` depend on, including themselves."""
    found, pending = set(), [*values]
    while pending:
        value = pending.pop()
        if id(value) not in found:
            found.add(id(value))
            pending += value.op.inputs() if value.op is not None else ()
    return found


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape to which `shapes` broadcast by NumPy's rules. Raises GraphError if they do
    not broadcast."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[i] not in (1, size):
                raise GraphError("shapes " + ", ".join(map(str, shapes)) +
                                 " do not broadcast")
            if size != 1:
                result[i] = size
    return tuple(result)


def scalar_of(value: Value) -> float | int | bool | None:
    """Returns the number that all elements of a constant equal, or None."""
    while value.is_op("broadcast", "reshape", "cast"):
        inner = value.op.operands[0]
        if value.op.name == "cast" and not inner.type.is_float == value.type.is_float:
            break
        value = inner
    if value.is_op("constant") and value.op.attrs["value"].numel() == 1:
        return value.op.attrs.get("number", value.op.attrs["value"].item())
    return None
