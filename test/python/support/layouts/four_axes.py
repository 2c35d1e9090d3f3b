# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Meshes of sixteen ranks that split layers, samples, features and the sequence at once."""

import dataclasses
import itertools
import random

from pipeline_cases import SCHEDULES, cover

#: Two plans for the axes dp, tp and cp. `ring`: keys and values are passed along cp, the
#: sequence is also sharded over tp between the products, and optimizer state over dp.
#: `ulysses`: all-to-alls over cp within the heads of each rank of tp, and parameters are
#: sharded over dp.
PLANS = {"ring": "megatron-sp,ring,zero1", "ulysses": "megatron,ulysses,zero3"}

#: Axes major to minor: the last one has neighbouring ranks.
ORDERS = ("pp,dp,cp,tp", "dp,pp,tp,cp", "tp,cp,dp,pp")
MODELS = ("gpt2", "llama", "bert", "mixtral")
OPTIMIZERS = ("adamw", "sgd")

#: Of a batch of 8 a rank of dp=2 has one sample in each.
MICRO_BATCHES = 4


@dataclasses.dataclass(frozen=True)
class FourAxes:
    """A step on sixteen ranks, two along each axis."""

    schedule: str
    plan: str
    order: str
    model: str
    optimizer: str

    @property
    def axes(self):
        return dict.fromkeys(self.order.split(","), 2)

    @property
    def mesh(self):
        return ",".join(f"{axis}={size}" for axis, size in self.axes.items())

    @property
    def recipe(self):
        return PLANS[self.plan]

    @property
    def chunks(self):
        return SCHEDULES[self.schedule]

    @property
    def micro_batches(self):
        return MICRO_BATCHES

    def __str__(self):
        return f"{self.schedule}-{self.plan}-{self.model}-{self.optimizer}-{self.order}"


def every_case():
    """Every schedule with each plan, order and model; optimizers in turn."""
    return [FourAxes(*values, OPTIMIZERS[(index + index // len(MODELS)) % 2])
            for index, values in enumerate(itertools.product(SCHEDULES, PLANS, ORDERS, MODELS))]


def drawn(seed):
    """Every schedule with each plan, on a drawn order, model and optimizer."""
    cases = every_case()
    met = {(case.schedule, case.plan): case
           for case in random.Random(seed).sample(cases, len(cases))}
    return [met[pair] for pair in itertools.product(SCHEDULES, PLANS)]


def covering():
    """Cases in which any two of schedule, plan, order, model and optimizer meet."""
    return cover(every_case())
