# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A small model in 16 bits, its batches and losses."""

import torch

import cleave
from cleave import models
from cleave.compiler.entrance import grouped

SIZE = dict(layers=2, hidden=64, heads=4, seq=32, vocab=199)


def model(family="gpt", **more):
    torch.manual_seed(0)
    return getattr(models, family)(**SIZE, **more)


def batch(count=4):
    ids = torch.randint(0, SIZE["vocab"], (count, SIZE["seq"]),
                        generator=torch.Generator().manual_seed(3))
    return dict(input_ids=ids, labels=ids)


def compiled(own, **options):
    options = dict(optimizer=cleave.AdamW(lr=1e-3), check="off", threads=1) | options
    if "mesh" in options:
        options.pop("threads")
    return cleave.compile(own, batch(), **grouped(**options))


def losses(step, steps=8):
    return [float(step(**batch())) for _ in range(steps)]
