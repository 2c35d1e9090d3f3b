# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Losses."""

import torch
import torch.nn.functional as F

from converter_cases.registry import PAIRS, case, edges, inf, normal, numbers

aten = torch.ops.aten

LOGITS = torch.cat([normal(4, 5, scale=3.0), torch.stack([numbers(*row) for row in (
    (0, 0, 0, 0, 0), (-1e4, 1e4, 1e4, 0, 3), (1e4, 1e4, 9999, 1e4, 1e4), (100, -100, 50, 0, 1),
    (1e30, 0, -1e30, 1, 2), (-inf, 0, 1, -inf, 2), (30, -30, 0, 88, 89), (1e-30, 0, -1e-30, 1e-8, 0))])])
CLASSES = torch.tensor([0, 1, 2, 3, 4, 1, 0, 2, 0, 1, 3, 2])
WEIGHTS = numbers(1, 2, 0.5, 3, 0.1)
IGNORED = CLASSES.where(CLASSES != 2, -100)
REDUCTIONS = ("none", "mean", "sum")

for reduction in REDUCTIONS:
    case(f"cross_entropy, {reduction}", lambda x, r=reduction: F.cross_entropy(x, CLASSES, reduction=r), LOGITS,
         ulps=64, share=1e-7)
case("cross_entropy, smoothing", lambda x: F.cross_entropy(x, CLASSES[:8], label_smoothing=0.1), LOGITS[:8], ulps=64, share=1e-7)
case("cross_entropy, ignored", lambda x: F.cross_entropy(x, IGNORED), LOGITS[:8].repeat(2, 1)[:12], ulps=64, share=1e-7)
case("cross_entropy, weights", lambda x: F.cross_entropy(x, CLASSES, WEIGHTS.to(x)), LOGITS, ulps=64, share=1e-7)
case("cross_entropy, probabilities", lambda x, t: F.cross_entropy(x, t.softmax(-1)), LOGITS[:6], normal(6, 5), ulps=64, share=1e-6)
case("cross_entropy, places", lambda x: F.cross_entropy(x, CLASSES.view(3, 4) % 3), normal(3, 3, 4), share=1e-6)
for name in ("nll_loss_nd", "nll_loss", "nll_loss2d"):
    f = getattr(aten, name).default
    if name == "nll_loss2d":
        case(name, lambda x, f=f: f(x.log_softmax(1), CLASSES.view(1, 3, 4) % 3), normal(1, 3, 3, 4), share=1e-6)
    else:
        case(name, lambda x, f=f: f(x.log_softmax(-1), CLASSES), LOGITS, ulps=64, share=1e-7)
        case(f"{name} of anything", lambda x, f=f: f(x * 2.0, IGNORED), LOGITS[:8].repeat(2, 1)[:12], share=1e-7)
case("nll_loss_forward", lambda x: aten.nll_loss_forward.default(x.log_softmax(-1), CLASSES, None, 1, -100)[0], LOGITS,
     ulps=64, share=1e-7)
case("nll_loss2d_forward",
     lambda x: aten.nll_loss2d_forward.default(x.log_softmax(1), CLASSES.view(1, 3, 4) % 3, None, 1, -100)[0],
     normal(1, 3, 3, 4), share=1e-6)

for reduction in REDUCTIONS:
    case(f"mse_loss, {reduction}", lambda x, y, r=reduction: F.mse_loss(x, y, reduction=r), normal(9), normal(9, seed=1),
         share=1e-6)
    case(f"smooth_l1_loss, {reduction}", lambda x, y, r=reduction: F.smooth_l1_loss(x, y, reduction=r), normal(9),
         normal(9, seed=1), share=1e-6)
case("mse_loss of pairs", lambda x, y: F.mse_loss(x, y, reduction="none"), *PAIRS)
case("l1_loss", lambda x, y: F.l1_loss(x, y, reduction="none"), *PAIRS)
case("smooth_l1_loss", lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"), edges())
case("smooth_l1_loss, beta", lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.5), edges())
case("smooth_l1_loss, beta 0", lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.0), edges())
case("huber_loss", lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=2.0), edges())

LABELS = numbers(0, 0.5, 1, 0.25)
#: Where the loss of a wrong label is small enough that a loss near 0 counts.
SMALL = edges()[edges().abs() <= 50]


def labelled(function):
    """`function(x, target)` at every pair of an edge and a label."""
    return lambda x, t: function(x[:, None].expand(-1, 4), t.expand(len(x), 4))


case("binary_cross_entropy_with_logits",
     labelled(lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none")), SMALL, LABELS, ulps=64, share=1e-7)
case("binary_cross_entropy_with_logits of labels",
     lambda x: F.binary_cross_entropy_with_logits(x, LABELS.to(x)[:1].expand_as(x), reduction="none"), SMALL, share=1e-8)
case("binary_cross_entropy_with_logits, weight",
     lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x), weight=torch.full_like(x, 2.0)),
     numbers(0, 1, -1, 20, -20), share=1e-7)
case("binary_cross_entropy_with_logits, pos_weight",
     lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid(), pos_weight=WEIGHTS[:3].to(x)),
     normal(4, 3), normal(4, 3, seed=1), share=1e-6)
PROBABILITIES = numbers(0, 1, 0.5, 1e-30, 1e-45, 1e-8, 1 - 2.0**-24, 0.999, 0.25)
case("binary_cross_entropy",
     labelled(lambda x, t: F.binary_cross_entropy(x, t.detach(), reduction="none")), PROBABILITIES, LABELS, ulps=64, share=1e-7)
case("binary_cross_entropy, mean", lambda x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid()), normal(9), normal(9, seed=1),
     share=1e-6)
case("binary_cross_entropy, weight",
     lambda x: F.binary_cross_entropy(x, torch.ones_like(x), weight=torch.full_like(x, 2.0)), numbers(0.1, 1, 0), share=1e-7)
case("kl_div", lambda x, t: F.kl_div(x.log_softmax(-1), t.softmax(-1), reduction="batchmean"), normal(3, 4),
     normal(3, 4, seed=1), share=1e-6)
case("kl_div, edges", labelled(lambda x, t: F.kl_div(x, t, reduction="none")), edges(), numbers(0, 0.5, 1, 1e-30))
case("kl_div, log", labelled(lambda x, t: F.kl_div(x, t, reduction="none", log_target=True)), edges(), numbers(0, -1, 2, -inf))
CTC_LABELS = torch.tensor([[1, 1, 3], [2, 1, 0], [3, 3, 3], [1, 2, 3]])
CTC_FRAMES, CTC_LENGTHS = (6, 5, 3, 2), (3, 2, 3, 0)
for reduction in REDUCTIONS:
    case(f"ctc_loss, {reduction}",
         lambda x, r=reduction: F.ctc_loss(x.log_softmax(2), CTC_LABELS, CTC_FRAMES[:2] + (6, 2), CTC_LENGTHS, reduction=r),
         normal(6, 4, 5), share=1e-6)
case("ctc_loss of anything", lambda x: F.ctc_loss(x, CTC_LABELS, torch.tensor([6, 5, 6, 4]), torch.tensor([3, 2, 3, 1])),
     normal(6, 4, 5), share=1e-6)
case("ctc_loss, labels in one row", lambda x: F.ctc_loss(x.log_softmax(2), torch.tensor([1, 1, 3, 2, 1, 3]), (6, 6, 6, 6), (3, 0, 2, 1)),
     normal(6, 4, 5), share=1e-6)
case("ctc_loss, another blank", lambda x: F.ctc_loss(x.log_softmax(2), CTC_LABELS % 3, (6,) * 4, (3,) * 4, blank=4, reduction="sum"),
     normal(6, 4, 5), share=1e-6)
case("ctc_loss, impossible", lambda x: F.ctc_loss(x.log_softmax(2), CTC_LABELS, CTC_FRAMES, CTC_LENGTHS, reduction="none"),
     normal(6, 4, 5), share=1e-6)
case("ctc_loss, zero_infinity",
     lambda x: F.ctc_loss(x.log_softmax(2), CTC_LABELS, CTC_FRAMES, CTC_LENGTHS, zero_infinity=True), normal(6, 4, 5), share=1e-6)
case("ctc_loss without labels or frames", lambda x: F.ctc_loss(x.log_softmax(2), CTC_LABELS[:, :0], (6, 0, 1, 2), (0,) * 4, reduction="sum"),
     normal(6, 4, 5), share=1e-6)
# Logarithms of 300 are rounded to f32 by 2e-5.
case("ctc_loss of sharp probabilities", lambda x: F.ctc_loss(x.log_softmax(2), CTC_LABELS, (6,) * 4, (3,) * 4, reduction="none"),
     normal(6, 4, 5, scale=100.0), share=2e-5)
case("ctc_loss of one sample", lambda x: F.ctc_loss(x.log_softmax(1), CTC_LABELS[0], torch.tensor(6), torch.tensor(3)), normal(6, 5),
     share=1e-6)
case("soft_margin_loss", lambda x: F.soft_margin_loss(x, torch.ones_like(x), reduction="none"), normal(20))
