# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pipelines to be tested: a list in which any two of schedule, positions, recipe and
model meet at least once."""

import dataclasses
import itertools
import random

#: Synchronous schedules, and the stages that each position has.
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2,
             "v-half": 2, "v-min": 2, "dualpipe-v": 2, "auto": 1}

#: Recipes beside a pipeline, and the axes that they need.
RECIPES = {"": "", "dp": "dp=2", "zero1": "dp=2", "zero2": "dp=2", "zero3": "dp=2",
           "megatron": "tp=2", "megatron-sp": "tp=2", "context": "cp=2", "ring": "cp=2",
           "two-ring": "cp=2", "ulysses": "cp=2", "expert": "ep=2",
           "summa2d": "row=2,col=2", "summa25d": "depth=2,row=2,col=2"}
POSITIONS = (2, 4)
MODELS = ("gpt2", "llama", "mixtral")


@dataclasses.dataclass(frozen=True)
class PipelineCase:
    schedule: str
    positions: int
    recipe: str
    model: str

    @property
    def mesh(self):
        return ",".join(filter(None, [f"pp={self.positions}", RECIPES[self.recipe]]))

    @property
    def axes(self):
        return {name: int(size) for name, size in
                (axis.split("=") for axis in self.mesh.split(","))}

    @property
    def chunks(self):
        return SCHEDULES[self.schedule]

    @property
    def micro_batches(self):
        """Of a batch of 8, as many as are wanted, or as a device has samples."""
        parts = {"expert": 2, "dp": 2, "zero1": 2, "zero2": 2, "zero3": 2, "summa2d": 2,
                 "summa25d": 4}.get(self.recipe, 1)
        return min(8 // parts, 8 if self.schedule == "dualpipe-v" else 4)

    def __str__(self):
        return f"{self.schedule}-{self.model}-{self.recipe or 'alone'}-{self.mesh}"


def legal(case):
    """Experts need a model that has some. Interleaved stages take turns in rounds of
    as many micro-batches as there are positions, and DualPipe fills both directions:
    where samples are split there are not enough of them."""
    if case.recipe == "expert" and case.model != "mixtral":
        return False
    if case.schedule == "interleaved":
        return case.micro_batches % case.positions == 0
    return case.schedule != "dualpipe-v" or case.micro_batches >= 2 * case.positions


def shaped():
    """Every schedule with models that are not a row of layers, and a few with something
    beside."""
    cases = [PipelineCase(schedule, positions, recipe, model)
             for model, beside in (("skips", "zero3"), ("t5", "megatron"))
             for schedule in SCHEDULES
             for positions, recipe in ((2, ""), (4, ""), (2, beside))]
    return list(filter(legal, cases))


def pairs_of(case):
    return set(itertools.combinations(dataclasses.astuple(case), 2))


def covering():
    """Cases by which every pair that some legal case has is covered."""
    return cover([case for case in map(PipelineCase, *zip(*itertools.product(
        SCHEDULES, POSITIONS, RECIPES, MODELS))) if legal(case)])


def cover(cases):
    """Of `cases` some by which every pair that one of them has is covered: always the one
    that adds most pairs, of several the first."""
    missing = set().union(*map(pairs_of, cases))
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(pairs_of(case) & missing))
        missing -= pairs_of(best)
        chosen.append(best)
    return chosen


def sample(cases, seed):
    """Some of `cases`, in a drawn order, by which each schedule, recipe, model and
    number of positions is there."""
    missing = {value for case in cases for value in dataclasses.astuple(case)}
    drawn = []
    for least in (3, 2, 1):
        for case in random.Random(seed).sample(cases, len(cases)):
            if len(missing & set(dataclasses.astuple(case))) >= least:
                missing -= set(dataclasses.astuple(case))
                drawn.append(case)
    return drawn
