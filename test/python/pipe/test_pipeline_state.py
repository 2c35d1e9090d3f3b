# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The state after a step of a pipeline is that of one rank, wherever stages are cut."""

import pytest
import torch

import cleave
from cleave import models
from cleave.compiler.entrance import grouped

STEPS = 3


def bert():
    torch.manual_seed(0)
    return models.bert(layers=2, hidden=32, heads=4, seq=16, vocab=64)


def batch(index):
    ids = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(100 + index))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def train(optimizer, **options):
    """Changes of parameters, and the optimizer's state, after some steps."""
    step = cleave.compile(bert(), batch(0), optimizer=optimizer, micro_batches=2,
                          **grouped(**options))
    start = {name: value.clone() for name, value in step.state_dict(masters=True).items()}
    for index in range(STEPS):
        step(**batch(index))
    left = {name: value - start[name] for name, value in step.state_dict(masters=True).items()}
    for name, own in step.training_state()["optimizer"].items():
        left.update({f"{name}.{slot}": value for slot, value in own.items()})
    return left


def compare(found, expected, tolerance=5e-3):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # The bias of keys has no gradient but rounding.
        if "key.bias" in name or not value.is_floating_point():
            continue
        error = (found[name] - value).double().norm()
        assert error <= tolerance * value.double().norm() + 1e-7, name


RULES = {
    "lamb": lambda: cleave.LAMB(lr=1e-2),
    "lamb, clipped": lambda: cleave.LAMB(lr=1e-2, max_grad_norm=0.5),
    "adafactor": lambda: cleave.Adafactor(lr=1e-2),
    "muon": lambda: cleave.Muon(lr=2e-2, param_groups=[
        dict(match=lambda n, p: p.ndim != 2, optimizer=cleave.AdamW(lr=1e-3))]),
}


# The default cut, and one between the queries and the keys of a layer.
@pytest.mark.parametrize("stages", [None, "blocks.1.attention.key.weight"])
@pytest.mark.parametrize("rule", RULES)
def test_rules_that_read_whole_parameters(rule, stages):
    options = {"stages": [stages]} if stages else {}
    compare(train(RULES[rule](), mesh={"pp": 2}, **options), train(RULES[rule]()))


@pytest.mark.parametrize("compress", ["topk,density=0.05", "powersgd,rank=2,min_rate=1.1"])
def test_residuals_of_compressed_gradients(compress):
    options = {"compress": compress}
    compare(train(cleave.SGD(lr=0.2), mesh={"dp": 2, "pp": 2}, **options),
            train(cleave.SGD(lr=0.2), mesh={"dp": 2}, **options))
