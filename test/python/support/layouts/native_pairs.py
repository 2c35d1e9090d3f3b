# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pairs of recipes natively: cases, references, and the comparison."""

import functools
import random
import re

import cleave
from equality_support import DECAY, LR, torch_adamw
from expert_models import own, switch
from pair_models import PAIRS
from recipe_pairs import RECIPES
from training_support import cleave_run, family, torch_run

BATCH, STEPS, ADAMW_STEPS = 8, 4, 20

#: Cases, with dropout or without.
CASES = {
    "gpt2": lambda p: family("gpt2", batch=BATCH, resid_pdrop=p, embd_pdrop=p, attn_pdrop=p),
    "llama": lambda p: family("llama", batch=BATCH, attention_dropout=p),
    "bert": lambda p: family("bert", batch=BATCH, hidden_dropout_prob=p,
                             attention_probs_dropout_prob=p),
    "mixtral": lambda p: family("mixtral", batch=BATCH, attention_dropout=p),
    "switch": lambda p: switch(batch=BATCH, dropout_rate=p),
    "top1": lambda p: own(batch=BATCH, capacity=0.75, dropout=p),
    "top2": lambda p: own(batch=BATCH, choices=2, capacity=0.75, dropout=p),
}


def sample():
    """Pairs in a drawn order that add two recipes, then those that add one, as long
    as one is missing."""
    order = random.Random(3).sample(PAIRS, len(PAIRS))
    missing, drawn = set(RECIPES), []
    for least in (2, 1):
        for pair in order:
            if len(missing & set(pair.names)) >= least:
                missing -= set(pair.names)
                drawn.append(pair)
    assert not missing
    return drawn


def sgd():
    return cleave.SGD(lr=0.05, momentum=0.9, max_grad_norm=1.0)


@functools.cache
def one_device(name, parts):
    return cleave_run(CASES[name](0.1), STEPS, sgd(), micro_batches=parts)


def layer_of(name):
    """The part of a name up to the number of its layer, or of its module."""
    found = re.match(r".*?\.\d+(?=\.)", name)
    return found.group() if found else name.rpartition(".")[0]


def agree(found, expected, kind):
    """To 1e-4 of the largest element of a layer."""
    assert found.keys() == expected.keys()
    for values in (found, expected):
        for name, value in values.items():
            assert value.isfinite().all(), (kind, name, "not finite")
    largest = {}
    for name, value in expected.items():
        layer = layer_of(name)
        largest[layer] = max(largest.get(layer, 0), float(value.abs().max()))
    for name, value in expected.items():
        error = float((found[name].double() - value.double()).abs().max())
        assert error <= 1e-4 * largest[layer_of(name)], (kind, name, error, largest[layer_of(name)])


def adamw():
    return cleave.AdamW(lr=LR, weight_decay=DECAY)


def steps_of(name):
    """Fewer where tokens are routed: once roundings have grown, one that is between
    two experts may go to the other, and no number is near its equal any more."""
    return ADAMW_STEPS // 4 if name in ("mixtral", "switch", "top1", "top2") else ADAMW_STEPS


@functools.cache
def references(name, parts):
    """PyTorch in f64, and what its updates are compared with."""
    case, steps = CASES[name](0.0), steps_of(name)
    return (torch_run(case, steps, torch_adamw, double=True),
            torch_run(case, steps, torch_adamw),
            cleave_run(case, steps, adamw(), micro_batches=parts))
