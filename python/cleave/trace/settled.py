# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Copies operators that making a program functional leaves as they are."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch._export.utils import _is_preservable_cia_op
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
#: The operator without a result that torch writes before each cast.
_ASSERTION = torch.ops.aten._assert_tensor_metadata.default
#: Operators that torch treats by themselves when it makes a program functional.
_SPECIAL = ("lift", "lift_fresh", "lift_fresh_copy", "detach", "alias", "_to_copy", "_unsafe_view")


class _Unknown(Exception):
    """An operand is not a result of the trace."""


class _Copied:
    """The result of a copied operator: `node` of the new graph, with the value `result`."""

    __slots__ = ("node", "result", "_functional")

    def __init__(self, node: torch.fx.Node, result: torch.Tensor) -> None:
        self.node, self.result = node, result
        self._functional: FunctionalTensor | None = None

    def functional(self, tracer: Any) -> FunctionalTensor:
        """Returns the tensor with which operators run that are not copied. Most results are read by
        copied operators alone, and need none."""
        if self._functional is None:
            proxy_tensor.track_tensor(self.result, tracer.proxy(self.node), constant=None,
                                      tracer=tracer)
            self._functional = FunctionalTensor.to_functional(self.result)
        return self._functional


def copied(program: torch.export.ExportedProgram, aliases: Aliases,
           rules: dict[Any, Any]) -> contextlib.AbstractContextManager[None]:
    """Context manager in which `run_decompositions(rules)` of `program` copies those of its operators
    that read and make no storage that is written to, and that are not decomposed: torch would run
    each again through all its modes, to add the same operator to the new graph."""
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target not in rules and _is_kept(node.target):
            results = () if node.target is _ASSERTION else (node,)
            touched = pytree.tree_leaves([value_of(x) for x in (*results, *node.all_input_nodes)])
            if all(type(x) is FakeTensor and memory_of(x) not in aliases.written
                   for x in touched):
                node.meta[_SETTLED] = True
    return patched((PropagateUnbackedSymInts, "run_node", _run))


@functools.cache
def _is_kept(target: Any) -> bool:
    """Returns whether torch adds an operator to a functional graph as it is."""
    return (isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
            and not target._schema.is_mutable and not target.python_key_table
            and target.overloadpacket.__name__ not in _SPECIAL
            and (not torch._C._dispatch_has_kernel_for_dispatch_key(
                target.name(), "CompositeImplicitAutograd")
                or _is_preservable_cia_op(target)))


@functools.cache
def _name_of(target: Any) -> str:
    """Returns the name that torch gives to the nodes of an operator, without their number."""
    return torch.fx.Graph()._target_to_str(target.overloadpacket.__name__)


_run_node = PropagateUnbackedSymInts.__dict__["run_node"]


def _run(interpreter: Any, node: torch.fx.Node) -> Any:
    """The replacement of `PropagateUnbackedSymInts.run_node`."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    if mode is None:
        return _run_node(interpreter, node)
    env, tracer = interpreter.env, mode.tracer
    if node.target is torch.ops.aten.to.dtype and _keeps_type(node):
        # Torch's result is the operand.
        return env[node.args[0]]
    if node.meta.get(_SETTLED) and node.target not in mode.decomposition_table:
        try:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs),
                                            lambda n: _new_node(env[n], tracer))
        except _Unknown:
            pass
        else:
            with interpreter._set_current_node(node):
                return _copy(node, args, kwargs, tracer)
    for operand in node.all_input_nodes:
        if type(known := env[operand]) is _Copied:
            env[operand] = known.functional(tracer)
    return _run_node(interpreter, node)


def _keeps_type(node: torch.fx.Node) -> bool:
    """Returns whether a cast is to the type that its operand has."""
    return len(node.args) == 2 and not node.kwargs and node.args[1] is value_of(node.args[0]).dtype


def _new_node(value: Any, tracer: Any) -> torch.fx.Node:
    """Returns the node of the new graph that computes a value. Raises _Unknown if there is none."""
    if type(value) is _Copied:
        return value.node
    if not isinstance(value, FunctionalTensor):
        raise _Unknown
    known = tracer.tensor_tracker.get(torch._from_functional_tensor(value.elem))
    if known is None or known.constant is not None:
        raise _Unknown
    return known.proxy.node


def _copy(node: torch.fx.Node, args: Any, kwargs: Any, tracer: Any) -> Any:
    """Adds the operator of `node` to the new graph. Returns its result."""
    if node.target is _ASSERTION and len(args) == 1 and "dtype" in kwargs \
            and kwargs.keys().isdisjoint(("size", "stride")):
        # By position, as torch writes it.
        args, kwargs = (*args, None, None, kwargs["dtype"]), {
            k: v for k, v in kwargs.items() if k != "dtype"}
    made = tracer.create_node("call_function", node.target, args, kwargs, _name_of(node.target))
    result = node.meta.get("val")
    if result is None:
        return None
    if isinstance(result, torch.Tensor):
        made.meta["val"] = result
        return _Copied(made, result)
    proxy_tensor.track_tensor_tree(result, tracer.proxy(made), constant=None, tracer=tracer)
    return pytree.tree_map_only(torch.Tensor, FunctionalTensor.to_functional, result)
