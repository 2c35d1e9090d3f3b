# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Proves that passes of a loop which are skipped, those of experts that no token chose, would
compute nothing."""

from __future__ import annotations

import dataclasses
from typing import Sequence

import torch
from torch.fx import Node

from ..alike import alike
from ..conditions import Decision, refused_skip
from .calls import Loop
from .meaning import Mixture, chooses


@dataclasses.dataclass
class Skips:
    """The decisions of a forward not to skip passes. Their conditions are the last outputs of its
    program."""

    decisions: Sequence[Decision]
    #: The number of the first outputs that are the step's own.
    outputs: int
    #: The program of the forward that skips all of these passes.
    skipped: torch.export.ExportedProgram | None

    def remove(self, program: torch.export.ExportedProgram) -> list[Node]:
        """Removes the conditions from the outputs of a program, and returns them."""
        count = len(self.decisions)
        output = next(reversed(program.graph.nodes))
        found = list(output.args[0])
        conditions = [found.pop() for _ in range(count)][::-1]
        output.args = (tuple(found),)
        del program.graph_signature.output_specs[len(found):]
        return conditions

    def prove(self, program: torch.export.ExportedProgram, conditions: list[Node],
              found: list[tuple[Loop, Mixture]]) -> None:
        """Raises TraceError for a condition, unless each is false only where no token chose the
        next expert of a loop in `found`, and without these loops the program is the one that skips
        all passes."""
        order = {node: i for i, node in enumerate(program.graph.nodes)}
        for condition, decision in zip(conditions, self.decisions):
            # The experts after a condition are those it decides about, the next one first.
            loop, number = min(
                ((place, i) for place, (loop, _) in enumerate(found)
                 for i, e in enumerate(loop.experts) if order[e.nodes[0]] > order[condition]),
                key=lambda at: order[found[at[0]][0].experts[at[1]].nodes[0]], default=(None, 0))
            if loop is None or not chooses(condition, decision.taken, found[loop][1],
                                           found[loop][0].experts, number, order):
                raise refused_skip(decision)
        begins = {mixture.out: mixture.begin for _, mixture in found if mixture.begin is not None}
        if self.skipped is not None and not alike(self.outputs, program, self.skipped,
                                                  instead=begins):
            raise refused_skip(self.decisions[0])
