# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Finds the experts of loops: calls that differ in their parameters alone."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Iterator

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..model_tensors import module_name

aten = torch.ops.aten


@dataclasses.dataclass
class Expert:
    """One call of an expert: the nodes that compute it, in order."""

    nodes: list[Node]
    #: The argument of the call, and its result.
    x: Node
    y: Node
    #: Its parameters, by names that all experts of a loop have.
    parameters: dict[str, Node]


@dataclasses.dataclass
class Loop:
    """The experts of a loop, in their order."""

    experts: list[Expert]
    #: The parameters that are to be stacked: the name of each stack, and those of its parts.
    stacks: dict[str, list[str]]
    #: The parameters that the model has as one tensor of all experts, by their names in an expert.
    wholes: dict[str, Node]


def loops(program: torch.export.ExportedProgram, module: torch.nn.Module) -> Iterator[Loop]:
    """Yields the loops of a program. It may be changed in between, but for loops not yet given."""
    names = {node: module_name(target) for node in program.graph.nodes if node.op == "placeholder"
             and (target := program.graph_signature.inputs_to_parameters.get(node.name))}
    for name, part in module.named_modules():
        if isinstance(part, (torch.nn.ModuleList, torch.nn.ModuleDict)) and len(part) > 1 \
                and len({type(child) for child in part.children()}) == 1:
            yield from list(_of_modules(program, names, name,
                                        [key for key, _ in part.named_children()]))
    yield from list(_of_parameters(program, names, module))


def is_tensor(node: Node) -> bool:
    """Returns whether the value of a node is a tensor, or several, or it is the output."""
    return node.op == "output" or any(isinstance(value, torch.Tensor)
                                      for value in pytree.tree_leaves(node.meta.get("val")))


def dependence(nodes: Iterable[Node], first: dict[Node, int]) -> dict[Node, int]:
    """Returns the nodes that depend on those of `first`, in order, each with the union of the bits
    of those that it depends on."""
    found: dict[Node, int] = {}
    for node in nodes:
        bits = first.get(node, 0)
        for n in node.all_input_nodes:
            bits |= found.get(n, 0)
        if bits:
            found[node] = bits
    return found


def _joined(*names: str) -> str:
    return ".".join(n for n in names if n)


# Modules in a list --------------------------------------------------------------------


def _of_modules(program: torch.export.ExportedProgram, names: dict[Node, str], container: str,
                keys: list[str]) -> Iterator[Loop]:
    """Yields the loops that call each module of a container once."""
    paths = {_joined("module", container, key): i for i, key in enumerate(keys)}
    calls: list[dict[str, list[Node]]] = [{} for _ in keys]
    for node in program.graph.nodes:
        for call, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
            if path in paths:
                calls[paths[path]].setdefault(call, []).append(node)
    if len({len(own) for own in calls}) > 1:
        return
    for nodes in zip(*(own.values() for own in calls)):
        leads = [_joined(container, key) + "." for key in keys]
        own = [{name.removeprefix(lead): n for n, name in names.items() if name.startswith(lead)}
               for lead in leads]
        if experts := _alike([_expert(n, p) for n, p in zip(nodes, own)]):
            yield Loop(experts, {_joined(container, "*", name): [lead + name for lead in leads]
                                 for name in experts[0].parameters}, {})


def _expert(nodes: list[Node], parameters: dict[str, Node]) -> Expert | None:
    """Returns the expert that `nodes` compute, in order; None if they read other tensors than one
    and `parameters`, or have other results than one."""
    own = {node for node in nodes if is_tensor(node)}
    read = dict.fromkeys(n for node in nodes if node in own for n in node.all_input_nodes
                         if n not in own and is_tensor(n))
    parameters = {name: n for name, n in parameters.items() if n in read}
    others = without_copies(n for n in read if n not in parameters.values())
    results = [node for node in nodes if node in own
               and any(user not in own and is_tensor(user) for user in node.users)]
    if len(others) != 1 or len(results) != 1 or not parameters:
        return None
    return Expert([n for n in nodes if n in own], others[0], results[0], parameters)


def without_copies(nodes: Iterable[Node]) -> list[Node]:
    """Returns the first of each of `nodes` that compute the same from the same, and lets those that
    read another one read it."""
    found: list[Node] = []
    for node in sorted(set(nodes)):
        same = next((n for n in found if node.op == n.op == "call_function"
                     and (n.target, n.args, n.kwargs) == (node.target, node.args, node.kwargs)
                     and torch.Tag.nondeterministic_seeded not in getattr(n.target, "tags", ())), None)
        if same is None:
            found.append(node)
        else:
            node.replace_all_uses_with(same)
    return found


# Parameters that are indexed ----------------------------------------------------------


def _of_parameters(program: torch.export.ExportedProgram, names: dict[Node, str],
                   module: torch.nn.Module) -> Iterator[Loop]:
    """Yields the loops that read each of several parameters, or each matrix of one, once."""
    found: dict[str, list[Node]] = {}
    wholes: dict[str, Node] = {}
    stacks: dict[str, list[str]] = {}
    nodes = {name: node for node, name in names.items()}
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.ParameterList) and len(part) > 1:
            parts = [_joined(name, str(i)) for i in range(len(part))]
            if all(p in nodes for p in parts):
                found[_joined(name, "*")] = [nodes[p] for p in parts]
                stacks[_joined(name, "*")] = parts
    for node, name in names.items():
        count = node.meta["val"].shape[0] if node.meta["val"].dim() > 1 else 0
        users = [u for u in node.users if is_tensor(u)]
        if count > 1 and len(users) == count and all(
                u.target is aten.select.int and u.args[1] == 0 for u in users):
            order = sorted(users, key=lambda u: u.args[2] % count)
            if [u.args[2] % count for u in order] == list(range(count)):
                found[name], wholes[name] = order, node
    while found:
        name, leaves = next(iter(found.items()))
        group = _read_together(program, found, name)
        every = [{n: found[n][i] for n in group} for i in range(len(leaves))]
        for n in group:
            del found[n]
        if experts := _alike(_between(program, every)):
            yield Loop(experts, {n: stacks[n] for n in group if n in stacks},
                       {n: wholes[n] for n in group if n in wholes})


def _read_together(program: torch.export.ExportedProgram, found: dict[str, list[Node]],
                   name: str) -> list[str]:
    """Returns the names, `name` first, whose parameters are read together: each expert's by nodes
    that read those of no other expert."""
    def bits(name: str) -> dict[Node, int]:
        return dependence(program.graph.nodes, {n: 1 << i for i, n in enumerate(found[name])})

    group, own = [name], [bits(name)]
    every = (1 << len(found[name])) - 1
    for other in found:
        if other not in group and len(found[other]) == len(found[name]):
            theirs = bits(other)
            if any(_seen_alike(ours, theirs) == every for ours in own):
                group.append(other)
                own.append(theirs)
    return group


def _seen_alike(ours: dict[Node, int], theirs: dict[Node, int]) -> int:
    """Returns the union of bits that are the only ones of a node in both."""
    seen = 0
    for node, bits in ours.items():
        if bits & (bits - 1) == 0 and theirs.get(node) == bits:
            seen |= bits
    return seen


def _between(program: torch.export.ExportedProgram,
             every: list[dict[str, Node]]) -> list[Expert | None]:
    """Returns each expert: what depends on its parameters alone, up to the last node that reads
    one."""
    nodes = list(program.graph.nodes)
    own = [set(leaves.values()) for leaves in every]
    bits = dependence(nodes, {n: 1 << i for i, leaves in enumerate(own) for n in leaves})
    experts: list[Expert | None] = []
    for i, leaves in enumerate(own):
        mine = [n for n in nodes if bits.get(n) == 1 << i and n not in leaves]
        #: Values computed of parameters alone, such as their transposes.
        alone: set[Node] = set(leaves)
        for n in mine:
            if all(m in alone for m in n.all_input_nodes):
                alone.add(n)
        readers = [n for n in mine if n not in alone and any(m in alone for m in n.all_input_nodes)]
        if not readers:
            return []
        needed, pending = set(), [readers[-1]]
        while pending:
            n = pending.pop()
            if n not in needed and n in mine:
                needed.add(n)
                pending += n.all_input_nodes
        experts.append(_expert([n for n in mine if n in needed], every[i]))
    return experts


# Comparison ---------------------------------------------------------------------------


def _alike(experts: list[Expert | None]) -> list[Expert]:
    """Returns the experts if they compute the same function of tokens and parameters."""
    known = [e for e in experts if e is not None]
    if len(known) < 2 or len(known) < len(experts):
        return []
    return known if all(_same_function(known[0], e) for e in known[1:]) else []


def _same_function(first: Expert, other: Expert) -> bool:
    if len(first.nodes) != len(other.nodes) or set(first.parameters) != set(other.parameters):
        return False
    same = {first.x: other.x}
    same.update({node: other.parameters[name] for name, node in first.parameters.items()})
    for a, b in zip(first.nodes, other.nodes):
        ours, theirs = (pytree.tree_flatten((n.args, n.kwargs), is_leaf=lambda v: isinstance(v, Node))
                        for n in (a, b))
        if a.target != b.target or ours[1] != theirs[1] or _types(a) != _types(b) \
                or not all(_equal(one, two, same) for one, two in zip(ours[0], theirs[0])):
            return False
        same[a] = b
    return same.get(first.y) is other.y and all(
        tuple(node.meta["val"].shape) == tuple(other.parameters[name].meta["val"].shape)
        for name, node in first.parameters.items())


def _types(node: Node) -> list[tuple]:
    """Returns the type, rank and last dimension of each tensor that a node gives; None for one that
    depends on values."""
    return [(v.dtype, v.dim(), known(v.shape[-1]) if v.dim() else 1)
            for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]


def known(size: Any) -> int | None:
    """Returns a dimension; None if it depends on values."""
    return None if isinstance(size, torch.SymInt) else size


def _equal(one: Any, two: Any, same: dict[Node, Node]) -> bool:
    """Returns whether arguments of two experts are equal, or numbers of rows, which differ."""
    if not isinstance(one, Node) or not isinstance(two, Node):
        return type(one) is type(two) and one == two
    sizes = all(isinstance(n.meta.get("val"), torch.SymInt) for n in (one, two))
    return same.get(one) is two or sizes
