# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs samples of operators through the front end and compares them with torch.

A sample is a model whose differentiable tensors are parameters, whose other tensors
are inputs, and whose loss is the sum of its results times cotangents. A few samples are
traced at once, by themselves where one of them is refused; many traced samples then
become one module, which is interpreted or compiled once.
"""

import dataclasses
import re
import warnings
from unittest import mock

import numpy as np
import torch

import operator_samples
from cleave.testing.tools import ToolError, interpret, optimize
from cleave.trace import TraceError, UnsupportedError, call_plan, entry, export, ir
from cleave.trace.model_tensors import ModelTensors
from cleave.trace.printer import Printer
from trace_support import AllDouble


class _Model(torch.nn.Module):
    """Samples as one model; a parameter is named after its sample and its leaf."""

    def __init__(self, samples):
        super().__init__()
        self.samples = samples
        for j, sample in enumerate(samples):
            for i, (leaf, trained) in enumerate(zip(sample.leaves, sample.trained)):
                if trained:
                    self.register_parameter(f"leaf{j}_{i}", torch.nn.Parameter(leaf))

    def forward(self, *given):
        given, losses, rows = list(given), [], []
        for j, sample in enumerate(self.samples):
            leaves = [getattr(self, f"leaf{j}_{i}") if trained else given.pop(0)
                      for i, trained in enumerate(sample.trained)]
            outputs = sample.outputs(leaves)
            cotangents = [given.pop(0) for _ in _differentiated(outputs)]
            losses.append(_loss(outputs, [*cotangents, given.pop(0)]))
            rows.append(_packed(outputs))
        return {"loss": sum(losses), "logits": torch.cat(rows) if len(rows) > 1 else rows[0]}


def _differentiated(outputs):
    return [x for x in outputs if x.is_floating_point() and x.requires_grad and x.numel()]


def _loss(outputs, cotangents):
    """The sum of the results times what they are given."""
    terms = [(x.to(w.dtype) * w).sum() for x, w in zip(_differentiated(outputs), cotangents)]
    return sum(terms) if terms else cotangents[-1].sum()


def _packed(outputs):
    """All results in one row of floats."""
    rows = [x.to(torch.get_default_dtype()).reshape(-1) for x in outputs if x.numel()]
    return torch.cat(rows) if rows else torch.zeros(1)


@dataclasses.dataclass
class Expected:
    """The result of torch."""

    #: All results in a row, and the gradient of each trained leaf.
    values: np.ndarray
    gradients: dict[int, np.ndarray]
    cotangents: list[torch.Tensor]
    #: The relative error that the types of the results allow.
    bound: float


class Rejected(Exception):
    """A sample that torch itself does not compute or differentiate."""


def expect(sample, dtype=torch.float64):
    """What torch computes for a sample, in f64 where it can and where the type does not
    matter."""
    if sample.name.rpartition("#")[0] in operator_samples.IN_SINGLE:
        dtype = torch.float32
    try:
        outputs = sample.outputs([x.clone().requires_grad_(t)
                                  for x, t in zip(sample.leaves, sample.trained)])
        if _draws(sample, outputs):
            raise Rejected("random numbers: those of torch are others")
        if any(x.is_complex() for x in outputs):
            raise Rejected("complex results")
        generator = torch.Generator().manual_seed(1)
        cotangents = [torch.rand(x.shape, generator=generator) + 0.5
                      for x in _differentiated(outputs)]
        bound = max((_BOUNDS.get(x.dtype, 0.0) for x in outputs), default=0.0)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        raise Rejected(str(error)) from None
    for kind, own in ((dtype, 1e-6), (torch.float32, 1e-4)):
        try:
            values, gradients = _compute(sample, cotangents, kind)
            return Expected(values, gradients, cotangents + [torch.zeros(1)], max(bound, own))
        except RuntimeError as error:
            failure = error
    raise Rejected(str(failure))


def _draws(sample, outputs):
    """Whether a sample draws random numbers: another seed, also than one that it sets
    itself, changes what it gives."""
    seed, seeds = torch.manual_seed, []
    with torch.random.fork_rng(devices=[]), mock.patch.object(
            torch, "manual_seed", lambda own: seed(own + 1 + len(seeds)) and seeds.append(own)):
        state = seed(11).get_state()
        again = sample.outputs([x.clone().requires_grad_(t)
                                for x, t in zip(sample.leaves, sample.trained)])
        drawn = not torch.equal(state, torch.get_rng_state())
    return drawn or bool(seeds) and not all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(outputs, again))


_BOUNDS = {torch.float16: 2e-3, torch.bfloat16: 2e-2}


def _compute(sample, cotangents, dtype):
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _typed(dtype):
            leaves = [x.to(dtype).requires_grad_(t) if x.dtype == torch.float32 else x.clone()
                      for x, t in zip(sample.leaves, sample.trained)]
            outputs = sample.outputs(leaves)
            values = _packed([x.detach() for x in outputs]).double().numpy()
            loss = _loss(outputs, [w.to(dtype) for w in cotangents] + [torch.zeros(1)])
            wanted = [i for i, t in enumerate(sample.trained) if t]
            found = [None] * len(wanted)
            if loss.requires_grad and wanted:
                found = torch.autograd.grad(loss, [leaves[i] for i in wanted], allow_unused=True)
    finally:
        torch.set_default_dtype(default)
    return values, {i: np.zeros(leaves[i].shape) if g is None else g.detach().double().numpy()
                    for i, g in zip(wanted, found)}


def _typed(dtype):
    return AllDouble() if dtype == torch.float64 else torch.enable_grad()


@dataclasses.dataclass
class Traced:
    """Samples in the graph dialect."""

    #: Each sample with what torch computes.
    members: list[tuple[object, Expected]]
    function: ir.Function
    #: Values of the arguments by name.
    arguments: dict[str, np.ndarray]


class Refused(Exception):
    """A sample that the front end refuses, with its message."""

    @property
    def clear(self):
        """Whether the message is the front end's own, and not an error of Python."""
        text = str(self)
        return bool(text) and not re.search(r"\b[A-Z]\w*(Error|Exception|NotFound)\b|defect", text)


def accepted(samples):
    """Samples that torch itself computes, with what it computes."""
    members = []
    for sample in samples:
        try:
            members.append((sample, expect(sample)))
        except Rejected:
            pass
    return members


def trace_all(members, together=8):
    """Traces samples, `together` of them at once where nothing of them is refused.
    Returns what was traced, and the `Refused` of each other sample by name."""
    traced, refused = [], {}
    for first in range(0, len(members), together):
        part = members[first:first + together]
        try:
            traced.append(trace(part))
        except Refused as error:
            if len(part) == 1:
                refused[part[0][0].name] = error
                continue
            some, others = trace_all(part, 1 if len(part) <= 2 else len(part) // 2)
            traced += some
            refused |= others
    return traced, refused


def trace(members):
    """Traces samples with what torch computes of them as one model; `Refused` where
    the front end refuses it."""
    module = _Model([sample for sample, _ in members])
    given = []
    for sample, expected in members:
        given += [x for x, t in zip(sample.leaves, sample.trained) if not t]
        given += expected.cotangents
    try:
        call = call_plan.plan_call(module, tuple(given), None)
        tensors = ModelTensors(module)
        exported = export.begin(module, call, None, ("loss", "logits"), True).finished()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function = entry.convert_entry("loss", tensors, exported, call, also=["logits"])
    except UnsupportedError as error:
        reasons = {f"{t.removesuffix('.default')}: {reason}" for t, reason, *_ in error.operators}
        raise Refused("; ".join(sorted(reasons))) from error
    except TraceError as error:
        raise Refused(plain(str(error))) from error
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {plain(str(error))}") from error
    arguments = {t.name: t.tensor for t in tensors.all()}
    arguments |= call.inputs
    return Traced(members, function,
                  {a.name: arguments[a.name].detach().numpy() for a in function.arguments
                   if a.role != "rng"})


def plain(text):
    """A message in one line, without what changes from run to run."""
    text = re.sub(r"0x[0-9a-f]+", "0x...", text)
    return " ".join(text.split())[:300]


def joined(traced, name="loss"):
    """One module that computes all of `traced`: its text and its arguments. Result 0
    is the sum of the losses, the others are the values of each sample."""
    arguments, values, results, ops, losses = [], {}, [], [], []
    generator = None
    for i, one in enumerate(traced):
        for argument in one.function.arguments:
            if argument.role == "rng":
                generator = generator or argument
                _replace(one.function.ops, argument.value, generator.value)
                continue
            own = f"s{i}.{argument.name}"
            arguments.append(dataclasses.replace(argument, name=own, batch_dim=None, aliases=()))
            values[own] = one.arguments[argument.name]
        ops += one.function.ops
        named = {r.name: r.value for r in one.function.results}
        losses.append(named["loss"])
        results.append(ir.Result(named["logits"], f"s{i}"))
    # A parameter of the loss's own, 0, and results that are no arguments: neither is a
    # matter of the samples.
    start = total = ir.Value(ir.TensorType((), "f32"), trained=True)
    arguments.append(ir.Argument(total, "start", "parameter"))
    values["start"] = np.zeros((), dtype=np.float32)
    for loss in losses:
        total = _created(ops, "add", total, loss)
    for result in results:
        result.value = _created(ops, "add", result.value, start)
    if generator:
        arguments.append(generator)
        values["rng"] = np.array([7, 0], dtype=np.int64)
    function = ir.Function(name, arguments, ops, [ir.Result(total, "loss"), *results])
    printer = Printer()
    printer.add(function)
    return printer.text(), values


def _created(ops, name, a, b):
    ops.append(ir.Op(name, [a, b], {}, "", {}, [a.type], None))
    return ops[-1].results[0]


def _replace(ops, old, new):
    for op in ops:
        op.operands = [new if v is old else v for v in op.operands]
        op.keywords = {k: new if v is old else v for k, v in op.keywords.items()}


def interpreted(traced):
    """The difference from torch of each sample, or None, by the interpreter in f64.
    A sample that the compiler does not take has its message."""
    try:
        text, values = joined(traced)
        results, gradients = interpret(optimize(text, "--graph-differentiate"), values, entry="train")
    except ToolError as error:
        if len(traced) > 1:
            half = len(traced) // 2
            return {**interpreted(traced[:half]), **interpreted(traced[half:])}
        members = traced[0].members
        if len(members) > 1:
            return interpreted([trace([member]) for member in members])
        return {members[0][0].name: "the compiler: " + plain(error.stderr)}
    return {sample.name: difference(expected, *own)
            for sample, expected, *own in apart(traced, results, gradients)}


def apart(traced, results, gradients):
    """(sample, expected, its values, its gradients by leaf) of what was joined."""
    for i, one in enumerate(traced):
        row, start = np.asarray(results[f"s{i}"]).reshape(-1), 0
        for j, (sample, expected) in enumerate(one.members):
            end = start + expected.values.size
            prefix = f"s{i}.leaf{j}_"
            yield sample, expected, row[start:end], {
                int(k.removeprefix(prefix)): v for k, v in gradients.items() if k.startswith(prefix)}
            start = end


def difference(expected, values, gradients):
    """What differs from torch beyond rounding; None where nothing does."""
    error = distance(values, expected.values)
    if error > expected.bound:
        return f"value: {error:.2g}: {_shown(values)}, torch {_shown(expected.values)}"
    # A gradient that is 0 but for rounding is compared with the cotangents, about 1.
    for i, wanted in expected.gradients.items():
        got = gradients.get(i, np.zeros(wanted.shape))
        error = distance(got, wanted, 0.1)
        if error > expected.bound * 10:
            return f"gradient of {i}: {error:.2g}: {_shown(got)}, torch {_shown(wanted)}"
    return None


def _shown(x):
    flat = [f"{v:.6g}" for v in np.asarray(x, dtype=np.float64).reshape(-1)[:12]]
    return "[" + ", ".join(flat) + "]"


def distance(got, expected, least=1e-30):
    """The largest error, relative to the largest finite number expected; infinite
    where what is not finite differs."""
    got, expected = np.asarray(got, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    if got.size != expected.size:
        return float("inf")
    got = got.reshape(expected.shape)
    finite = np.isfinite(expected)
    if not (np.isfinite(got) == finite).all():
        return float("inf")
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(np.abs(expected[finite]).max(), least)
    return float(np.abs(got[finite] - expected[finite]).max() / scale)
