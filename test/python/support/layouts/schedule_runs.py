# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Programs compiled for a schedule."""

import torch
from torch import nn

import cleave
from cleave.compiler.entrance import grouped


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).square().sum()


def compiled(**options):
    torch.manual_seed(0)
    return cleave.compile(Layers(), (torch.randn(8, 16),),
                          **grouped(**{"micro_batches": 2, **options}))
