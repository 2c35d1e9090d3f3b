# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Classes of models of the transformers library, built small, beside PyTorch.

A sample, drawn by a seed, is trained; with ``CLEAVE_TEST_ALL=1`` every class is.
`models.json` says what became of each.
"""

import random

import pytest

transformers = pytest.importorskip("transformers")

import model_census  # noqa: E402
from proofs import ALL  # noqa: E402

TABLE = model_census.read()
TRAINED = sorted(n for n, entry in TABLE.items() if entry["status"] == model_census.TRAINS)
SAMPLE = random.Random(16).sample(TRAINED, min(4, len(TRAINED)))
#: Parts that run one by one, so that several processes share them.
PARTS = 16


@pytest.mark.skipif(ALL, reason="every class is tried")
@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_trains(name):
    found = model_census.attempt(name, *model_census.classes()[name], True)
    assert (found["status"], found["why"]) == (model_census.TRAINS, "")


@pytest.mark.skipif(not ALL, reason="a long proof")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_class(part):
    """None is wrong, and what the table says is traced trains."""
    names = list(model_census.classes())[part::PARTS]
    found = model_census.run(names, True)
    said = {n: f"{f['status']}: {f['why']}" for n, f in found.items()}
    good = (model_census.TRAINS, model_census.TRACES)
    assert not {n: said[n] for n, f in found.items() if f["status"] == model_census.WRONG}
    assert not {n: said[n] for n, f in found.items()
                if TABLE.get(n, {}).get("status") in good and f["status"] != model_census.TRAINS}


def test_what_is_refused_says_where():
    """A refusal names a line."""
    refused = {n: e["why"] for n, e in TABLE.items() if e["status"] == model_census.REFUSED}
    assert not {n: why for n, why in refused.items() if ".py:" not in why}


def test_the_table_says_of_none_that_it_is_wrong():
    assert not [n for n, e in TABLE.items() if e["status"] == model_census.WRONG]


def test_the_page_is_that_of_the_table():
    assert model_census.PAGE.read_text() == model_census.page(TABLE)


def test_a_wrong_loss_and_a_wrong_update_are_seen():
    """The comparison is not vacuous."""
    import torch
    losses, updates = [1.0, 2.0], {"a": torch.ones(4), "b": torch.full((4,), 1e-9)}
    near = {"a": updates["a"] * (1 + 5e-4), "b": updates["b"] * 2}
    assert not model_census.differs(losses, near, losses, updates)
    assert model_census.differs([1.0, 2.001], updates, losses, updates).startswith("loss 1")
    assert model_census.differs(losses, {**near, "a": updates["a"] * 1.01}, losses, updates)
    assert model_census.differs(losses, {"b": updates["b"]}, losses, updates)


def test_an_operator_that_checks_its_operand_is_named():
    import cleave.trace
    import torch

    class Inverse(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(3) + 0.1)

        def forward(self, x):
            return torch.linalg.inv(self.weight).sum() + x.sum()

    with pytest.raises(cleave.trace.UnsupportedError, match=r"test_models.py:\d+: aten.linalg_inv.default: no conversion"):
        cleave.trace.trace(Inverse(), (torch.zeros(2),))
