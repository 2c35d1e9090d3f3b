# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What the results of an exported program share with its inputs, and what it writes to."""

from __future__ import annotations

import contextlib
import operator
from typing import Any, Callable

import torch
from torch._functorch import aot_autograd
from torch._higher_order_ops.effects import has_effects
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from .memory import memory_of
from .patches import patched

#: Calls that are no operators, and write only what is written in the graphs nested in them.
_PLAIN = (operator.getitem, torch.ops.higher_order.wrap_with_set_grad_enabled,
          torch.ops.higher_order.wrap_with_autocast)
#: Operators after which a tensor has another storage.
_MOVING = ("aten::set_", "aten::set_data", "aten::resize_", "aten::resize_as_")
_COLLECT = "run_functionalized_fw_and_collect_metadata"


def known_metadata(program: torch.export.ExportedProgram) -> contextlib.AbstractContextManager[None]:
    """Context manager in which torch finds which inputs `program` writes to, and which of them its
    outputs share memory with, without running it, if there are none. Running it takes nearly as
    long as making it functional, which torch does next."""
    results = _fresh_outputs(program)
    if results is None:
        return contextlib.nullcontext()
    collect = getattr(aot_autograd, _COLLECT)

    def collected(function: Callable[..., Any], **options: Any) -> Any:
        return collect(lambda *_: [torch.empty(x.shape, dtype=x.dtype, device=x.device)
                                   for x in results], **options)
    return patched((aot_autograd, _COLLECT, collected))


def _fresh_outputs(program: torch.export.ExportedProgram) -> list[FakeTensor] | None:
    """Returns the outputs of a program that writes to none of its inputs and constants, and whose
    outputs are tensors that share memory neither with these nor with each other; None for others.
    The values of operators are of one trace, in which a view has the storage of its base."""
    inputs: list[int] = []
    written: set[int] = set()
    results: list[Any] = []
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            whole = part is program.graph_module
            if node.op == "output":
                if whole:
                    results = [_value(x) for x in node.args[0]]
                continue
            values = pytree.tree_leaves(_value(node))
            if not all(x is None or type(x) is FakeTensor for x in values):
                return None
            if node.op == "placeholder" and whole:
                inputs += [memory_of(x) for x in values if x is not None]
            elif node.op == "call_function" and node.target not in _PLAIN:
                if not isinstance(node.target, torch._ops.OpOverload) \
                        or node.target.namespace not in ("aten", "cleave") \
                        or node.target._schema.name in _MOVING or has_effects(node.target):
                    return None
                written.update(map(memory_of, _written(node)))
    if not all(type(x) is FakeTensor for x in results):
        return None
    outputs = {memory_of(x) for x in results}
    separate = len(outputs) == len(results) and outputs.isdisjoint(inputs)
    return results if separate and written.isdisjoint(inputs) else None


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


def _written(node: torch.fx.Node) -> list[torch.Tensor]:
    """Returns the values of the operands that an operator writes to."""
    operands = []
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            operands.append(node.args[i] if i < len(node.args) else node.kwargs.get(argument.name))
    return [x for leaf in pytree.tree_leaves(operands)
            if isinstance(x := _value(leaf), torch.Tensor)]
