# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models with experts, which importing this adds to those of recipe_runs, and their meshes."""

import math

from expert_models import LIBRARY, Own, Switch, library
from recipe_runs import MAKERS, family

MAKERS["mixtral"] = family("mixtral", attention_dropout=0.1)
MAKERS["mixtral-balanced"] = family("mixtral", output_router_logits=True,
                                    router_aux_loss_coef=0.5)
MAKERS["switch"] = lambda: Switch(dropout_rate=0.1, router_jitter_noise=0.1)
MAKERS["top1"] = lambda: Own(capacity=0.75, dropout=0.1)
MAKERS["noisy"] = lambda: Own(choices=2, capacity=0, noisy=True)
MAKERS["top2"] = lambda: Own(choices=2, capacity=0.75, dropout=0.1)

MAKERS.update({f"library-{name}": lambda name=name: library(name).build() for name in LIBRARY})

#: Layouts of mixtures of the library that drop nothing.
DROPLESS = [("ep=2", "expert"), ("tp=2", "megatron"), ("dp=2", "zero1"), ("tp=2", "megatron,expert(tp)"),
            ("ep=2,tp=2", "expert,megatron"), ("dp=2,ep=2", "expert,zero3"), ("cp=2", "context,expert(cp)"),
            ("tp=2", "megatron-sp")]

#: Models of this file that the tests of pairs of recipes take in turn.
MODELS = ["mixtral", "switch", "top1", "top2", "noisy"]

CASES = [
    ("ep=2", "expert"),
    ("ep=4", "expert"),
    ("dp=2,ep=2", "expert"),
    ("ep=2,dp=2", "expert,zero1"),
    ("dp=2,ep=2", "expert,zero2"),
    ("dp=2,ep=4", "expert,zero3"),
    ("dp=2,fsdp=2", "expert(fsdp),zero3(fsdp)"),
    ("ep=2,tp=2", "expert,megatron"),
    ("ep=2,tp=2", "megatron-sp,expert,zero1(ep)"),
    ("dp=2,ep=2,tp=2", "expert,megatron,zero3"),
    ("ep=2,cp=2", "expert,ulysses"),
    # Over the ranks of another recipe, and of several.
    ("tp=2", "megatron,expert(tp)"),
    ("dp=2,tp=2", "megatron-sp,expert(tp),zero1"),
    ("tp=2,dp=2", "megatron-sp,expert(tp),expert(dp),zero1"),
    ("cp=2,dp=2", "ulysses,expert(cp),zero3"),
    ("cp=2,tp=2", "context,megatron-sp,expert(tp),expert(cp)"),
]


def devices_of(mesh):
    return math.prod(int(axis.split("=")[1]) for axis in mesh.split(","))
