# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Ops of one operand."""

import torch
import torch.nn.functional as F

from op_cases.registry import case


def unary(name, compute, low=-3.0, high=3.0, attributes=None):
    def draw(d):
        x = d.param(d.uniform(d.shape(), low, high))
        d.observe(d.op(name, [x], compute, attributes))

    suffix = "_tanh" if attributes else ""
    draw.__name__ = name + suffix
    case(name)(draw)


unary("neg", torch.neg)
unary("abs", torch.abs)
unary("exp", torch.exp)
unary("log", torch.log, 0.1, 4.0)
unary("expm1", torch.expm1)
unary("log1p", torch.log1p, -0.9, 4.0)
unary("sqrt", torch.sqrt, 0.1, 4.0)
unary("rsqrt", torch.rsqrt, 0.1, 4.0)
unary("sin", torch.sin)
unary("cos", torch.cos)
unary("tanh", torch.tanh)
unary("erf", torch.erf)
unary("sigmoid", torch.sigmoid)
unary("silu", F.silu)
unary("relu", torch.relu)
unary("floor", torch.floor)
unary("gelu", F.gelu)
unary("gelu", lambda x: F.gelu(x, approximate="tanh"), attributes={"tanh": True})


@case("stop_gradient")
def stop_gradient(d):
    """The gradient comes by the factor that is not stopped."""
    x = d.param(d.uniform(d.shape(), -3.0, 3.0))
    stopped = d.op("stop_gradient", [x], torch.detach)
    d.observe(d.op("mul", [stopped, d.op("exp", [x], torch.exp)], torch.mul))


@case("abs", "relu")
def kinks(d):
    """At 0 both have the gradient 0."""
    x = d.param(d.integers(d.shape(1), -1, 1).double())
    d.observe(d.op("abs", [x], torch.abs), d.op("relu", [x], torch.relu))


@case("cast")
def cast(d):
    x = d.param(d.shape())
    truncated = d.op("cast", [x], lambda x: x.to(torch.int32))
    flags = d.op("cast", [truncated], lambda x: x.to(torch.bool))
    same = d.op("cast", [x], lambda x: x * 1.0)
    d.observe(same, truncated, flags, d.op("cast", [flags], lambda x: x.long()))


@case("constant", "iota")
def sources(d):
    shape = d.shape(1)
    x = d.param(shape)
    dim = d.integer(0, len(shape) - 1)
    start = d.integer(-3, 3)
    view = [1] * len(shape)
    view[dim] = shape[dim]

    def count():
        return torch.arange(start, start + shape[dim]).view(view).expand(shape).double().clone()

    places = d.op("iota", [], count, {"dim": dim, "start": start})
    table = d.constant(d.normal(shape))
    d.observe(d.op("mul", [d.op("mul", [x, places], torch.mul), table], torch.mul))
