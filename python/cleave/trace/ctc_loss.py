# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Connectionist temporal classification (CTC): the negative log probability of a sequence of
labels, summed over all its alignments with the frames (Graves et al., 2006, section 4.1)."""

from __future__ import annotations

import torch

#: Represents the logarithm of the probability 0; finite, so that sums and gradients are finite.
_LOG_ZERO = -1e30
#: The largest number of frames, which are unrolled.
MOST_FRAMES = 2048


def _lengths(given, batch, device):
    """Returns lengths as an i64 tensor [batch], from a tensor or from numbers."""
    if isinstance(given, torch.Tensor):
        return given.reshape(-1).long()
    numbers = [given] * batch if isinstance(given, int) else list(given)
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def _labels(targets, lengths, given):
    """Returns the labels [batch, longest], from targets [batch, longest] or from the
    concatenated targets of all samples."""
    if targets.dim() == 2:
        return targets.long()
    # Lengths given as a tensor are unknown at trace time: one sample may have all labels.
    longest = targets.numel() if isinstance(given, torch.Tensor) else max(given, default=0)
    place = (lengths.cumsum(0) - lengths)[:, None] + torch.arange(longest)
    return targets.long()[place.clamp(0, max(targets.numel() - 1, 0))]


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean",
             zero_infinity=False):
    """Computes `torch.nn.functional.ctc_loss`; `log_probs` is [frames, batch, classes] or [frames,
    classes]. The gradient equals torch's, which includes that of the preceding softmax. Raises
    RuntimeError for more than MOST_FRAMES frames."""
    reduction = {0: "none", 1: "mean", 2: "sum"}.get(reduction, reduction)
    single = log_probs.dim() == 2
    if single:
        log_probs = log_probs[:, None]
        targets = targets.reshape(1, -1)
    dtype, log_probs = log_probs.dtype, log_probs.float() \
        if log_probs.dtype in (torch.float16, torch.bfloat16) else log_probs
    frames, batch, classes = log_probs.shape
    if frames > MOST_FRAMES:
        raise RuntimeError(f"ctc_loss of {frames} frames: more than {MOST_FRAMES} are not compiled")
    inputs = _lengths(input_lengths, batch, log_probs.device)
    lengths = _lengths(target_lengths, batch, log_probs.device)
    if isinstance(target_lengths, int):
        target_lengths = [target_lengths]
    labels = _labels(targets, lengths, target_lengths).clamp(0, classes - 1)
    # The states: labels with blanks between and around them.
    states = torch.full((batch, 1), blank, device=log_probs.device)
    other = torch.zeros_like(states, dtype=torch.bool)
    if labels.shape[1]:
        pairs = torch.nn.functional.pad(labels[:, :, None], (1, 0), value=blank).flatten(1)
        states = torch.cat([pairs, states], 1)
        # A blank may be skipped between two different labels.
        other = torch.nn.functional.pad(states[:, 2:] != states[:, :-2], (2, 0))
    seen = log_probs.gather(2, states.expand(frames, -1, -1)).clamp(min=_LOG_ZERO)
    size = states.shape[1]

    def shifted(x, by):
        return torch.nn.functional.pad(x, (by, 0), value=_LOG_ZERO)[:, :size]

    alpha = torch.where(torch.arange(size) < 2, seen[0], _LOG_ZERO)
    for t in range(1, frames):
        terms = alpha, shifted(alpha, 1), torch.where(other, shifted(alpha, 2), _LOG_ZERO)
        most = torch.maximum(torch.maximum(terms[0], terms[1]), terms[2]).detach()
        total = sum((x - most).exp() for x in terms).log() + most
        alpha = torch.where(inputs[:, None] > t, total + seen[t], alpha)
    last = alpha.gather(1, 2 * lengths[:, None])[:, 0]
    before = alpha.gather(1, (2 * lengths[:, None] - 1).clamp(min=0))[:, 0]
    before = torch.where(lengths > 0, before, _LOG_ZERO)
    most = torch.maximum(last, before).detach()
    loss = -(((last - most).exp() + (before - most).exp()).log() + most)
    # Without frames, only the empty sequence has a nonzero probability.
    loss = torch.where(inputs > 0, loss, torch.where(lengths > 0, -_LOG_ZERO, 0.0))
    impossible = loss > -_LOG_ZERO / 2
    # Adds a zero whose gradient is that of the softmax.
    used = (torch.arange(frames)[:, None] < inputs)[:, :, None]
    used = torch.where(used, log_probs, _LOG_ZERO).exp()
    added = (used - used.detach()).sum((0, 2))
    # The loss is infinite and its gradient is NaN.
    infinite = torch.inf + torch.where(impossible, added, 1.0).square().sqrt()
    infinite = torch.zeros_like(loss) if zero_infinity else infinite
    loss = torch.where(impossible, infinite, loss + added)
    if reduction == "mean":
        loss = (loss / lengths.clamp(min=1)).mean()
    elif reduction == "sum":
        loss = loss.sum()
    elif single:
        loss = loss[0]
    return loss.to(dtype)
