# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Compares a traced module with PyTorch in double precision."""

import copy
import functools
import re

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cleave.trace
from cleave.testing.tools import interpret, optimize


class AllDouble(TorchDispatchMode):
    """Computes in f64 what a model asks to be computed in f32."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        if function is torch.ops.aten._grouped_mm.default and args[0].dtype is torch.float64:
            return _grouped_mm(*args, **kwargs)
        return function(*args, **kwargs)


def _grouped_mm(a, b, offs=None, bias=None, out_dtype=None):
    """What torch._grouped_mm, which takes no f64, computes in f32: a product for each group
    of rows of `a`, of columns of `b`, or of what is summed; `offs` are the ends of groups."""
    assert bias is None and out_dtype in (None, torch.float64, torch.float32)
    if offs is None:
        return a @ b
    ends = offs.tolist()
    parts = [slice(start, end) for start, end in zip([0, *ends], ends)]
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, part] @ b[part] for part in parts])
    if b.dim() == 3:
        rows = [a[part] @ matrix for part, matrix in zip(parts, b)]
        return torch.cat([*rows, a.new_zeros(a.shape[0] - ends[-1], b.shape[-1])])
    columns = [matrix @ b[:, part] for part, matrix in zip(parts, a)]
    return torch.cat([*columns, a.new_zeros(a.shape[1], b.shape[1] - ends[-1])], dim=1)


def doubled(inputs):
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def in_double(module, call):
    """`call(copy of module in f64)` without gradients, all in f64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), AllDouble():
            return call(copy.deepcopy(module).double())
    finally:
        torch.set_default_dtype(default)


def tensors_of(traced, inputs):
    """The inputs of the interpreter, by name."""
    values = {t.name: t.tensor.detach().numpy() for t in traced.tensors}
    values.update({k: v.numpy() for k, v in inputs.items()})
    return values


def verify(traced):
    """Parses and verifies the module; returns it as the compiler prints it."""
    return optimize(traced.mlir)


@functools.lru_cache(maxsize=8)
def model_phase(mlir):
    """The module after the phase `model`, which raises ops."""
    return optimize(mlir, "--phase-model")


def run(traced, inputs, entry="loss"):
    """The results of an entry after the phase `model` in f64, by name."""
    seed = {"rng": np.array([7, 0], dtype=np.int64)}
    module = model_phase(traced.mlir)
    body = entry_text(module, entry)
    names = set(re.findall(r'graph\.name = "([^"]*)"', body))
    values = {**tensors_of(traced, inputs), **seed}
    return interpret(module, {k: v for k, v in values.items() if k in names},
                     entry=entry)[0]


def entry_text(mlir, entry="loss"):
    """The text of one function."""
    start = mlir.index(f"func.func @{entry}(")
    return mlir[start:mlir.index("\n  }", start)]


def raised(mlir, entry="loss"):
    """The text of an entry after the phase `model`, with the names of its arguments."""
    text = entry_text(model_phase(mlir), entry)
    names = dict(re.findall(r'(%arg\d+): [^{]*\{[^}]*graph\.name = "([^"]*)"', text))
    return re.sub(r"%arg\d+", lambda found: "%" + names[found.group()], text)


def count(mlir, op, entry="loss"):
    """How often an op stands in an entry after the phase `model`."""
    return len(re.findall(rf"= graph\.{op}\b", entry_text(model_phase(mlir), entry)))


def relative(got, expected):
    expected = np.asarray(expected, dtype=np.float64)
    got = np.asarray(got, dtype=np.float64)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-300))


def check(module, inputs, loss_fn=None, *, call=None, bound=1e-9, logits=True):
    """Traces, verifies and compares loss and logits with PyTorch in f64.

    `inputs` is a dict; `call(module, **inputs)` gives (loss, logits), by
    default those of an object with these fields, or of a model with `loss_fn`,
    whose last input is the target. Returns the traced model.
    """
    traced = cleave.trace.trace(module, inputs, loss_fn)
    verify(traced)

    def default(model, **values):
        if loss_fn is not None:
            *_, target = values.popitem()
            predicted = model(**values)
            return loss_fn(predicted, target), predicted
        # The reading of packed positions depends on there being no cache.
        output = model(**values, use_cache=False) if hasattr(model.config, "use_cache") \
            else model(**values)
        return output.loss, output.logits

    call = call or default
    # In training mode for the loss (dropout is 0), in evaluation mode for logits.
    loss = in_double(module.train(), lambda m: call(m, **doubled(inputs))[0])
    assert relative(run(traced, inputs)["loss"], loss) <= bound
    if logits:
        expected = in_double(module.eval(), lambda m: call(m, **doubled(inputs))[1])
        assert relative(run(traced, inputs, "logits")["logits"], expected) <= bound
    return traced


def text_in_double(text):
    """A module with f64 in the place of f32; what attributes say of types stays."""
    return re.sub(r'(?<!")\bf32\b|(?<=x)f32\b', "f64", text)
