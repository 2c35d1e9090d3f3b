# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Compares exported programs."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

#: The metadata of an operator that the trace reads: where it is from, and what it computes.
_META = "stack_trace", "nn_module_stack", "custom", "val"


def same_constants(*programs: torch.export.ExportedProgram) -> bool:
    """Returns whether the constants that were made outside of tensor code are equal in both
    programs."""
    one, other = ({k: v for k, v in p.constants.items() if isinstance(v, torch.Tensor)
                   and not isinstance(v, FakeTensor)} for p in programs)
    return one.keys() == other.keys() and all(_equal(v, other[k]) for k, v in one.items())


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors have the same elements; not those of layouts that torch does not
    compare, and that a trace refuses."""
    if one is other:
        return True
    plain = all(t.layout is torch.strided and not t.is_meta for t in (one, other))
    return plain and one.shape == other.shape and torch.equal(one, other)


def same_operators(*programs: torch.export.ExportedProgram) -> bool:
    """Returns whether two programs have the same operators, with the same metadata, and the same
    outputs, after which the second may have more."""
    inputs = [p.graph_signature.input_specs for p in programs]
    outputs = [[(s.kind, s.target) for s in p.graph_signature.output_specs] for p in programs]
    listed, given = zip(*map(_listed, programs))
    count = len(outputs[0])
    return (inputs[0] == inputs[1] and outputs[0] == outputs[1][:count]
            and all(kind is OutputKind.USER_OUTPUT for kind, _ in outputs[1][count:])
            and listed[0] == listed[1] and given[0] == given[1][:count]
            and same_constants(*programs))


def _listed(program: torch.export.ExportedProgram) -> tuple[list[Any], tuple[str, ...]]:
    """Returns all operators of a program and of the graphs nested in it, and the outputs."""
    numbers: dict[torch.fx.Node, str] = {}
    listed = []
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                numbers[node] = f"%{len(numbers)}"
                args = node.args
                # The mode does not matter to a dropout of nothing.
                if node.target is torch.ops.aten.dropout.default and args[1] == 0:
                    args = args[:2]
                given = [str(torch.fx.node.map_arg(x, numbers.__getitem__))
                         for x in (args, node.kwargs)]
                if node.op == "output" and part is program.graph_module:
                    found = torch.fx.node.map_arg(node.args[0], numbers.__getitem__)
                    continue
                listed.append((node.op, node.name if node.op == "placeholder" else "",
                               str(node.target), *given, *(str(node.meta.get(k)) for k in _META)))
    return listed, tuple(map(str, found))


def alike(outputs: int, *programs: torch.export.ExportedProgram,
          instead: Mapping[torch.fx.Node, torch.fx.Node] = MappingProxyType({})) -> bool:
    """Returns whether two programs compute the same `outputs` first outputs and the same new values
    of buffers and inputs, if those that are keys of `instead` are as others are."""
    if programs[0] is programs[1]:
        return True
    known: dict[Any, int] = {}
    return len({_expressions(p, outputs, known, instead) for p in programs}) == 1 \
        and same_constants(*programs)


def _expressions(program: torch.export.ExportedProgram, outputs: int,
                 known: dict[Any, int],
                 instead: Mapping[torch.fx.Node, torch.fx.Node]) -> tuple[Any, ...]:
    """Returns the numbers of the expressions that the outputs are; equal ones have the same number
    in `known`."""
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
            key = ("nested", _code(program.graph_module.get_submodule(node.target)))
        else:
            # Each random operator draws numbers of its own.
            random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            drawn += random
            key = (node.op, str(node.target), of(node.args), of(node.kwargs), random and drawn)
        numbers[node] = numbers[instead[node]] if node in instead \
            else known.setdefault(key, len(known))
    found = next(reversed(program.graph.nodes)).args[0]
    specs = program.graph_signature.output_specs
    wanted = [(x, "") for s, x in zip(specs, found) if s.kind is OutputKind.USER_OUTPUT][:outputs]
    wanted += [(x, f"{s.kind} {s.target}") for s, x in zip(specs, found)
               if s.kind is not OutputKind.USER_OUTPUT]
    # Operators that write to their operands are compared in the order of the program, and so are
    # nested graphs, as those under no_grad.
    live = {x for x, _ in wanted if isinstance(x, torch.fx.Node)}
    for node in reversed(program.graph.nodes):
        nested = any(n.op == "get_attr" for n in node.all_input_nodes)
        if node in live or nested or getattr(getattr(node.target, "_schema", None), "is_mutable",
                                             False):
            live |= {node, instead[node]} if node in instead else {node, *node.all_input_nodes}
    return (*(numbers[n] for n in program.graph.nodes
              if n in live and n.op != "placeholder" and n not in instead),
            *((of(x), name) for x, name in wanted))


def _code(graph: torch.nn.Module) -> str:
    """Returns the code of a graph and of those nested in it."""
    return "".join(part.code for part in graph.modules() if isinstance(part, torch.fx.GraphModule))
