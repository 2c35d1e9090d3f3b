# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Replaces loops over experts by grouped linear layers."""

from __future__ import annotations

from typing import Any, Iterable

import torch
from torch.fx import Node

from ..conditions import refused_skip
from .calls import Loop, is_tensor, loops
from .meaning import Mixture, Parts, mixture, parts, size_of
from .rows import NotRows, RowsOfChoices, RowsOfParts
from .skips import Skips


def gather_expert_loops(program: torch.export.ExportedProgram, module: torch.nn.Module,
                        groups: int, skips: Skips) -> dict[str, list[str]]:
    """Replaces loops over experts in `program`, of which `module` is the model. Tokens are routed
    in `groups` groups, one for each sample, if their number is divisible by it. Returns the
    parameters to be stacked: the name of each stack, and the names of its parts in order. Raises
    TraceError for `skips` of passes that would compute something."""
    conditions = skips.remove(program)
    decided: dict[Any, bool] = {}
    found = [(loop, meaning) for loop in loops(program, module) if (
        meaning := mixture(program, loop.experts, decided) or parts(loop.experts)) is not None]
    if conditions:
        skips.prove(program, conditions, [(loop, sum) for loop, sum in found
                                          if isinstance(sum, Mixture)])
    order = {node: i for i, node in enumerate(program.graph.nodes)}
    stacks: dict[str, list[str]] = {}
    # The last loop first, so that what others are computed of is not replaced before them.
    for loop, meaning in sorted(found, key=lambda at: -order[at[1].out]):
        if meaning.out not in set(program.graph.nodes):
            # It is a part of an expert of another loop, and was replaced with it.
            continue
        try:
            result = _sum(program, loop, meaning, groups) if isinstance(meaning, Mixture) \
                else _joined(program, loop, meaning)
        except NotRows:
            if conditions:
                raise refused_skip(skips.decisions[0]) from None
            continue
        _replace(program, loop, meaning, result)
        stacks.update(loop.stacks)
    if conditions:
        _erase_unread(program, conditions)
    return stacks


def _sum(program: torch.export.ExportedProgram, loop: Loop, found: Mixture, groups: int) -> Node:
    """Adds the nodes of a mixture, and returns its result. Raises NotRows."""
    tokens = size_of(found.x) // found.x.meta["val"].shape[-1]
    own = groups if groups and tokens % groups == 0 else 1
    rows = RowsOfChoices(program.graph, found.out, loop)
    with program.graph.inserting_before(found.out), rows.all_or_none():
        return rows.mixture(found, own, tokens // own)


def _joined(program: torch.export.ExportedProgram, loop: Loop, found: Parts) -> Node:
    """Adds the nodes of experts of parts, and returns their result. Raises NotRows."""
    rows = RowsOfParts(program.graph, found.out, loop)
    with program.graph.inserting_before(found.out), rows.all_or_none():
        return rows.joined(found)


def _replace(program: torch.export.ExportedProgram, loop: Loop, found: Mixture | Parts,
             result: Node) -> None:
    """Replaces the result of a loop, and erases what nothing else reads."""
    found.out.replace_all_uses_with(result)
    gone = found.inner | {node for expert in loop.experts for node in expert.nodes}
    gone |= {p for e in loop.experts for p in e.parameters.values() if p.op == "call_function"}
    _erase_unread(program, gone)


def _erase_unread(program: torch.export.ExportedProgram, nodes: Iterable[Node]) -> None:
    """Erases nodes that nothing reads, and those that they alone are computed of."""
    graph, gone = program.graph, set(nodes)
    for node in graph.nodes:
        # Numbers of rows and their checks go with the tensors that have these rows.
        if not is_tensor(node) and any(n in gone for n in node.all_input_nodes):
            gone.add(node)
    for node in reversed(graph.nodes):
        if node in gone and not node.users and node.op == "call_function":
            gone.update(node.all_input_nodes)
            graph.erase_node(node)
    program.graph_module.recompile()
