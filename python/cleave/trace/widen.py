# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Converts the programs of 16-bit models to f32.

A model with 16-bit parameters, or with regions of `torch.autocast`, requests mixed precision. Its
program uses f32 wherever eager code uses a 16-bit type, and `--graph-mixed-precision` chooses what
is computed in 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from ..runtime.state import wide_type
from .errors import TraceError
from .locations import location_of
from .registry import aten

#: The 16-bit types by their names in `precision=`.
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}

#: Operators that change types.
CASTS = {aten._to_copy.default, aten.to.dtype, aten.to.device, aten.to.dtype_layout,
          aten.to.other, aten.type_as.default}
#: The field of a node's metadata with the result that eager code has, if it is 16-bit.
_EAGER = "cleave.eager"


def is_narrow(tensor: Any) -> bool:
    """Returns whether a tensor has a 16-bit floating-point type."""
    return isinstance(tensor, torch.Tensor) and tensor.dtype in PRECISIONS.values()


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Returns `tensor`, in f32 if it is 16-bit."""
    return tensor.to(wide_type(tensor.dtype))


def parameter_types(module: torch.nn.Module) -> set[torch.dtype]:
    """Returns the 16-bit types of the trained parameters."""
    return {p.dtype for p in module.parameters() if p.requires_grad and is_narrow(p)}


def computed_types(module: torch.nn.Module, program: torch.export.ExportedProgram
                   ) -> set[torch.dtype]:
    """Returns the 16-bit types in which a model with 16-bit parameters, all of them frozen,
    computes. A parameter that is cast where it is read adds none."""
    if not any(map(is_narrow, module.parameters())):
        return set()
    found = set()
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target not in CASTS \
                and not getattr(node.target, "is_view", False):
            found.update(x.dtype for x in pytree.tree_leaves(node.meta.get("val"))
                         if is_narrow(x))
    return found


def widen(program: torch.export.ExportedProgram) -> None:
    """Replaces the 16-bit types of a program by f32, in place. Raises TraceError if it reads the
    bits of such a type."""
    for node in program.graph.nodes:
        if node.target is aten.view.dtype and (
                is_narrow(node.meta["val"]) or is_narrow(node.args[0].meta["val"])):
            place = location_of(node)
            raise TraceError((f"{place[0]}:{place[1]}: " if place else "") +
                             "the bits of a 16-bit number are read, and the model is computed in "
                             "mixed precision, where its type is not known")
    for node in program.graph.nodes:
        example = node.meta.get("val")
        if any(isinstance(x, torch.Tensor) and x.dtype != wide_type(x.dtype)
               for x in pytree.tree_leaves(example)):
            node.meta[_EAGER] = example
            node.meta["val"] = pytree.tree_map_only(torch.Tensor, widened, example)
        if node.op == "call_function":
            node.args = map_aggregate(node.args, _wide_type)
            node.kwargs = map_aggregate(node.kwargs, _wide_type)


def eager_result(node: torch.fx.Node) -> Any:
    """Returns the example result of a node with the types that eager code has."""
    return node.meta.get(_EAGER, node.meta.get("val"))


def _wide_type(argument: Any) -> Any:
    return wide_type(argument) if isinstance(argument, torch.dtype) else argument
