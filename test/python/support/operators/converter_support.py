# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Values and gradients of functions of tensors, by native code, the interpreter and PyTorch."""

import contextlib
import warnings

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import cleave
import cleave.trace
from cleave.testing.tools import interpret, optimize
from cleave.trace import convert, registry
from cleave.compiler.entrance import grouped


class Cases(torch.nn.Module):
    """The sum of `function(tensors) * weight` over cases: the gradient of a weight is
    the value of the function, that of a tensor its gradient under this weight."""

    def __init__(self, cases):
        super().__init__()
        self.cases = cases
        self.tensors = torch.nn.ParameterDict()
        self.weights = torch.nn.ParameterDict()
        for i, case in enumerate(cases.values()):
            for j, value in enumerate(case.values):
                self.tensors[f"{i}_{j}"] = torch.nn.Parameter(value.clone())
            with torch.no_grad():
                shape = case.function(*case.values).shape
            drawn = torch.randn(shape, generator=torch.Generator().manual_seed(i),
                                dtype=torch.float32)
            self.weights[str(i)] = torch.nn.Parameter(drawn)

    def results(self):
        for i, case in enumerate(self.cases.values()):
            tensors = [self.tensors[f"{i}_{j}"] for j in range(len(case.values))]
            yield case.function(*tensors).to(self.weights[str(i)].dtype), self.weights[str(i)]

    def forward(self, x):
        return sum((value * weight).sum() for value, weight in self.results()) + 0 * x.sum()


EXAMPLE = (torch.zeros(2, 1),)


def expected(cases, dtype=torch.float32):
    """The gradient of each parameter, by PyTorch."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        module = Cases(cases).to(dtype)
        # The fused kernel's gradients are wrong where a row's scores are all huge.
        with sdpa_kernel(SDPBackend.MATH):
            # One at a time: a NaN of one case does not reach another by their sum.
            for value, weight in module.results():
                if (value * weight).requires_grad:
                    (value * weight).sum().backward()
    finally:
        torch.set_default_dtype(default)
    return {name: torch.zeros_like(p) if p.grad is None else p.grad
            for name, p in module.named_parameters()}


def native(cases, **options):
    """The same by native code."""
    module = Cases(cases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Some cases have results that are not finite.
        step = cleave.compile(module, EXAMPLE, optimizer=cleave.SGD(lr=1.0, momentum=0.5),
                              **grouped(threads=1, check_finite=False, **options))
        step(*EXAMPLE)
    slots = step.training_state()["optimizer"]
    return {name: next(iter(slots[name].values())) if name in slots else torch.zeros_like(p)
            for name, p in module.named_parameters()}


def interpreted(cases, precision="typed"):
    """The same by the interpreter."""
    module = Cases(cases)
    traced = cleave.trace.trace(module, EXAMPLE)
    train = optimize(traced.mlir, "--graph-differentiate")
    inputs = {t.name: t.tensor.detach().numpy() for t in traced.tensors}
    inputs.update(x=EXAMPLE[0].numpy(), rng=np.array([7, 0]))
    inputs = {k: v for k, v in inputs.items() if f'graph.name = "{k}"' in train}
    _, gradients = interpret(train, inputs, entry="train", mode=precision)
    return {name: torch.as_tensor(np.asarray(gradients[name])) if name in gradients
            else torch.zeros_like(p) for name, p in module.named_parameters()}


def differences(cases, found):
    """A line for each case whose value or gradients are not PyTorch's: neither those that
    it computes in f32, nor those in f64, rounded."""
    single, double = expected(cases), expected(cases, torch.float64)
    lines = []
    for i, (name, case) in enumerate(cases.items()):
        parameters = {"value": f"weights.{i}",
                      **{f"gradient {j}": f"tensors.{i}_{j}" for j in range(len(case.values))}}
        for what, parameter in parameters.items():
            got = found[parameter].double().reshape(-1)
            wanted = [t[parameter].float().double().reshape(-1) for t in (single, double)]
            good = near(got, wanted[0], case) | near(got, wanted[1], case)
            if not bool(good.all()):
                at = (~good).nonzero().reshape(-1)
                points = [v.reshape(-1)[at[:4]].tolist() for v in case.values if v.numel() == got.numel()]
                lines.append(f"{name}: {what} at {at[:6].tolist()} ({len(at)} of {len(got)}) of {points}\n    "
                             f"Cleave  {got[at[:4]].tolist()}\n    PyTorch {wanted[0][at[:4]].tolist()}\n"
                             f"    in f64  {wanted[1][at[:4]].tolist()}")
    return lines


def near(got, wanted, case):
    finite = wanted[wanted.isfinite()].abs()
    scale = finite.max().item() if len(finite) else 0.0
    bound = case.ulps * (wanted.abs() * 2.0**-24 + 2.0**-149) + case.share * scale + case.floor
    return (got == wanted) | (got.isnan() & wanted.isnan()) | ((got - wanted).abs() <= bound)


@contextlib.contextmanager
def recorded():
    """The operators whose converters are called meanwhile."""
    called = set()

    def find(target):
        found = registry.converter_for(target)
        if found is not None:
            called.add(target)
        return found

    convert.converter_for = find
    try:
        yield called
    finally:
        convert.converter_for = registry.converter_for
