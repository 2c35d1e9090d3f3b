# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The storages that an exported program shares and writes to."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from typing import Any, Callable

import torch
from torch._functorch import aot_autograd
from torch._higher_order_ops.effects import has_effects
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from .memory import memory_of
from .patches import patched

#: Calls other than operators, which write only where the graphs nested in them do.
_PLAIN = (operator.getitem, torch.ops.higher_order.wrap_with_set_grad_enabled,
          torch.ops.higher_order.wrap_with_autocast)
#: Operators after which a tensor has another storage.
_MOVING = ("aten::set_", "aten::set_data", "aten::resize_", "aten::resize_as_")
#: Operands that operators write to in training mode, although their schemas do not say so.
_STATISTICS = ("running_mean", "running_var")
_COLLECT = "run_functionalized_fw_and_collect_metadata"


@dataclasses.dataclass
class Aliases:
    """The storages of a program, in which a view has that of its base."""

    #: Those of the inputs, parameters, buffers and constants; one may be there twice.
    inputs: list[int]
    #: Those that are written to.
    written: set[int]
    #: The values of the outputs.
    outputs: list[Any]

    def are_apart(self) -> bool:
        """Returns whether no input is written to, and all outputs are tensors that share memory
        neither with inputs nor with each other."""
        if not all(type(x) is FakeTensor for x in self.outputs):
            return False
        outputs = {memory_of(x) for x in self.outputs}
        return (len(outputs) == len(self.outputs) and outputs.isdisjoint(self.inputs)
                and self.written.isdisjoint(self.inputs))


def aliases_of(program: torch.export.ExportedProgram) -> Aliases | None:
    """Returns the storages of a program; None if it has operators whose writes are not known. The
    values of all operators are of one trace."""
    found = Aliases([], set(), [])
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            whole = part is program.graph_module
            if node.op == "output":
                if whole:
                    found.outputs = [value_of(x) for x in node.args[0]]
                continue
            values = pytree.tree_leaves(value_of(node))
            if not all(x is None or type(x) is FakeTensor for x in values):
                return None
            if node.op == "placeholder" and whole:
                found.inputs += [memory_of(x) for x in values if x is not None]
            elif node.op == "call_function" and node.target not in _PLAIN:
                if not isinstance(node.target, torch._ops.OpOverload) \
                        or node.target.namespace not in ("aten", "cleave") \
                        or node.target._schema.name in _MOVING or has_effects(node.target):
                    return None
                found.written.update(map(memory_of, _written(node)))
    return found


def known_metadata(aliases: Aliases) -> contextlib.AbstractContextManager[None]:
    """Context manager in which torch finds which inputs a program writes to, and which of them its
    outputs share memory with, without running it, if there are none. Running it takes nearly as
    long as making it functional, which torch does next."""
    if not aliases.are_apart():
        return contextlib.nullcontext()
    collect = getattr(aot_autograd, _COLLECT)

    def collected(function: Callable[..., Any], **options: Any) -> Any:
        return collect(lambda *_: [torch.empty(x.shape, dtype=x.dtype, device=x.device)
                                   for x in aliases.outputs], **options)
    return patched((aot_autograd, _COLLECT, collected))


def value_of(node: Any) -> Any:
    """Returns the value that an operand, a node or a constant, had in the trace."""
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


def _written(node: torch.fx.Node) -> list[torch.Tensor]:
    """Returns the values of the operands that an operator writes to, or may write to."""
    operands = []
    if node.target is torch.ops.aten.detach_.default:
        # The elements stay.
        return []
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.name in _STATISTICS or (argument.alias_info is not None
                                            and argument.alias_info.is_write):
            operands.append(node.args[i] if i < len(node.args) else node.kwargs.get(argument.name))
    return [x for leaf in pytree.tree_leaves(operands)
            if isinstance(x := value_of(leaf), torch.Tensor)]
