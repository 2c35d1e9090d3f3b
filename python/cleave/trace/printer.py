# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Prints functions of the graph dialect in its assembly format."""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from typing import Any

import numpy as np
import torch

from .ir import TORCH_DTYPES, Argument, Function, Op, Result, TensorType, Value

#: The largest number of booleans that are written as words; more are written as their bits.
WRITTEN_OUT = 1024

_WORDS = {"f64": ("<d", 16), "f32": ("<f", 8)}


def quote(text: str) -> str:
    """Returns an MLIR string literal."""
    out = []
    for byte in text.encode():
        plain = 0x20 <= byte < 0x7F and byte not in (0x22, 0x5C)
        out.append(chr(byte) if plain else f"\\{byte:02X}")
    return '"' + "".join(out) + '"'


def number(value: Any, dtype: str) -> str:
    """Returns an element of a dense literal of `dtype`; floats are exact."""
    if dtype == "i1":
        return "true" if value else "false"
    if dtype.startswith("i"):
        return str(int(value))
    value = float(value)
    if math.isfinite(value):
        return _decimal(value)
    if dtype in _WORDS:
        layout, digits = _WORDS[dtype]
        word = int.from_bytes(struct.pack(layout, value), "little")
    else:
        kind = TORCH_DTYPES[dtype]
        bits = torch.tensor([value], dtype=kind).view(torch.uint8).tolist()
        word = int.from_bytes(bits, "little")
        digits = 2 * kind.itemsize
    return f"0x{word:0{digits}X}"


def _decimal(value: float) -> str:
    text = repr(value)
    if "e" in text:
        mantissa, exponent = text.split("e")
        return (mantissa if "." in mantissa else mantissa + ".0") + "e" + exponent
    return text


def shortest_decimal(scalar: torch.Tensor) -> float:
    """Returns the shortest decimal that rounds to a number of its type, from which the compiler
    takes what a person wrote."""
    value = scalar.item()
    for digits in range(17):
        decimal = float(f"{value:.{digits}e}")
        if torch.tensor(decimal, dtype=scalar.dtype).item() == value:
            return decimal
    return value


def dense(tensor: torch.Tensor, type: TensorType) -> str:
    """Returns a dense literal with its type; a splat if all elements are equal."""
    flat = tensor.detach().reshape(-1)
    if flat.dtype.itemsize == 1 and flat.is_floating_point():
        flat = flat.float()  # torch compares no signs in 8 bits
    if flat.numel() and bool(((flat == flat[0]) & (flat.signbit() == flat[0].signbit())).all()):
        return f"dense<{number(flat[0].item(), type.dtype)}> : {type}"

    if type.dtype == "i1" and flat.numel() > WRITTEN_OUT:
        bits = np.packbits(flat.cpu().numpy(), bitorder="little").tobytes()
        return f'dense<"0x{bits.hex().upper()}"> : {type}'

    def nested(x: torch.Tensor) -> str:
        if x.dim() == 0:
            return number(x.item(), type.dtype)
        return "[" + ", ".join(nested(row) for row in x) + "]"

    return f"dense<{nested(tensor.detach()) if flat.numel() else ''}> : {type}"


@dataclasses.dataclass
class Dense:
    """The value of a dense attribute."""

    tensor: torch.Tensor
    type: TensorType


def attribute(value: Any) -> str:
    """Returns an MLIR attribute. Raises TypeError for Python types without an attribute."""
    if isinstance(value, Dense):
        return dense(value.tensor, value.type)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float):
        return f"{number(value, 'f64')} : f64"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], str):
            return "[" + ", ".join(map(quote, value)) + "]"
        return "array<i64" + (": " + ", ".join(map(str, value)) if value else "") + ">"
    raise TypeError(f"no attribute holds {value!r}")


def _dictionary(attrs: dict[str, Any]) -> str:
    parts = [k if v is True else f"{k} = {attribute(v)}" for k, v in attrs.items()]
    return "{" + ", ".join(parts) + "}"


class Printer:
    """Prints the functions of one module, and the locations that they use.

    An op without a line of Python code gets no location, so that the parser uses its place in the
    text, which becomes a file. With `named`, for text that is not written to a file, the names of
    arguments are their locations, and ops without a line have an unknown location.
    """

    def __init__(self, named: bool = False) -> None:
        self.named = named
        #: Names of the model's buffers that no entry reads.
        self.unread: list[str] = []
        #: Why the model has no loss in evaluation mode; "" if it has one.
        self.unevaluated = ""
        self._locations: dict[tuple[Any, int | None], str] = {}
        self._functions: list[str] = []

    def add(self, function: Function) -> None:
        self._functions.append(_FunctionPrinter(self, function).text())

    def location(self, location: tuple[str, int, int] | None,
                 checkpoint: int | None = None) -> str:
        """Returns the location of an op, which includes its checkpoint region."""
        if location is None and checkpoint is None:
            return self.unknown()
        key = location, checkpoint
        alias = self._locations.setdefault(key, f"#loc{len(self._locations) + 1}")
        return f" loc({alias})"

    def unknown(self) -> str:
        return " loc(unknown)" if self.named else ""

    def argument(self, name: str) -> str:
        return f" loc({quote(name)})" if self.named else ""

    def text(self) -> str:
        """Returns the text of the module."""
        found = {"graph.unread": self.unread, "graph.unevaluated": self.unevaluated}
        attrs = {name: value for name, value in found.items() if value}
        head = f"module attributes {_dictionary(attrs)} {{" if attrs else "module {"
        lines = [head, *self._functions, "}" + self.unknown()]
        for (place, checkpoint), alias in self._locations.items():
            text = "unknown" if place is None else f"{quote(place[0])}:{place[1]}:{place[2]}"
            if checkpoint is not None:
                text = f'"graph.checkpoint {checkpoint}"({text})'
            lines.append(f"{alias} = loc({text})")
        return "\n".join(lines) + "\n"


class _FunctionPrinter:
    """Prints one function; results are numbered, and arguments keep their names."""

    def __init__(self, printer: Printer, function: Function):
        self.printer = printer
        self.function = function
        self.names: dict[int, str] = {}

    def text(self) -> str:
        taken: set[str] = set()
        arguments = []
        for argument in self.function.arguments:
            name = self._argument_name(argument.name, taken)
            self.names[id(argument.value)] = name
            arguments.append(f"    {name}: {argument.value.type} "
                             f"{_dictionary(_argument_attrs(argument))}"
                             f"{self.printer.argument(argument.name)}")
        results = [f"{r.value.type} {_dictionary(_result_attrs(r))}"
                   for r in self.function.results]
        lines = [f"  func.func @{self.function.name}(", ",\n".join(arguments) +
                 ") -> (" + ", ".join(results) + ") {"]
        for number, op in enumerate(self.function.ops):
            lines.append("    " + self._op(op, f"%{number}") +
                         self.printer.location(op.location, op.origin.checkpoint))
        for check in self.function.checks:
            lines.append(f"    graph.check {self._use(check.value)}, {quote(check.message)} : "
                         f"{check.value.type}{self.printer.location(check.location)}")
        values = [r.value for r in self.function.results]
        lines.append("    return " + ", ".join(map(self._use, values)) + " : " +
                     ", ".join(str(v.type) for v in values) + self.printer.unknown())
        lines.append("  }" + self.printer.unknown())
        return "\n".join(lines)

    @staticmethod
    def _argument_name(name: str, taken: set[str]) -> str:
        base = re.sub(r"[^A-Za-z0-9_$.-]", "_", name)
        if not base or not (base[0].isalpha() or base[0] in "_$.-"):
            base = "_" + base
        unique, count = base, 0
        while unique in taken:
            count += 1
            unique = f"{base}_{count}"
        taken.add(unique)
        return "%" + unique

    def _use(self, value: Value) -> str:
        return self.names[id(value)]

    def _op(self, op: Op, name: str) -> str:
        several = len(op.results) > 1
        for i, result in enumerate(op.results):
            self.names[id(result)] = f"{name}#{i}" if several else name
        left = f"{name}:{len(op.results)}" if several else name
        text = f"{left} = graph.{op.name}"
        if op.name == "constant":
            type = op.results[0].type
            meant = op.attrs.get("number")
            if meant is None or meant == shortest_decimal(op.attrs["value"]):
                return f"{text} {dense(op.attrs['value'], type)}"
            # The number before it was rounded, which another one may be computed from.
            place = self.printer.location(op.location, op.origin.checkpoint)
            return (f"%f64${name[1:]} = graph.constant dense<{number(meant, 'f64')}> : tensor<f64>{place}\n"
                    f"    {name} = graph.cast %f64${name[1:]} : (tensor<f64>) -> {type}")
        if op.head:
            text += " " + op.head
        if op.operands:
            text += " " + ", ".join(map(self._use, op.operands))
        for keyword, value in op.keywords.items():
            text += f" {keyword} {self._use(value)}"
        attrs = dict(op.attrs)
        if op.origin.precision:
            attrs["graph.precision"] = op.origin.precision
        if attrs:
            text += " " + _dictionary(attrs)
        if op.name == "iota":
            return f"{text} : {op.results[0].type}"
        inputs = ", ".join(str(v.type) for v in op.inputs())
        outputs = ", ".join(str(v.type) for v in op.results)
        return f"{text} : ({inputs}) -> " + (f"({outputs})" if several else outputs)


def _argument_attrs(argument: Argument) -> dict[str, Any]:
    attrs: dict[str, Any] = {"graph.name": argument.name, "graph.role": argument.role}
    if argument.aliases:
        attrs["graph.aliases"] = list(argument.aliases)
    if argument.frozen:
        attrs["graph.frozen"] = True
    if argument.stacked:
        attrs["graph.stacked"] = True
    if argument.batch_dim is not None:
        attrs["graph.batch_dim"] = argument.batch_dim
    if not argument.persistent:
        attrs["graph.transient"] = True
    if argument.content is not None:
        attrs["graph.value"] = Dense(argument.content, argument.value.type)
    return attrs


def _result_attrs(result: Result) -> dict[str, Any]:
    if result.updates:
        return {"graph.updates": result.name}
    attrs: dict[str, Any] = {"graph.name": result.name}
    if result.batch_dim is not None:
        attrs["graph.batch_dim"] = result.batch_dim
    return attrs
