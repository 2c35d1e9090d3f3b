# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Copies operators that making a program functional leaves as they are."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts
from torch.utils import _pytree as pytree

from .aliases import Aliases, value_of
from .memory import memory_of
from .patches import patched

#: The mark of such an operator, in the metadata that copies of a graph have.
_SETTLED = "cleave.settled"
#: Operators that torch treats by themselves when it makes a program functional.
_SPECIAL = ("lift", "lift_fresh", "lift_fresh_copy", "detach", "alias", "_to_copy", "_unsafe_view")


class _Unknown(Exception):
    """An operand is not a result of the trace."""


def copied(program: torch.export.ExportedProgram, aliases: Aliases,
           rules: dict[Any, Any]) -> contextlib.AbstractContextManager[None]:
    """Context manager in which `run_decompositions(rules)` of `program` copies those of its operators
    that read and make no storage that is written to, and that are not decomposed: torch would run
    each again through all its modes, to add the same operator to the new graph."""
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target not in rules and _is_kept(node.target):
            touched = pytree.tree_leaves([value_of(x) for x in (node, *node.all_input_nodes)])
            if all(type(x) is FakeTensor and memory_of(x) not in aliases.written
                   for x in touched):
                node.meta[_SETTLED] = True
    return patched((PropagateUnbackedSymInts, "run_node", _run))


def _is_kept(target: Any) -> bool:
    """Returns whether torch adds an operator to a functional graph as it is."""
    return (isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
            and not target._schema.is_mutable and not target.python_key_table
            and target.overloadpacket.__name__ not in _SPECIAL
            and not torch._C._dispatch_has_kernel_for_dispatch_key(
                target.name(), "CompositeImplicitAutograd"))


_run_node = PropagateUnbackedSymInts.__dict__["run_node"]


def _run(interpreter: Any, node: torch.fx.Node) -> Any:
    """The replacement of `PropagateUnbackedSymInts.run_node`."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    if mode is None or not node.meta.get(_SETTLED) \
            or node.target in mode.decomposition_table:
        return _run_node(interpreter, node)
    tracer = mode.tracer

    def proxy(x: Any) -> Any:
        if not isinstance(x, FunctionalTensor):
            raise _Unknown
        known = tracer.tensor_tracker.get(torch._from_functional_tensor(x.elem))
        if known is None or known.constant is not None:
            raise _Unknown
        return known.proxy

    try:
        given = pytree.tree_map_only(torch.Tensor, proxy,
                                     interpreter.fetch_args_kwargs_from_env(node))
    except _Unknown:
        return _run_node(interpreter, node)
    with interpreter._set_current_node(node):
        made = tracer.create_proxy(
            "call_function", node.target, *given,
            name=tracer.graph._target_to_str(node.target.overloadpacket.__name__))
        result = node.meta["val"]
        if isinstance(result, torch.Tensor):
            made.node.meta["val"] = result
            proxy_tensor.track_tensor(result, made, constant=None, tracer=tracer)
        else:
            proxy_tensor.track_tensor_tree(result, made, constant=None, tracer=tracer)
        return pytree.tree_map_only(torch.Tensor, FunctionalTensor.to_functional, result)
