# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Builds a model twice at once: as a module of text, and in PyTorch in f64.

A :class:`Draw` draws random values that are both an SSA value and a tensor;
:meth:`Draw.op` appends one op to the module and computes the same in PyTorch. Observed
values are added, with random weights, to the loss.
"""

import math

import numpy as np
import torch

_ELEMENT = {
    torch.float64: "f64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.bool: "i1",
}


class Value:
    """One value: its name in the module, and the corresponding tensor."""

    def __init__(self, name, tensor):
        self.name = name
        self.tensor = tensor

    @property
    def type(self):
        return tensor_type(self.tensor)


def tensor_type(tensor):
    dims = "".join(f"{size}x" for size in tensor.shape)
    return f"tensor<{dims}{_ELEMENT[tensor.dtype]}>"


def attribute(value):
    """A Python value as an attribute: integers are i64, lists arrays of them."""
    if isinstance(value, str):  # a string, or a whole attribute after '!'
        return value[1:] if value.startswith("!") else f'"{value}"'
    if isinstance(value, bool):
        return "unit" if value else None
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float):
        return f"{value:.17e} : f64"
    if value is None:
        return None
    return "array<i64" + (": " if len(value) else "") + ", ".join(map(str, value)) + ">"


def dense(tensor):
    """A tensor as a constant's value."""
    numbers = tensor.detach().numpy()

    def text(x):
        if numbers.ndim == 0 or not isinstance(x, np.ndarray):
            if tensor.dtype == torch.bool:
                return "true" if x else "false"
            return str(int(x)) if not tensor.is_floating_point() else f"{float(x):.17e}"
        return "[" + ", ".join(text(y) for y in x) + "]"

    return f"dense<{text(numbers if numbers.ndim else numbers[()])}> : {tensor_type(tensor)}"


class Draw:
    """One randomly drawn model."""

    def __init__(self, seed, prefix=""):
        self.rng = np.random.default_rng(seed)
        self.prefix = prefix
        self.arguments = []  # (Value, attributes)
        self.lines = []
        self.loss = None
        self.count = 0

    # Random numbers

    def integer(self, low, high):
        """An integer from ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def flag(self, probability=0.5):
        return bool(self.rng.random() < probability)

    def choice(self, options):
        return options[self.integer(0, len(options) - 1)]

    def shape(self, low=0, high=4, largest=5):
        return [self.integer(1, largest) for _ in range(self.integer(low, high))]

    def normal(self, shape):
        return torch.tensor(self.rng.standard_normal(tuple(shape)))

    def uniform(self, shape, low, high):
        return torch.tensor(self.rng.uniform(low, high, tuple(shape)))

    def integers(self, shape, low, high, dtype=torch.int64):
        return torch.tensor(self.rng.integers(low, high + 1, tuple(shape)), dtype=dtype)

    def broadcastable(self, shape):
        """A shape that broadcasts to ``shape``: some ones, some dims left out."""
        dims = [1 if self.flag(0.3) else size for size in shape]
        return dims[self.integer(0, len(dims)) :] if self.flag(0.4) else dims

    # Values

    def _fresh(self, tensor):
        self.count += 1
        return Value(f"%{self.prefix}v{self.count}", tensor)

    def argument(self, tensor, role):
        value = self._fresh(tensor)
        self.arguments.append((value, role))
        return value

    def param(self, data):
        """A trained parameter that holds ``data``, or normal numbers of a shape."""
        data = data if isinstance(data, torch.Tensor) else self.normal(data)
        return self.argument(data.clone().requires_grad_(), "parameter")

    def input(self, data):
        return self.argument(data, "input")

    def constant(self, data):
        value = self._fresh(data)
        self.lines.append(f"{value.name} = graph.constant {dense(data)}")
        return value

    # Ops

    def op(self, name, operands, compute, attributes=None, segments=False):
        """Appends ``graph.<name>``; ``compute`` gives its results in PyTorch.

        An operand may be None, if the op records in ``segments`` which of its operands
        are present.
        """
        present = [x for x in operands if x is not None]
        tensors = compute(*(None if x is None else x.tensor for x in operands))
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        results = [self._fresh(x) for x in tensors]
        entries = {k: attribute(v) for k, v in (attributes or {}).items()}
        if segments:
            sizes = ", ".join("0" if x is None else "1" for x in operands)
            entries["operandSegmentSizes"] = f"array<i32: {sizes}>"
        properties = ", ".join(f"{k} = {v}" for k, v in entries.items() if v is not None)
        left = ", ".join(x.name for x in results)
        self.lines.append(
            (f"{left} = " if left else "")
            + f'"graph.{name}"({", ".join(x.name for x in present)})'
            + (f" <{{{properties}}}>" if properties else "")
            + f" : ({', '.join(x.type for x in present)})"
            + f" -> ({', '.join(x.type for x in results)})"
        )
        return results[0] if len(results) == 1 else results

    def observe(self, *values):
        """Adds each value, weighted by random numbers, to the loss."""
        for value in values:
            if not value.tensor.is_floating_point():
                value = self.op("cast", [value], lambda x: x.double())
            weights = self.constant(self.normal(value.tensor.shape))
            weighted = self.op("mul", [value, weights], lambda a, b: a * b)
            rank = weighted.tensor.dim()
            total = self.op(
                "reduce",
                [weighted],
                torch.sum,
                {"kind": "!0 : i32", "dims": list(range(rank))},
            )
            if self.loss is not None:
                total = self.op("add", [self.loss, total], lambda a, b: a + b)
            self.loss = total


class Model:
    """Several draws as one module whose loss is the sum of theirs."""

    def __init__(self, draws):
        self.draws = draws

    def text(self):
        arguments, lines = [], []
        for draw in self.draws:
            for value, role in draw.arguments:
                arguments.append(
                    f'{value.name}: {value.type} {{graph.name = "{value.name[1:]}", '
                    f'graph.role = "{role}"}}'
                )
            lines += draw.lines
        losses = [draw.loss.name for draw in self.draws]
        total = losses[0]
        for i, loss in enumerate(losses[1:]):
            lines.append(f"%sum{i} = graph.add {total}, {loss} : (tensor<f64>, tensor<f64>) -> tensor<f64>")
            total = f"%sum{i}"
        names = ['{graph.name = "loss"}'] + [f'{{graph.name = "{d.prefix}value"}}' for d in self.draws]
        results = ", ".join(f"tensor<f64> {name}" for name in names)
        body = "\n  ".join(
            [*lines, f"return {', '.join([total, *losses])} : " + ", ".join(["tensor<f64>"] * len(names))]
        )
        return f"func.func @loss({', '.join(arguments)})\n    -> ({results}) {{\n  {body}\n}}\n"

    def inputs(self):
        return {
            value.name[1:]: value.tensor.detach().numpy()
            for draw in self.draws
            for value, _ in draw.arguments
        }

    def expected(self):
        """The loss of each draw, and the gradient of each parameter."""
        gradients = {}
        for draw in self.draws:
            leaves = [v for v, role in draw.arguments if role == "parameter"]
            found = (
                torch.autograd.grad(draw.loss.tensor, [v.tensor for v in leaves], allow_unused=True)
                if draw.loss.tensor.requires_grad
                else [None] * len(leaves)
            )
            for value, gradient in zip(leaves, found):
                if gradient is None:
                    gradient = torch.zeros_like(value.tensor)
                gradients[value.name[1:]] = gradient.numpy()
        values = {f"{d.prefix}value": d.loss.tensor.detach().numpy() for d in self.draws}
        return values, gradients


def relative_error(actual, expected, floor=0.0):
    """The norm of the difference, in units of the expected norm, ``floor`` or 1e-6.

    NaN if the shapes differ or any element is NaN.
    """
    if actual.shape != expected.shape:
        return math.nan
    norm = float(np.linalg.norm(expected.astype(np.float64).ravel()))
    error = float(np.linalg.norm((actual - expected).astype(np.float64).ravel()))
    return error / max(norm, floor, 1e-6)
