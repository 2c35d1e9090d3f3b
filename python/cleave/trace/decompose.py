# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Decomposes the operators of an exported program that have no converter."""

from __future__ import annotations

import contextlib
import functools
import operator
from typing import Any, Iterator

import torch

from .aliases import aliases_of, known_metadata
from .converters.batch_norm import is_training
from .converters.complex import converts_complex
from .registry import converter_for
from .settled import copied


def _is_functional(program: torch.export.ExportedProgram) -> bool:
    """Returns whether no operator writes to its operands and there are no nested graphs."""
    for node in program.graph.nodes:
        if node.op == "get_attr":
            return False
        if node.op == "call_function" and node.target is not operator.getitem:
            schema = getattr(node.target, "_schema", None)
            if schema is None or schema.is_mutable or is_training(node):
                return False
    return True


def _keep_nested_locations(program: torch.export.ExportedProgram) -> None:
    """Preserves the locations of operators of nested graphs, such as those under no_grad, when the
    graphs are inlined."""
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule) and part is not program.graph_module:
            part.forward = torch.fx.Interpreter(part).run


def decomposed(program: torch.export.ExportedProgram,
               comparable: bool = False) -> torch.export.ExportedProgram:
    """Makes a program functional, and decomposes the operators that have no converter by PyTorch's
    rules. An operator whose decomposition has no converter either is kept, so that the error
    reports it. A functional program may keep other operators for its views than one that is not,
    unless it is to be `comparable`."""
    if comparable or not _is_functional(program):
        _keep_nested_locations(program)
        if (result := _decomposed_at_once(program)) is not None:
            return result
        program = program.run_decompositions({})
    whole: set[Any] = set()
    while True:
        result, table = _decompose(program, whole)
        origins = {name for node in result.graph.nodes if _lacks_conversion(node)
                   for name in _all_origins(node)}
        refused = {target for target in table if str(target) in origins}
        if not refused:
            return result
        whole |= refused


def _decomposed_at_once(program: torch.export.ExportedProgram
                        ) -> torch.export.ExportedProgram | None:
    """Returns the program made functional and decomposed in one pass; None if that takes more."""
    missing = {functional for part in program.graph_module.modules()
               if isinstance(part, torch.fx.GraphModule) for node in part.graph.nodes
               if isinstance(node.target, torch._ops.OpOverload)
               and (functional := _functional(node.target)) is not None
               and not _converts(functional)}
    rules = {target: rule for target in missing if (rule := _decomposition(target)) is not None}
    try:
        with contextlib.ExitStack() as stack:
            if (aliases := aliases_of(program)) is not None:
                stack.enter_context(known_metadata(aliases))
                stack.enter_context(copied(program, aliases, rules))
            result = program.run_decompositions(rules)
    except Exception:
        return None
    # Others are refused, or are not read, as after several passes.
    names = {str(target) for target in rules}
    unfinished = any(
        _decomposition(node.target) is not None or not names.isdisjoint(_all_origins(node))
        for node in result.graph.nodes
        if _lacks_conversion(node) and isinstance(node.target, torch._ops.OpOverload))
    return None if unfinished else result


def _functional(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Returns the operator that does not write to its operands, or None."""
    if not target._schema.is_mutable:
        return target
    packet = getattr(getattr(torch.ops, target.namespace),
                     target._schema.name.split("::")[1].removesuffix("_"), None)
    return getattr(packet, target._overloadname, None)


#: Operators that stay, since what they give has a size that depends on values, or is one: either
#: loops over experts have them, or they are refused.
_KEPT = (torch.ops.aten.where.default, torch.ops.aten.sym_size.int)


def _converts(target: Any) -> bool:
    return converter_for(target) is not None or converts_complex(target) or target in _KEPT


def _lacks_conversion(node: torch.fx.Node) -> bool:
    return (node.op == "call_function" and node.target is not operator.getitem
            and not _converts(node.target))


def _all_origins(node: torch.fx.Node) -> Iterator[str]:
    for source in node.meta.get("from_node") or ():
        yield from _origins(source)


def _origins(source: Any) -> Iterator[str]:
    """Yields the names of the operators that a node was decomposed from."""
    yield str(source.target)
    for before in source.from_node or ():
        yield from _origins(before)


def _decompose(program: torch.export.ExportedProgram, whole: set[Any]
               ) -> tuple[torch.export.ExportedProgram, dict[Any, Any]]:
    """Returns the program after decomposing operators other than `whole`, and the rules used."""
    table: dict[Any, Any] = {}
    for _ in range(8):
        missing = {n.target for n in program.graph.nodes
                   if _lacks_conversion(n) and isinstance(n.target, torch._ops.OpOverload)}
        found = {target: rule for target in missing - whole
                 if (rule := _decomposition(target)) is not None and target not in table}
        if not found:
            break
        table.update(found)
        try:
            program = program.run_decompositions(dict(found))
        except Exception:
            # One of the rules fails on exported programs. The others are applied one by one, and
            # its operator is reported as having no converter.
            for target, rule in found.items():
                with contextlib.suppress(Exception):
                    program = program.run_decompositions({target: rule})
    return program, table


def _decomposition(target: Any) -> Any:
    """Returns PyTorch's decomposition of an operator, or None."""
    # Composite operators are decomposed by their kernel: their reference functions
    # (torch._refs) would use operators of the prims namespace.
    if torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"):
        return functools.partial(target._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)
    return torch._decomp.decomposition_table.get(target)
