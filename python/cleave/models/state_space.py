# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""State-space layers as Mamba-2 (arXiv 2405.21060) has them: a scan by chunks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..recurrence import chunked_scan
from .size import Size


class StateSpace(nn.Module):
    """A mixer of positions. Each of its heads has a state, which decays by a factor that it
    computes of its input; groups of heads write and read their states by the same rows."""

    def __init__(self, size: Size):
        super().__init__()
        inner = 2 * size.hidden
        self.width = size.head_width or 64
        if inner % (self.width * size.state_groups):
            raise ValueError(f"2 * hidden ({inner}) must be a multiple of head_width * "
                             f"state_groups ({self.width * size.state_groups})")
        self.heads, self.groups, self.state = inner // self.width, size.state_groups, size.state
        self.chunk = min(size.chunk, size.seq)
        rows = self.groups * size.state
        self.gate = nn.Linear(size.hidden, inner, bias=False)
        self.up = nn.Linear(size.hidden, inner, bias=False)
        self.write = nn.Linear(size.hidden, rows, bias=False)
        self.read = nn.Linear(size.hidden, rows, bias=False)
        self.step = nn.Linear(size.hidden, self.heads, bias=False)
        self.up_taps, self.write_taps, self.read_taps = (
            nn.Conv1d(n, n, size.taps, groups=n, padding=size.taps - 1)
            for n in (inner, rows, rows))
        # As the paper's code: decays of 1 to the number of heads, steps of 0.001 to 0.1.
        steps = torch.exp(torch.rand(self.heads) * math.log(100) + math.log(0.001))
        self.step_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.decay = nn.Parameter(torch.log(torch.arange(1, self.heads + 1,
                                                         dtype=torch.float32)))
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.Parameter(torch.ones(inner))
        self.down = nn.Linear(inner, size.hidden, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape

        def mixed(rows, taps, groups):
            y = F.silu(taps(rows.transpose(1, 2))[..., :length]).transpose(1, 2)
            return y.reshape(batch, length, groups, -1)

        y = mixed(self.up(x), self.up_taps, self.heads)
        write = mixed(self.write(x), self.write_taps, self.groups)
        read = mixed(self.read(x), self.read_taps, self.groups)
        steps = F.softplus(self.step(x).float() + self.step_bias.float())
        scanned, _ = chunked_scan(y.float(), steps, -torch.exp(self.decay.float()), write.float(),
                                  read.float(), self.chunk)
        y = (scanned + y * self.skip[:, None]).reshape(batch, length, -1)
        y = (y * F.silu(self.gate(x).float())).reshape(batch, length, self.groups, -1)
        y = F.rms_norm(y, (y.shape[-1],), eps=1e-5).reshape(batch, length, -1)
        return self.down(y.to(x.dtype) * self.norm)
