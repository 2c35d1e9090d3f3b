# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Asynchronous pipelines, simulated step by step."""

import functools
import re

import numpy as np
import torch

from cleave.testing.tools import interpret
from recipe_runs import LENGTH, emit, random_inputs

EACH = 2  # Samples of a micro-batch.

#: Changes of models so that no parameter is in two stages.
UNTIED = {"gpt2": (("tie_word_embeddings", False), ("n_layer", 4)),
          "llama": (("num_hidden_layers", 4),)}

SGD = ["--optimizer=sgd", "--momentum=0.9"]
ADAMW = ["--optimizer=adamw", "--eps=1e-3", "--weight-decay=0.1"]
OPTIMIZERS = {
    "sgd": (SGD, functools.partial(torch.optim.SGD, lr=0.125, momentum=0.9)),
    "adamw": (ADAMW, functools.partial(torch.optim.AdamW, lr=0.125, eps=1e-3, weight_decay=0.1)),
}


def sizes_of(name):
    return (EACH, LENGTH, *UNTIED[name])


def program_of(folder, name, mesh, micro_batches, *flags, phase="scheduled"):
    return emit(folder, name, phase, f"--mesh={mesh}", f"--micro-batches={micro_batches}",
                "--check-finite=off", *flags, sizes=sizes_of(name))


def step_of(folder, name, flags):
    return emit(folder, name, "step", "--check-finite=off", *flags, sizes=sizes_of(name))


def first_inputs(step, micro_batches):
    """Those of a first call: no momentum yet, and a batch of all micro-batches."""
    inputs = random_inputs(step)
    slots = [name for name in inputs if re.search(r"\.(exp_avg|exp_avg_sq|momentum)", name)]
    assert slots
    for name in slots:
        inputs[name] = np.zeros_like(inputs[name])
    rng = np.random.default_rng(3)
    shape = (micro_batches * EACH, LENGTH)
    inputs["input_ids"] = rng.integers(3, 96, shape)
    inputs["labels"] = rng.integers(3, 96, shape)
    inputs["labels"][::3, -3:] = -100
    inputs["lr"] = np.array(0.125, np.float32)
    inputs["step"] = np.array(1)
    inputs["rng"] = np.array([5, 1])
    return inputs


def part_of(inputs, call, i, micro_batches):
    """What the one-device step of micro-batch `i` is given."""
    own = dict(inputs)
    for name in ("input_ids", "labels"):
        own[name] = inputs[name][i * EACH:(i + 1) * EACH]
    number = (call - 1) * micro_batches + i + 1
    return own | {"step": np.array(number), "rng": np.array([5, number])}


def stages_of(program):
    """The parameters of each stage: what its update reads and makes anew."""
    header = re.search(r"pipe\.program @train\((.*?)\n", program).group(1)
    names = dict(re.findall(r'(%arg\d+): tensor<\S+> \{[^}]*?graph\.name = "([^"]*)", '
                            r'graph\.role = "parameter"', header))
    body = program[program.index("pipe.program @train"):]
    stages = {}
    for stage, operands in re.findall(r"pipe\.invoke @train\.(\d*)U\((.*?)\)", body):
        stages[int(stage or 0)] = [names[a] for a in operands.split(", ") if a in names]
    return stages


class Simulation:
    """PipeDream without Cleave's schedule, over calls of `m` micro-batches: a stage runs
    forward for so many micro-batches ahead as there are stages after it, at most
    `bound`."""

    def __init__(self, step, stages, make_optimizer, inputs, m, bound):
        self.step, self.stages, self.m, self.bound = step, stages, m, bound
        self.names = [name for own in stages.values() for name in own]
        assert len(set(self.names)) == len(self.names)
        self.weights = {name: torch.nn.Parameter(torch.tensor(inputs[name]))
                        for name in self.names}
        self.optimizer = make_optimizer(self.weights.values())

    def snapshot(self):
        return {name: value.detach().numpy().copy() for name, value in self.weights.items()}

    def call(self, inputs, number):
        versions, losses, used = [self.snapshot()], [], []
        for i in range(self.m):
            own = part_of(inputs, number, i, self.m)
            used.append({})
            for stage, names in self.stages.items():
                ahead = min(len(self.stages) - 1 - stage, self.m, self.bound)
                used[i][stage] = max(0, i - ahead)
                own |= {name: versions[used[i][stage]][name] for name in names}
            results, gradients = interpret(self.step, own, entry="train")
            losses.append(float(results["loss"]))
            for name, value in self.weights.items():
                value.grad = torch.tensor(gradients[name]).reshape(value.shape)
            self.optimizer.step()
            versions.append(self.snapshot())
        return np.mean(losses), versions[-1], used


def state_after(inputs, results):
    """The inputs of the next call."""
    return {name: results[name].reshape(value.shape) if name in results else value
            for name, value in inputs.items()}
