# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Asynchronous pipelines natively, beside the simulation."""

import numpy as np
import torch

import cleave
from training_support import compile_case, compile_once

EACH, CALLS, LR = 2, 3, 0.05


def sgd():
    return cleave.SGD(lr=LR, momentum=0.9)


def asynchronous(case, p, m, optimizer=None, mesh=None, schedule="pipedream", **settings):
    return compile_case(case, optimizer or sgd(), mesh={"pp": p, **(mesh or {})}, micro_batches=m,
                        schedule=schedule, check_finite=False, **settings)


class Simulation:
    def __init__(self, case, stages, m, bound):
        self.stages, self.m, self.bound = stages, m, bound
        first = case.examples(self.part(case.batches[0], 0))
        self.step = compile_once(case.key, case.build(), first, optimizer=sgd())
        self.empty = self.step.training_state()
        self.names = [name for own in stages.values() for name in own]
        self.weights = {name: torch.nn.Parameter(value.clone())
                        for name, value in self.step.state_dict().items()
                        if name in self.names}
        assert self.weights.keys() == set(self.names)
        self.optimizer = torch.optim.SGD(self.weights.values(), lr=LR, momentum=0.9)
        self.done = 0

    def part(self, batch, i):
        return tuple(value[i * EACH:(i + 1) * EACH] for value in batch)

    def snapshot(self):
        return {name: value.detach().clone() for name, value in self.weights.items()}

    def call(self, batch):
        versions, losses = [self.snapshot()], []
        for i in range(self.m):
            own = dict(self.step.state_dict())
            for stage, names in self.stages.items():
                ahead = min(len(self.stages) - 1 - stage, self.bound)
                own |= {name: versions[max(0, i - ahead)][name] for name in names}
            self.step.load_state_dict(own)
            self.step.load_training_state(self.empty | {"step": self.done})
            losses.append(float(self.step(*self.part(batch, i))))
            self.done += 1
            # Momentum of nothing but this.
            for name, slots in self.step.training_state()["optimizer"].items():
                self.weights[name].grad = slots["momentum_buffer"].reshape(
                    self.weights[name].shape).clone()
            self.optimizer.step()
            versions.append(self.snapshot())
        return np.mean(losses)
