# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Norms, softmax, losses, positions."""

import torch
import torch.nn.functional as F

from op_cases.registry import case


@case("layer_norm")
def layer_norm(d):
    shape = d.shape(0, 3) + [d.integer(2, 8)]
    weight = d.param(shape[-1:]) if d.flag(0.7) else None
    bias = d.param(shape[-1:]) if d.flag(0.7) else None
    # Two values are normalised to 1 and -1, whatever they are: without a large
    # epsilon the gradient is nothing but rounding.
    epsilon = d.choice([1e-5, 1e-12, 0.1]) if shape[-1] > 2 else 0.1

    def compute(x, w, b):
        mean = x.mean(-1)
        rstd = torch.rsqrt(((x - mean[..., None]) ** 2).mean(-1) + epsilon)
        return F.layer_norm(x, shape[-1:], w, b, epsilon), mean, rstd

    output, mean, rstd = d.op(
        "layer_norm", [d.param(shape), weight, bias], compute, {"epsilon": epsilon}, segments=True
    )
    d.observe(output)
    if d.flag():
        d.observe(mean, rstd)


@case("rms_norm")
def rms_norm(d):
    shape = d.shape(0, 3) + [d.integer(1, 8)]
    weight = d.param(shape[-1:]) if d.flag(0.7) else None
    epsilon = d.choice([1e-5, 1e-8, 0.1])

    def compute(x, w):
        rstd = torch.rsqrt((x**2).mean(-1) + epsilon)
        return F.rms_norm(x, shape[-1:], w, epsilon), rstd

    output, rstd = d.op("rms_norm", [d.param(shape), weight], compute, {"epsilon": epsilon})
    d.observe(output)
    if d.flag():
        d.observe(rstd)


@case("softmax")
def softmax(d):
    x = d.param(d.normal(d.shape(0, 3) + [d.integer(1, 8)]) * 3)
    d.observe(d.op("softmax", [x], lambda x: torch.softmax(x, -1)))
    d.observe(d.op("softmax", [x], lambda x: torch.log_softmax(x, -1), {"log": True}))


def targets_for(d, shape, classes):
    """Targets, some of them ignored, and the index that says so."""
    ignore = d.choice([-100, -1, classes - 1])
    targets = d.integers(shape, 0, classes - 1)
    return d.input(torch.where(d.uniform(shape, 0, 1) < 0.3, ignore, targets)), ignore


@case("cross_entropy")
def cross_entropy(d):
    rows, classes = d.shape(0, 2), d.integer(2, 8)
    targets, ignore = targets_for(d, rows, classes)
    smoothing = d.choice([0.0, 0.1, 0.7])

    def compute(x, t):
        loss = F.cross_entropy(
            x.reshape(-1, classes),
            t.reshape(-1),
            ignore_index=ignore,
            reduction="none",
            label_smoothing=smoothing,
        )
        return loss.reshape(rows), torch.logsumexp(x, -1)

    x = d.param(d.normal(rows + [classes]) * 3)
    loss, lse = d.op(
        "cross_entropy", [x, targets], compute, {"ignore_index": ignore, "label_smoothing": smoothing}
    )
    d.observe(loss)
    if d.flag():
        d.observe(lse)


@case("head_loss")
def head_loss(d):
    rows, inner, classes = d.shape(0, 2), d.integer(1, 6), d.integer(2, 8)
    targets, ignore = targets_for(d, rows, classes)
    smoothing = d.choice([0.0, 0.2])

    def compute(x, w, b, t, _):
        return F.cross_entropy(
            F.linear(x, w, b).reshape(-1, classes),
            t.reshape(-1),
            ignore_index=ignore,
            reduction="none",
            label_smoothing=smoothing,
        ).reshape(rows)

    x, w = d.param(rows + [inner]), d.param([classes, inner])
    b = d.param([classes]) if d.flag() else None
    attributes = {"ignore_index": ignore, "label_smoothing": smoothing}
    # Rounds to the input's type, which is no rounding of f32.
    if d.flag():
        attributes["narrow_logits"] = True
    d.observe(d.op("head_loss", [x, w, b, targets, None], compute, attributes, segments=True))


@case("rope")
def rope(d):
    shape = [d.integer(1, 3), d.integer(1, 3), d.integer(1, 5), 2 * d.integer(1, 4)]
    interleaved, adjoint = d.flag(), d.flag()
    tables = d.choice([shape, shape[2:], [1, 1, *shape[2:]], [shape[0], 1, *shape[2:]]])

    def rotate(x):
        if interleaved:
            pairs = x.reshape(*x.shape[:-1], -1, 2)
            return torch.stack([-pairs[..., 1], pairs[..., 0]], -1).reshape(x.shape)
        low, high = x.chunk(2, -1)
        return torch.cat([-high, low], -1)

    def compute(x, cos, sin):
        if not adjoint:
            return x * cos + rotate(x) * sin
        # The transposed map: rotate is antisymmetric.
        return x * cos - rotate(x * sin)

    x, cos, sin = d.param(shape), d.input(d.normal(tables)), d.input(d.normal(tables))
    d.observe(d.op("rope", [x, cos, sin], compute, {"interleaved": interleaved, "adjoint": adjoint}))
