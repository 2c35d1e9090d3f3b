# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Delayed updates as recurrences."""

import numpy as np
import torch

SAMPLES, WIDTH = 6, 5


class Line(torch.nn.Module):
    """Least squares, whose gradients are two lines of NumPy."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(WIDTH))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, y):
        return ((x @ self.weight + self.bias - y) ** 2).mean() / 2


def gradients_of(w, x, y):
    error = x @ w["weight"] + w["bias"] - y
    return {"weight": x.T @ error / len(y), "bias": np.array([error.mean()])}


class Sgd:
    flags, momentum = ["--optimizer=sgd"], 0.0

    def update(self, w, g, state, number, lr):
        if self.momentum:
            state["buffer"] = g if number == 1 else self.momentum * state["buffer"] + g
            g = state["buffer"]
        return w - lr * g


class Momentum(Sgd):
    flags, momentum = ["--optimizer=sgd", "--momentum=0.9"], 0.9


class AdamW:
    flags = ["--optimizer=adamw", "--weight-decay=0.1"]

    def update(self, w, g, state, number, lr):
        m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
        v = state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
        root = np.sqrt(v) / np.sqrt(1 - 0.999 ** number)
        return w * (1 - lr * 0.1) - lr * m / (1 - 0.9 ** number) / (root + 1e-8)


def recurrence(rule, delays, w, batches, lr, clip=0.0):
    """The parameters after each step: w[t+1] = w[t] - u(g[t-d])."""
    history, states, result = [], {name: {} for name in w}, []
    for t, (x, y) in enumerate(batches):
        history.append(gradients_of(w, x, y))
        due = {name: history[t - d][name] if t >= d else np.zeros_like(w[name])
               for name, d in delays.items()}
        norm = np.sqrt(sum((g ** 2).sum() for g in due.values()))
        scale = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        w = {name: rule.update(w[name], due[name] * scale, states[name], t - d + 1, lr)
             if t >= d else w[name] for name, d in delays.items()}
        result.append(w)
    return result


def samples(count, seed=3):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((SAMPLES, WIDTH)), rng.standard_normal(SAMPLES))
            for _ in range(count)]
