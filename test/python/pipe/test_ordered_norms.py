# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Norms over stages, and of an entire parameter that two stages hold, with and without clipping.

The norm of all gradients is added up from the last stage to the first, from which the total is
sent to all, instead of each term to each stage. Part N of a stage cannot wait for that of an earlier stage, which sums the global norm. What
depends on clipped gradients, such as LAMB's ratio of a parameter, is therefore computed by the
updates of all stages that hold it; where only one of them could, it is refused
(test/Dialect/Pipe/Split/split-ordered-norms-invalid.mlir).
"""

import re

import pytest
import torch
from torch import nn

import cleave
from cleave.compiler.entrance import grouped
from pipeline_runs import check_scheduled
from watchdog import within_limit

STEPS = 3
RULES = {
    "lamb": lambda **s: cleave.LAMB(lr=1e-2, **s),
    "adafactor": lambda **s: cleave.Adafactor(lr=1e-2, **s),
    "muon": lambda **s: cleave.Muon(lr=2e-2, **s, param_groups=[
        dict(match=lambda n, p: p.ndim != 2, optimizer=cleave.AdamW(lr=1e-3))]),
    "adamw8bit": lambda **s: cleave.AdamW8bit(lr=1e-3, eps=1e-5, **s),
}


class Shared(nn.Module):
    """A layer that the second and the third stage have."""

    def __init__(self):
        super().__init__()
        self.first, self.shared, self.third, self.head = (
            nn.Linear(16, 16, bias=False) for _ in range(4))

    def forward(self, x, y):
        x = torch.tanh(self.shared(torch.tanh(self.first(x))))
        x = torch.tanh(self.shared(torch.tanh(self.third(x))))
        return (self.head(x) - y).square().mean()


def batch(index):
    generator = torch.Generator().manual_seed(index)
    return torch.randn(4, 16, generator=generator), torch.randn(4, 16, generator=generator)


def compiled(rule, clip, **options):
    torch.manual_seed(0)
    return cleave.compile(Shared(), batch(0), optimizer=RULES[rule](max_grad_norm=clip),
                          micro_batches=2, check="off", **grouped(**options))


def left_by(step):
    losses = [float(step(*batch(index))) for index in range(STEPS)]
    state = step.training_state()["optimizer"]
    return losses, step.state_dict() | {
        f"{name}.{slot}": value for name, slots in state.items() for slot, value in slots.items()}


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("stages", [["shared.weight", "third.weight"], ["third.weight"]],
                         ids=["later", "first"])
@pytest.mark.parametrize("rule", RULES)
def test_whole_parameters_of_two_stages(rule, stages, clip):
    options = dict(mesh={"pp": len(stages) + 1}, stages=stages)
    losses, found = within_limit(left_by, compiled(rule, clip, **options))
    wanted, expected = left_by(compiled(rule, clip))
    assert losses == pytest.approx(wanted, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=1e-6, msg=name)


def sent_before_updates(program):
    """Pairs of stages of which the first sends what it computes before the updates."""
    schedule = re.search(r'pipe\.program @train\(.*? schedule = "([^"]*)"', program, re.S).group(1)
    return [(int(source or 0), int(target))
            for source, target in re.findall(r"(?<!\S)(\d*)N>(\d+)", schedule)]


@pytest.mark.parametrize("mesh, recipes, stages, micro_batches", [
    ("pp=8", "", 8, 4), ("pp=4,tp=2", "megatron", 4, 1), ("pp=4,dp=2", "zero1", 4, 2)])
def test_terms_travel_to_the_first_stage(tmp_path_factory, mesh, recipes, stages, micro_batches):
    program = check_scheduled(tmp_path_factory, "gpt2", mesh, recipes, "sgd", micro_batches,
                              sizes=(8, 8, ("n_layer", stages)))
    sent = sent_before_updates(program)
    assert sorted(sent) == sorted([(stage, stage - 1) for stage in range(1, stages)]
                                  + [(0, stage) for stage in range(1, stages)])
