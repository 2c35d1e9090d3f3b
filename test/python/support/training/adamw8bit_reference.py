# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""AdamW with 8-bit state, written again."""

import numpy as np


def dynamic_map(signed):
    """bitsandbytes.functional.create_dynamic_map, 8 bits with 7 of exponent."""
    data = []
    for i in range(7):
        items = 2**i + 1 if signed else 2**(i + 1) + 1
        bounds = np.linspace(0.1, 1, items)
        means = 10.0**(i - 6) * (bounds[:-1] + bounds[1:]) / 2
        data += list(means) + (list(-means) if signed else [])
    return np.sort(np.array([*data, 0.0, 1.0]))


def blocks(x):
    return x.reshape(-1, 256)


class Reference:
    """bitsandbytes' kernel of blockwise 8-bit Adam with decoupled decay, in NumPy."""

    def __init__(self, lr, betas=(0.9, 0.999), eps=1e-8, decay=0.01):
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, decay
        self.moments = {}

    def encoded(self, x, signed):
        scale = np.abs(blocks(x)).max(1, keepdims=True)
        y = blocks(x) / np.where(scale == 0, 1, scale)
        codes = dynamic_map(signed)
        found = codes[np.searchsorted((codes[1:] + codes[:-1]) / 2, y)]
        return np.where((y < 0) & (found == 0), -0.55e-6, found), scale

    def step(self, name, p, g, t):
        shape, (beta1, beta2) = p.shape, self.betas
        zero = (np.zeros(blocks(p).shape), np.zeros((blocks(p).shape[0], 1)))
        (c1, a1), (c2, a2) = self.moments.get(name, (zero, zero))
        m = (c1 * a1).reshape(shape) * beta1 + (1 - beta1) * g
        v = (c2 * a2).reshape(shape) * beta2 + (1 - beta2) * g * g
        root = np.sqrt(1 - beta2**t)
        size = self.lr * root / (1 - beta1**t)
        p = p - size * m / (np.sqrt(v) + root * self.eps)
        self.moments[name] = self.encoded(m, True), self.encoded(v, False)
        return p * (1 - self.lr * self.decay)
