# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Compares exported programs."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree


def same_constants(*programs: torch.export.ExportedProgram) -> bool:
    """Returns whether the constants that were made outside of tensor code are equal in both
    programs."""
    one, other = ({k: v for k, v in p.constants.items() if isinstance(v, torch.Tensor)
                   and not isinstance(v, FakeTensor)} for p in programs)
    return one.keys() == other.keys() and all(
        v.shape == other[k].shape and torch.equal(v, other[k]) for k, v in one.items())


def alike(outputs: int, *programs: torch.export.ExportedProgram) -> bool:
    """Returns whether two programs compute the same `outputs` first outputs and the same new values
    of buffers and inputs."""
    if programs[0] is programs[1]:
        return True
    known: dict[Any, int] = {}
    return len({_expressions(p, outputs, known) for p in programs}) == 1 \
        and same_constants(*programs)


def _expressions(program: torch.export.ExportedProgram, outputs: int,
                 known: dict[Any, int]) -> tuple[Any, ...]:
    """Returns the numbers of the expressions that the outputs are; equal ones have the same number
    in `known`. Programs with nested graphs have numbers of their own."""
    numbers: dict[torch.fx.Node, int] = {}
    drawn = 0

    def of(argument: Any) -> Any:
        leaves, tree = pytree.tree_flatten(argument)
        return tuple(numbers[x] if isinstance(x, torch.fx.Node) else (type(x).__name__, str(x))
                     for x in leaves), str(tree)

    targets = {s.arg.name: s.target or s.arg.name for s in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            key = ("placeholder", targets.get(node.name, node.name))
        elif node.op == "get_attr":
            key = ("nested", id(program), node.target)
        else:
            # Each random operator draws numbers of its own.
            random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            drawn += random
            key = (node.op, str(node.target), of(node.args), of(node.kwargs), random and drawn)
        numbers[node] = known.setdefault(key, len(known))
    found = next(reversed(program.graph.nodes)).args[0]
    specs = program.graph_signature.output_specs
    wanted = [(x, "") for s, x in zip(specs, found) if s.kind is OutputKind.USER_OUTPUT][:outputs]
    wanted += [(x, f"{s.kind} {s.target}") for s, x in zip(specs, found)
               if s.kind is not OutputKind.USER_OUTPUT]
    return tuple((of(x), name) for x, name in wanted)
