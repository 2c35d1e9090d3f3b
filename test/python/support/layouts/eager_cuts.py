# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What PyTorch in f64 leaves of a training that is drawn in f32: gradients by eager autograd of
the whole batch, updates by torch.optim where it has the rule, else by the published formula.
"""

from unittest import mock

import numpy as np
import torch

from reference_rules import Several, Torch, adafactor, lamb, lion


def _adamw(lr=1e-3, eps=1e-5):
    return Torch(lambda p: torch.optim.AdamW(p, lr=lr, eps=eps))


#: The rules of `drawn_cuts`, each with its learning rate; for a parameter of these dimensions.
#: All parameters are smaller than what adamw8bit keeps in 8 bits.
RULES = {
    "sgd": (0.1, lambda dims: Torch(lambda p: torch.optim.SGD(p))),
    "momentum": (0.05, lambda dims: Torch(
        lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=0.01))),
    "adamw": (1e-3, lambda dims: _adamw()),
    "adamw8bit": (1e-3, lambda dims: _adamw()),
    "lion": (1e-3, lambda dims: lion()),
    "adagrad": (1e-2, lambda dims: Torch(torch.optim.Adagrad)),
    "lamb": (1e-2, lambda dims: lamb()),
    "adafactor": (1e-2, lambda dims: adafactor()),
    "muon": (2e-2, lambda dims: Torch(torch.optim.Muon) if dims == 2
             else _adamw(eps=1e-8)),
}


def has_eager(training):
    return training.precision == "f32" and not training.compress


def leave_eager(training, steps):
    """As `drawn_cuts.train`: losses, and what is left."""
    model = training.model().double()
    named = dict(model.named_parameters())
    start = {name: p.detach().numpy().copy() for name, p in named.items()}
    lr, make = RULES[training.rule]
    rule = Several({name: make(p.ndim) for name, p in named.items()})
    rates = {name: 1e-3 if training.rule == "muon" and p.ndim != 2 else lr
             for name, p in named.items()}
    losses, pending = [], []
    # torch.optim.Muon iterates in bf16; here in the parameter's type.
    with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
        rule.start(start)
        for index in range(steps):
            model.zero_grad()
            loss = model(*training.batch(index))
            loss.backward()
            losses.append(loss.item())
            pending.append({name: p.grad.numpy().copy() for name, p in named.items()})
            if index < training.delay:
                continue
            due = pending.pop(0)
            norm = np.sqrt(sum((g * g).sum() for g in due.values()))
            scale = min(1.0, training.clip / (norm + 1e-6)) if training.clip else 1.0
            with torch.no_grad():
                for name, p in named.items():
                    updated = rule.references[name].step(
                        index - training.delay + 1, {name: due[name] * scale}, rates[name])
                    p.copy_(torch.from_numpy(np.asarray(updated[name])))
    left = {("change", name): p.detach() - torch.from_numpy(start[own])
            for own, parameter in named.items()
            for name, p in model.named_parameters(remove_duplicate=False) if p is parameter}
    for name in named:
        left.update({(slot, f"{name}.{slot}"): torch.as_tensor(value)
                     for slot, value in rule.state(name).items()})
        # The oldest has the highest number.
        left.update({(f"pending_{len(pending) - i}", f"{name}.pending_{len(pending) - i}"):
                     torch.from_numpy(own[name]) for i, own in enumerate(pending)})
    return losses, left


#: How far f32 may be from f64, as a share of a tensor and of the largest of its kind; a parameter
#: is rounded with each update.
SHARE, FLOOR, ROUNDINGS = 5e-4, 1e-6, 3 * 2.0**-24


def beside_eager(training, expected, found):
    """What is further from eager's than f32 is: the names, and by how much of what is allowed."""
    ratios = {f"loss {i}": abs(loss - own) / (1e-5 * abs(own))
              for i, (loss, own) in enumerate(zip(found[0], expected[0], strict=True))}
    if found[1].keys() != expected[1].keys():
        return dict.fromkeys(found[1].keys() ^ expected[1].keys(), float("inf"))
    start = dict(training.model().named_parameters(remove_duplicate=False))
    largest = {}
    for (kind, _), value in expected[1].items():
        largest[kind] = max(largest.get(kind, 0), float(value.norm()))
    for (kind, name), value in expected[1].items():
        allowed = SHARE * value.norm() + FLOOR * largest[kind] + 1e-12
        if kind == "change":
            allowed = allowed + ROUNDINGS * start[name].detach().norm()
        error = (found[1][kind, name].reshape(-1) - value.reshape(-1)).norm()
        ratios[name] = float(error / allowed)
    return {name: ratio for name, ratio in ratios.items() if not ratio <= 1}
