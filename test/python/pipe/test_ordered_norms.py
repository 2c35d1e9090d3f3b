# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Norms of an entire parameter that two stages hold, with and without clipping.

Part N of a stage cannot wait for that of an earlier stage, which sums the global norm. What
depends on clipped gradients, such as LAMB's ratio of a parameter, is therefore computed by the
updates of all stages that hold it; where only one of them could, it is refused
(test/Dialect/Pipe/Split/split-ordered-norms-invalid.mlir).
"""

import pytest
import torch
from torch import nn

import cleave
from cleave.compiler.entrance import grouped
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
