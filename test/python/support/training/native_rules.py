# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Update rules beside PyTorch."""

import torch


class Rule(torch.optim.Optimizer):
    """A published rule as a torch optimizer."""

    def __init__(self, parameters, **settings):
        super().__init__(parameters, settings)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["t"] = state.get("t", 0) + 1
                self.update(p, p.grad, state, group)


class Lion(Rule):
    """arXiv 2302.06675, algorithm 2."""

    def update(self, p, g, state, group):
        beta1, beta2 = group["betas"]
        m = state.setdefault("m", torch.zeros_like(p))
        p -= group["lr"] * (torch.sign(beta1 * m + (1 - beta1) * g) + group["weight_decay"] * p)
        m.mul_(beta2).add_(g, alpha=1 - beta2)


class LAMB(Rule):
    """arXiv 1904.00962, algorithm 2."""

    def update(self, p, g, state, group):
        (beta1, beta2), t = group["betas"], state["t"]
        m = state.setdefault("m", torch.zeros_like(p)).mul_(beta1).add_((1 - beta1) * g)
        v = state.setdefault("v", torch.zeros_like(p)).mul_(beta2).add_((1 - beta2) * g * g)
        r = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"])
        r = r + group["weight_decay"] * p
        p -= group["lr"] * (p.norm() / r.norm() if p.norm() > 0 and r.norm() > 0 else 1) * r
