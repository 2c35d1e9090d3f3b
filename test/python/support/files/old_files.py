# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Files that an earlier version wrote (test/old), and the runs that they are of.

`test/old/write.py` makes them with that version, from the same cases. Only names that both
versions accept may be here.
"""

import dataclasses
import os
import subprocess
import sys

import numpy
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

import cleave
from cleave.testing.tools import tool

#: Flags of `cleave-run`: three steps are made before the checkpoint, three after it.
FLAGS = ["--data=tokens.bin", "--label-shift=1", "--lr=0.03", "--lr-schedule=cosine",
         "--warmup=2", "--seed=3", "--steps=6", "--threads=2"]

#: A processor that any x86 of this decade serves as.
CPU = ["--cpu=x86-64-v3", "--vector-bits=256"]


@dataclasses.dataclass
class Case:
    """Options of `cleave-compile`, and how far what is trained may be from what it was."""

    flags: list[str]
    rtol: float = 1e-4
    model: str = "tiny"


def _case(text, **settings):
    return Case(text.split(), **settings)


#: A program for each kind of state that a checkpoint has, by the flags of the version.
CASES = {
    "f32": _case("--clip=0.5 --no-decay=ndim<2"),
    "bf16": _case("--precision=bf16", rtol=1e-2),
    "fp16": _case("--precision=fp16 --loss-scale-init=1e9 --loss-scale-window=2", rtol=1e-2),
    "fp8": _case("--precision=fp8 --fp8-history=4 --mesh=dp=2", rtol=5e-2),
    "zero1": _case("--mesh=dp=2 --recipe=zero1 --optimizer=lion"),
    "zero2": _case("--mesh=dp=2 --recipe=zero2 --optimizer=sgd --momentum=0.9"),
    "zero3": _case("--mesh=dp=2,tp=2 --recipe=zero3,megatron-sp --optimizer=adagrad"),
    "pipeline": _case("--mesh=pp=2 --micro-batches=2 --schedule=1f1b --optimizer=adafactor"),
    "pipedream": _case("--mesh=pp=2 --micro-batches=2 --schedule=pipedream --check-finite=off "
                       "--optimizer=sgd --momentum=0.9", model="untied"),
    "fusion": _case("--optimizer-fusion=forward --check-finite=off --optimizer=lamb"),
    "delay": _case("--update-delay=1 --optimizer=sgd"),
    "powersgd": _case("--mesh=dp=2 --compress=powersgd,rank=1 --optimizer=sgd --momentum=0.9"),
    "prune": _case("--prune=2:4 --optimizer=sgd --momentum=0.9"),
    "quantize": _case("--quantize=int8 --optimizer=lion"),
    "muon": _case("--optimizer=muon --group=ndim<2:optimizer=adamw --micro-batches=2"),
    "offload": _case("--offload=state --mesh=dp=2 --optimizer=lion"),
    "adamw8bit": _case("--optimizer=adamw8bit", model="wide", rtol=2e-3),
}

#: Of these the artifacts are kept too.
ARTIFACTS = ["zero1", "pipeline"]

#: Files that options name, and the options.
TEXTS = {
    "schedule.txt": ("F0 F1 B0 B1\n1F0 1B0 1F1 1B1\n",
                     "--mesh=pp=2 --micro-batches=2 --schedule-file=schedule.txt"),
    "recompute.txt": ("full # the first block\n", "--recompute-file=recompute.txt"),
    "precision.txt": ("gelu=f32\nup.*=f32\n",
                      "--precision=bf16 --precision-policy=precision.txt"),
}


class Model(nn.Module):
    """A transformer layer with dropout, its loss within."""

    def __init__(self, vocab=16, width=8, heads=2, dropout=0.0, tied=True):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.embedding = nn.Embedding(vocab, width)
        self.before = nn.LayerNorm(width)
        # A bias of keys would be trained by noise alone.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.last = nn.LayerNorm(width)
        self.head = None if tied else nn.Linear(width, vocab, bias=False)

    def forward(self, ids, labels):
        x = self.embedding(ids)
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).chunk(3, dim=-1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.out(y.transpose(1, 2).reshape(batch, length, width))
        x = x + F.dropout(y, self.dropout, self.training)
        x = x + self.down(F.gelu(self.up(self.after(x))))
        logits = self.last(x) @ (self.head or self.embedding).weight.T
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


#: Their arguments. The embedding of `wide` is large enough for state in 8 bits.
MODELS = {"tiny": {}, "wide": dict(vocab=512), "untied": dict(tied=False)}


def model(name):
    torch.manual_seed(5)
    return Model(**MODELS[name]).train()


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 16, (4, 8), generator=generator)
    return {"ids": ids, "labels": ids.roll(-1, 1)}


#: What `cleave.compile` is given for the checkpoints that `Step.save` has written.
STEPS = {
    "dropout": dict(dropout=0.25, mesh={"dp": 2}, plan="zero1", seed=11),
    "stages": dict(dropout=0.25, mesh={"pp": 2}, micro_batches=2, precision="bf16", seed=11),
}


def step(name):
    """A compiled step."""
    torch.manual_seed(5)
    options = dict(STEPS[name])
    module = Model(dropout=options.pop("dropout")).train()
    return cleave.compile(module, batch(), optimizer=cleave.Lion(lr=1e-2), check="off", **options)


def train(step, first):
    """The losses of three steps, from the `first` one on."""
    return [float(step(**batch(seed))) for seed in range(first, first + 3)]


def run(name, *arguments, **environment):
    """Runs a tool in this folder, and returns what it printed."""
    result = subprocess.run([tool(name), *map(str, arguments)], capture_output=True, text=True,
                            timeout=120, env={**os.environ, "CLEAVE_TUNING": "off",
                                              "CLEAVE_PYTHON": sys.executable, **environment})
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def summary(folder):
    """Of each tensor of a checkpoint its sum, and the sum of its absolute values."""
    sums = {}
    for file in ("model.safetensors", "optimizer.safetensors"):
        with safe_open(os.path.join(folder, file), "pt") as tensors:
            for name in tensors.keys():
                values = tensors.get_tensor(name).double().numpy()
                sums[f"{file}: {name}"] = [float(values.sum()), float(numpy.abs(values).sum())]
    return sums
