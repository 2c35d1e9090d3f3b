# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Operators where samples of PyTorch's database do not go: equal elements, zeros among
factors, places written twice, uneven windows, nothing at all. Values and gradients are
those of torch in f64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nan

from operator_checks import accepted, expect, interpreted, trace, trace_all
from operator_native import compiled
from operator_samples import Sample, database, edge_samples, samples

IMAGE = torch.arange(2 * 3 * 7 * 5).reshape(2, 3, 7, 5).remainder(11) - 4.0
WEIGHT = IMAGE[1, 0, 0].abs() + 1
LONG = torch.arange(2 * 70).reshape(2, 70).remainder(13) * 1.0
LONG[0, 3] = LONG[0, 50] = nan
LONG[1, 7] = torch.inf
TWICE = torch.tensor([0, 2, 0, 1])
GRID = torch.tensor([[0, 1, 0], [2, 2, 1]])

CASES = {
    # Equal elements: after relu most windows hold several.
    "max_pool1d": (lambda x: F.max_pool1d(x.relu(), 3, 2, 1), IMAGE[0]),
    "max_pool2d": (lambda x: F.max_pool2d(x.relu(), 3, 2, 1, ceil_mode=True, return_indices=True), IMAGE),
    "max_pool2d dilated": (lambda x: F.max_pool2d(x, 2, 1, dilation=2), IMAGE),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x.relu(), (3, 4), True), IMAGE),
    "sort": (lambda x: x.sort(dim=1, stable=True), IMAGE[0, 0]),
    "sort descending": (lambda x: x.sort(dim=0, descending=True, stable=True), IMAGE[0, 0]),
    "sort of many": (lambda x: x.sort(dim=1, stable=True), LONG),
    "sort of many descending": (lambda x: x.sort(dim=1, descending=True, stable=True), LONG),
    "sort of whole numbers": (lambda x: x * x.long().sort(dim=1, stable=True).indices, IMAGE[0, 0]),
    "argsort of booleans": (lambda x: (x * (x > 0).long().argsort(dim=1, stable=True)), IMAGE[0, 0]),
    "cummax": (lambda x: x.cummax(0), IMAGE[0, 0]),
    "cummin": (lambda x: x.cummin(1), torch.tensor([[2.0, 1, 1, nan, 0], [nan, nan, 1, 1, 1]])),
    "median": (lambda x: x.median(), torch.tensor([1.0, 2, 2, 2, 5])),
    "median of NaN": (lambda x: x.median(0).values, torch.tensor([[1.0, 2], [nan, 4], [3, 0]])),
    "nanmedian": (lambda x: x.nanmedian(0).values, torch.tensor([[1.0, 2], [nan, 4], [3, 0]])),
    "quantile": (lambda x: x.quantile(torch.tensor([0.0, 0.3, 1.0], dtype=x.dtype), 1), IMAGE[0, 0]),
    # Zeros among factors.
    **{f"prod of {zeros} zeros": (lambda x: x.prod(1), torch.tensor([[3.0, 2, 5, 7]]).index_fill(
        1, torch.arange(zeros), 0.0)) for zeros in range(3)},
    "cumprod": (lambda x: x.cumprod(0), torch.tensor([3.0, 0, 2, 0, 5])),
    # Places written twice: the last one stays, and all have the gradient.
    "index_put": (lambda x, v: x.index_put((TWICE,), v), IMAGE[0, 0], IMAGE[1, 0, :4] + 0.5),
    "index_put accumulated": (lambda x, v: x.index_put((TWICE,), v, True), IMAGE[0, 0], IMAGE[1, 0, :4]),
    "index_put beside a slice": (
        lambda x, v: torch.ops.aten.index_put(x, [TWICE, None, TWICE], v), IMAGE[0], IMAGE[1, 0, :4, 0:1]),
    "index_put of numbers": (
        lambda x, v: x[:3] * torch.arange(3).index_put((TWICE,), torch.tensor([5, 6, 7, 8]))[:, None] + v,
        IMAGE[0, 0], torch.ones(())),
    # One value for all places of a mask.
    "index_put by a mask": (lambda x, v: x.index_put((x.detach()[:, 0] > 0,), v), IMAGE[0, 0], IMAGE[1, 0, 0] + 0.5),
    "index_put by a mask of two dimensions": (
        lambda x, v: x.index_put((x.detach()[:, :, 1] > 0,), v), IMAGE[0], IMAGE[1, 0, :1] + 0.5),
    "index_put by a mask behind a slice": (lambda x, v: torch.ops.aten.index_put(
        x, [None, x.detach()[0] > 0], v), IMAGE[0], IMAGE[1, 0, :3, :1] + 0.5),
    "scatter": (lambda x, v: x.scatter(1, GRID, v), IMAGE[0, 0, :2], IMAGE[1, 0, :2, :3] + 0.5),
    "scatter a number": (lambda x: x.scatter(0, GRID, 2.5), IMAGE[0, 0]),
    **{f"scatter_reduce {how} {own}": (
        lambda x, v, how=how, own=own: x.scatter_reduce(1, GRID, v, how, include_self=own),
        IMAGE[0, 0, :2], IMAGE[1, 0, :2, :3].abs() + 1)
       for how in ("sum", "mean", "prod", "amax", "amin") for own in (True, False)},
    "index_copy": (lambda x, v: x.index_copy(1, torch.tensor([3, 1]), v), IMAGE[0, 0], IMAGE[1, 0, :, :2]),
    "a slice with a step": (lambda x, v: x.slice_scatter(v, 0, 1, 7, 2), IMAGE[0, 0], IMAGE[1, 0, :3]),
    "masked_scatter": (lambda x, v: x.masked_scatter(x > 0, v), IMAGE[0, 0], IMAGE[1, 0]),
    "indices with a slice between": (lambda x: x[TWICE[:2], :, TWICE[2:]], IMAGE[0]),
    # Windows.
    **{f"pad {mode}": (lambda x, mode=mode: F.pad(x, (2, 1, 1, 3), mode), IMAGE)
       for mode in ("reflect", "replicate", "circular")},
    **{f"interpolate {mode} {corners}": (lambda x, mode=mode, corners=corners: F.interpolate(
        x, (4, 9), mode=mode, align_corners=corners), IMAGE)
       for mode in ("bilinear", "bicubic") for corners in (True, False)},
    "interpolate by a factor": (lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear"), IMAGE),
    "interpolate antialiased": (
        lambda x: F.interpolate(x, (3, 4), mode="bicubic", antialias=True), IMAGE),
    "interpolate nearest": (lambda x: F.interpolate(x, (3, 9), mode="nearest"), IMAGE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), IMAGE),
    "avg_pool2d uneven": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), IMAGE),
    "avg_pool2d divided": (lambda x: F.avg_pool2d(x, 2, 2, 1, divisor_override=3), IMAGE),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, None, (3, 2), 1, (2, 1)),
                         IMAGE, IMAGE[0, :, :4, :3].reshape(3, 1, 4, 3)),
    "conv2d with an even kernel": (lambda x, w: F.conv2d(x, w, padding="same"), IMAGE,
                                   IMAGE[:, :, :4, :2]),
    "unfold": (lambda x: x.unfold(2, 3, 2), IMAGE),
    # Functions at and around 0.
    "expressions of zero": (lambda x: torch.stack([x.asinh(), x.sinh(), x.atan(), x.sinc(), x.tan()]),
                            torch.tensor([0.0, 1e-6, -1e-6, 1.0, -0.3])),
    "xlogy": (torch.xlogy, torch.tensor([0.0, 0.0, 2.0, 1.0]), torch.tensor([0.0, 3.0, 3.0, 1.0])),
    "round": (lambda x: x * x.round(), torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49])),
    "prelu": (F.prelu, torch.tensor([[0.0, -1.0, 2.0]]), torch.tensor([0.5, 0.25, 2.0])),
    "cross_entropy weighted and smoothed": (lambda x: F.cross_entropy(
        x, torch.tensor([0, 2, -100, 1, 4, 3, 0]), WEIGHT.to(x.dtype), label_smoothing=0.2), IMAGE[0, 0]),
    "cross_entropy of probabilities, weighted": (lambda x: F.cross_entropy(
        x, IMAGE[1, 0].softmax(1).to(x.dtype), WEIGHT.to(x.dtype), label_smoothing=0.1), IMAGE[0, 0].clone()),
    "embedding_bag": (lambda w: F.embedding_bag(TWICE, w, torch.tensor([0, 0, 3]), mode="max"), IMAGE[0, 0]),
    # A scalar, and nothing.
    **{f"{name} of a scalar": (function, torch.tensor(2.0)) for name, function in {
        "sort": lambda x: x.sort(), "cumsum": lambda x: x.cumsum(0), "max": lambda x: x.max(0),
        "mean": lambda x: x.mean(0), "topk": lambda x: x.topk(1), "prod": lambda x: x.prod(0),
        "index_select": lambda x: x.index_select(0, torch.tensor([0])),
        "median": lambda x: x.median(0), "gather": lambda x: x.gather(0, torch.tensor(0)),
        "scatter_add": lambda x: x.scatter_add(0, torch.tensor(0), x)}.items()},
    "scatter of nothing": (lambda x: x.scatter(0, GRID[:0], 1.0), IMAGE[0, 0]),
}


@pytest.mark.parametrize("name", CASES)
def test_edges(name):
    function, *leaves = CASES[name]
    sample = Sample(name, list(leaves), [True] * len(leaves), lambda given: function(*given))
    assert interpreted([trace([(sample, expect(sample))])]) == {name: None}


#: Operators that turn, end or have poles somewhere.
TURNING = (
    "__rmod__", "atan2", "clamp_max", "clamp_min", "copysign", "div.floor_rounding", "fmod", "hypot",
    "logit", "nan_to_num", "nn.functional.elu", "nn.functional.hardshrink", "nn.functional.hardsigmoid",
    "nn.functional.relu6", "nn.functional.selu", "nn.functional.softplus", "nn.functional.softshrink",
    "remainder", "xlogy")


@pytest.mark.parametrize("compute", [interpreted, compiled], ids=["interpreter", "native"])
def test_edges_of_the_database(compute):
    """At each pair of 0, tiny, bounds, large, infinity and NaN."""
    operators = database()
    members = accepted([s for name in TURNING for s in edge_samples(operators[name], name)])
    traced, refused = trace_all(members)
    assert not refused
    assert compute(traced) == {f"{name}#edges": None for name in TURNING}


def test_a_row_of_minus_infinity_has_a_logarithm_of_no_sum():
    operators = database()
    own = [s for s in samples(operators["masked.logsumexp"], "masked.logsumexp") if s.name.endswith("#49")]
    traced, _ = trace_all(accepted(own))
    assert interpreted(traced) == {"masked.logsumexp#49": None}
