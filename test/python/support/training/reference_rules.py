# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Update rules beside which those of the compiler are held: of torch.optim, or as formulas."""

import numpy as np
import torch


class Torch:
    """An optimizer of torch.optim as the reference."""

    def __init__(self, make):
        self.make = make

    def start(self, values):
        self.parameters = {n: torch.tensor(v, requires_grad=True) for n, v in values.items()}
        self.optimizer = self.make(list(self.parameters.values()))

    def step(self, t, gradients, lr):
        for name, gradient in gradients.items():
            self.parameters[name].grad = torch.tensor(gradient)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        return {n: p.detach().numpy() for n, p in self.parameters.items()}

    def state(self, name):
        return {slot: value.numpy().squeeze()
                for slot, value in self.optimizer.state[self.parameters[name]].items()
                if slot != "step" and value is not None}


class Numpy:
    """A rule as a function from (p, g, state, t, lr) to the new parameter, which changes
    the state, a dict."""

    def __init__(self, update):
        self.update = update

    def start(self, values):
        self.values = {n: v.copy() for n, v in values.items()}
        self.states = {n: {} for n in values}

    def step(self, t, gradients, lr):
        for name, gradient in gradients.items():
            self.values[name] = self.update(self.values[name], gradient, self.states[name], t, lr)
        return self.values

    def state(self, name):
        return self.states[name]


def lion(beta1=0.9, beta2=0.99, decay=0.0):
    def update(p, g, state, t, lr):
        m = state.get("exp_avg", np.zeros_like(p))
        u = np.sign(beta1 * m + (1 - beta1) * g)
        state["exp_avg"] = beta2 * m + (1 - beta2) * g
        return p - lr * (u + decay * p)
    return Numpy(update)


def lamb(beta1=0.9, beta2=0.999, eps=1e-6, decay=0.01, always_adapt=True):
    def update(p, g, state, t, lr):
        m = state["exp_avg"] = beta1 * state.get("exp_avg", 0) + (1 - beta1) * g
        v = state["exp_avg_sq"] = beta2 * state.get("exp_avg_sq", 0) + (1 - beta2) * g * g
        r = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps) + decay * p
        own, step = np.linalg.norm(p), np.linalg.norm(r)
        adapts = own > 0 and step > 0 and (decay != 0 or always_adapt)
        return p - lr * (own / step if adapts else 1.0) * r
    return Numpy(update)


def adafactor(scale=True, d=1.0, eps1=1e-30, eps2=1e-3):
    """Algorithms 4 and 5 of arXiv 1804.04235, by its sums of rows and columns."""
    def update(p, g, state, t, lr):
        beta = 1 - t**-0.8
        squares = g * g + eps1
        if p.ndim < 2:
            v = state["variance"] = beta * state.get("variance", 0) + (1 - beta) * squares
        else:
            n, m = p.shape[-2:]
            r = beta * m * state.get("row_var", 0) + (1 - beta) * squares.sum(-1)
            c = beta * n * state.get("col_var", 0) + (1 - beta) * squares.sum(-2)
            state["row_var"], state["col_var"] = r / m, c / n
            v = r[..., :, None] * c[..., None, :] / r.sum(-1)[..., None, None]
        u = g / np.sqrt(v)
        u = u / max(1.0, np.sqrt(np.mean(u * u)) / d)
        size = max(eps2, np.sqrt(np.mean(p * p))) if scale else 0.05
        return p - size * min(lr, t**-0.5) * u
    return Numpy(update)


class Several:
    """A reference for each parameter."""

    def __init__(self, references):
        self.references = references

    def start(self, values):
        for name, value in values.items():
            self.references[name].start({name: value})

    def step(self, t, gradients, lr):
        return {k: v for name, g in gradients.items()
                for k, v in self.references[name].step(t, {name: g}, lr).items()}

    def state(self, name):
        return self.references[name].state(name)
