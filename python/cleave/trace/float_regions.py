# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Regions of f32 that code marks by casts: from `x.float()` to a cast back.

Where eager code has 16-bit types, the types of its results tell the regions; elsewhere the meaning
of the casts does (`casts.meaning`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from .. import grouped  # noqa: F401 (defines the operators)
from .casts import BEGINS, FOLLOWS, TURNS
from .converters.narrow import MOVES
from .regions import cast_of
from .registry import aten
from .widen import CASTS, eager_result, is_narrow

#: The factors of matmuls, which are 16-bit if one of them is outside of the region.
_FACTORS = {
    **dict.fromkeys((aten.linear.default, aten.matmul.default, aten.mm.default, aten.bmm.default,
                     aten.mv.default, aten.einsum.default), slice(0, 2)),
    **dict.fromkeys((torch.ops.cleave.grouped_linear.default,
                     torch.ops.cleave.grouped_linear_weight_grad.default), slice(0, 2)),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default, aten.addmv.default,
                     aten.addbmm.default), slice(1, 3)),
    aten.scaled_dot_product_attention.default: slice(0, 3),
}
_COPIES = {aten.clone.default, aten.alias.default, aten.contiguous.default, aten.detach.default,
           aten.lift_fresh_copy.default, aten.lift_fresh.default}


class FloatRegions:
    """The nodes of a graph that are in regions of f32. An operand of the first op of a region is
    still what is computed outside; so is an element of it that is only moved."""

    def __init__(self, graph: torch.fx.Graph):
        self._computed: dict[torch.fx.Node, bool] = {}
        #: Whether parameters have the types in which matmuls read them.
        self._typed = any(is_narrow(eager_result(n)) for n in graph.nodes if n.op == "placeholder")
        for node in graph.nodes:
            if node.op == "call_function" and (found := self._state(node)) is not None:
                self._computed[node] = found

    def contains(self, node: torch.fx.Node) -> bool:
        """Returns whether the ops of a node compute in f32 because of a cast."""
        return self._computed.get(node, False) and not self._moves(node)

    def _state(self, node: torch.fx.Node) -> bool | None:
        """Returns None outside of regions, else whether the value has been computed in one."""
        if node.target in CASTS or node.target is aten.view.default and cast_of(node):
            return self._cast(node)
        if not _is_f32(eager_result(node)):
            return None
        inside = [n for n in node.all_input_nodes if n in self._computed]
        if not inside:
            return True if cast_of(node) == BEGINS else None
        if self._moves(node):
            return self._computed[inside[0]]
        if (factors := self._factors(node)) and not self._typed \
                and not all(n in self._computed for n in factors):
            return None
        return True

    def _cast(self, node: torch.fx.Node) -> bool | None:
        source, kind = node.args[0], cast_of(node)
        before, after = eager_result(source), eager_result(node)
        if not _is_f32(after):
            return None
        state = self._computed.get(source)
        if is_narrow(before):
            return False
        if node.target in (aten.type_as.default, aten.to.other):
            return (False if state is None else state) if node.args[1] in self._computed else None
        if kind == FOLLOWS:
            return state if source.target in (aten.type_as.default, aten.to.other) else None
        if not before.is_floating_point() or before.dtype != torch.float32:
            return True if kind == BEGINS else None
        if kind == BEGINS or (kind == TURNS and state is None):
            return False if state is None else state
        return state if kind is None else None

    def _moves(self, node: torch.fx.Node) -> bool:
        """Returns whether a node only moves the elements of one float tensor."""
        floats = [n for n in node.all_input_nodes if _is_f32(eager_result(n))]
        return len(floats) == 1 and (getattr(node.target, "is_view", False)
                                     or node.target in MOVES or node.target in _COPIES)

    def _factors(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        target = node.target
        if target is aten.einsum.default:
            return list(node.args[1])
        if target in _FACTORS:
            return [n for n in node.args[_FACTORS[target]] if isinstance(n, torch.fx.Node)]
        if "conv" in str(target) and "convert" not in str(target):
            return [n for n in node.args[:2] if isinstance(n, torch.fx.Node)]
        return []


def _is_f32(example: Any) -> bool:
    found = [x for x in pytree.tree_leaves(example)
             if isinstance(x, torch.Tensor) and x.is_floating_point()]
    return bool(found) and all(x.dtype == torch.float32 for x in found)
