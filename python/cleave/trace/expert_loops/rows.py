# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Computes one expert on rows that have the parameters of their own experts."""

from __future__ import annotations

import abc
import contextlib
import operator
from typing import Any, Iterator

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from ... import grouped  # noqa: F401 (registers the operator)
from .calls import Loop
from .meaning import Mixture, Parts

aten = torch.ops.aten

#: Operators that compute each row by itself along their last dimension, and the place of the
#: argument that says which dimension that is.
_ALONG_LAST = {
    aten.softmax.int: 1, aten._softmax.default: 1, aten.log_softmax.int: 1, aten.mean.dim: 1,
    aten.sum.dim_IntList: 1, aten.amax.default: 1, aten.slice.Tensor: 1, aten.split.Tensor: 2,
    aten.split.sizes: 2, aten.split_with_sizes.default: 2, aten.chunk.default: 2,
    aten.narrow.default: 1, aten.cat.default: 1, aten.glu.default: 1,
    aten.linalg_vector_norm.default: 2}

#: Operators that leave rows as they are, if their shape stays.
_SAME = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)

#: Operators on each number whose tags do not say so.
_ELEMENTWISE = (aten._to_copy.default, aten.to.dtype, aten.clone.default, aten.alias.default,
                aten.contiguous.default, aten.dropout.default, aten.type_as.default)


class NotRows(Exception):
    """An expert computes more than each row by itself, or how it does so is not known."""


class Rows(abc.ABC):
    """Adds nodes to a graph, at its place of insertion, that compute the experts of a loop all at
    once."""

    def __init__(self, graph: Graph, place: Node, loop: Loop):
        self._graph, self._place, self._loop = graph, place, loop
        self._mode = detect_fake_mode([n.meta["val"] for n in graph.nodes if "val" in n.meta])
        self._added: list[Node] = []
        #: The new nodes for those of the first expert: rows, and parameters, which are stacked.
        self._rows: dict[Node, Node] = {}
        self._stacks: dict[Node, Node] = {}
        called = loop.experts[0].x.meta["val"]
        #: The rank and the leading dimensions of rows in the loop.
        self._rank, self._lead = called.dim(), str(called.shape[:-1])

    @contextlib.contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Context manager that erases all nodes that were added if NotRows is raised."""
        try:
            yield
        except NotRows:
            for node in reversed(self._added):
                self._graph.erase_node(node)
            raise

    def _applied(self, rows: Node) -> Node:
        """Returns what the experts give for `rows`, the same for all that the loop calls them with.
        Raises NotRows."""
        experts = self._loop.experts
        dtype = experts[0].x.meta["val"].dtype
        self._rows[experts[0].x] = self._typed(rows, dtype)
        for name, node in experts[0].parameters.items():
            self._stacks[node] = self._loop.wholes.get(name) or self._call(
                aten.stack.default, [e.parameters[name] for e in experts], like=node)
        for node in experts[0].nodes:
            self._convert(node)
        return self._rows[experts[0].y]

    @abc.abstractmethod
    def _product(self, rows: Node, weights: Node, transpose: bool, like: Node) -> Node:
        """Returns the matmul of rows [..., i] and the matrices of their experts, `weights` [experts,
        i, o] or with `transpose` [experts, o, i]."""

    @abc.abstractmethod
    def _own(self, stack: Node) -> Node:
        """Returns for each row the numbers of its expert, of `stack` [experts, ...]."""

    def _typed(self, node: Node, dtype: torch.dtype) -> Node:
        if node.meta["val"].dtype == dtype:
            return node
        return self._call(aten._to_copy.default, node, dtype=dtype)

    def _call(self, target: Any, *args: Any, like: Node | None = None, **kwargs: Any) -> Node:
        node = self._graph.call_function(target, args, kwargs)
        source = like if like is not None and like.op == "call_function" else self._place
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "custom"):
            if key in source.meta:
                node.meta[key] = source.meta[key]
        known, more = pytree.tree_map(lambda a: a.meta["val"] if isinstance(a, Node) else a,
                                      (args, kwargs), is_leaf=lambda a: isinstance(a, Node))
        with self._mode, torch.no_grad():
            node.meta["val"] = target(*known, **more)
        self._added.append(node)
        return node

    # One node of the first expert -----------------------------------------------------

    def _convert(self, node: Node) -> None:
        """Adds the node for one of the first expert, whose operands have theirs. Raises NotRows."""
        if any(n in self._rows for n in node.all_input_nodes):
            self._rows[node] = self._row(node)
            for value in pytree.tree_leaves(node.meta["val"]):
                if not isinstance(value, torch.Tensor) or value.dim() != self._rank \
                        or str(value.shape[:-1]) != self._lead:
                    raise NotRows(str(node))
        elif all(n in self._stacks for n in node.all_input_nodes):
            self._stacks[node] = self._parameter(node)
        else:
            raise NotRows(str(node))

    def _parameter(self, node: Node) -> Node:
        """Returns what is computed of parameters alone, of the stacked ones."""
        target, args = node.target, list(node.args)
        source = self._stacks.get(args[0]) if args and isinstance(args[0], Node) else None
        if source is None:
            raise NotRows(str(node))
        rank = args[0].meta["val"].dim()
        if target is aten.t.default and rank == 2:
            return self._call(aten.transpose.int, source, 1, 2, like=node)
        if target is aten.transpose.int:
            return self._call(target, source, *(d % rank + 1 for d in args[1:3]), like=node)
        if target is aten.permute.default:
            return self._call(target, source, [0, *(d % rank + 1 for d in args[1])], like=node)
        if _is_elementwise(node) and len(node.all_input_nodes) == 1:
            return self._call(target, source, *args[1:], like=node, **node.kwargs)
        raise NotRows(str(node))

    def _row(self, node: Node) -> Node:
        """Returns what is computed of rows."""
        target, args = node.target, list(node.args)
        if target is aten.linear.default:
            return self._linear(node, args[0], args[1], True, args[2] if len(args) > 2 else None)
        if target in (aten.mm.default, aten.matmul.default):
            return self._linear(node, args[0], args[1], False)
        if target is aten.addmm.default and not node.kwargs:
            return self._linear(node, args[1], args[2], False, args[0])
        if target is operator.getitem:
            source, place = self._rows[args[0]], args[1]
            found = self._graph.call_function(operator.getitem, (source, place))
            found.meta = {**source.meta, "val": source.meta["val"][place]}
            self._added.append(found)
            return found
        if target in _SAME and node.meta["val"].dim() == self._rank \
                and node.meta["val"].shape[-1] == args[0].meta["val"].shape[-1]:
            return self._rows[args[0]]
        if target in _ALONG_LAST:
            return self._along_last(node)
        if _is_elementwise(node):
            args, kwargs = pytree.tree_map(self._operand, (args, node.kwargs),
                                           is_leaf=lambda a: isinstance(a, Node))
            return self._call(target, *args, like=node, **kwargs)
        raise NotRows(str(node))

    def _operand(self, argument: Any) -> Any:
        """Returns an operand of an operator on each number: rows, or for each row the numbers of its
        expert."""
        if not isinstance(argument, Node) or argument in self._rows:
            return self._rows.get(argument, argument) if isinstance(argument, Node) else argument
        if argument not in self._stacks or argument.meta["val"].dim() > 1:
            raise NotRows(str(argument))
        stack = self._stacks[argument]
        if argument.meta["val"].dim() == 0:
            stack = self._call(aten.unsqueeze.default, stack, 1)
        return self._own(stack)

    def _linear(self, node: Node, x: Node, weight: Node, transpose: bool,
                bias: Node | None = None) -> Node:
        if x not in self._rows or weight not in self._stacks \
                or weight.meta["val"].dim() != 2 or bias is not None and bias not in self._stacks:
            raise NotRows(str(node))
        y = self._product(self._rows[x], self._stacks[weight], transpose, node)
        if bias is None:
            return y
        return self._call(aten.add.Tensor, y, self._operand(bias), like=node)

    def _along_last(self, node: Node) -> Node:
        """Returns an operator along the last dimension of rows. Raises NotRows for another."""
        schema = node.target._schema.arguments
        place = _ALONG_LAST[node.target]
        given = {a.name: v for a, v in zip(schema, node.args)} | dict(node.kwargs)
        name = schema[place].name
        dims = given.get(name, schema[place].default_value)
        listed = dims if isinstance(dims, (list, tuple)) else [dims]
        if any(d is None or d % self._rank != self._rank - 1 for d in listed) or not listed \
                or given.get("keepdim", True) is not True \
                or any(a.name == "keepdim" and "keepdim" not in given for a in schema):
            raise NotRows(str(node))
        given[name] = [-1] if isinstance(dims, (list, tuple)) else -1
        given = pytree.tree_map(self._given, given, is_leaf=lambda a: isinstance(a, Node))
        places = [given.pop(a.name) for a in schema if not a.kwarg_only and a.name in given] \
            if all(a.name in given for a in schema[:place + 1]) else None
        if places is None:
            first = given.pop(schema[0].name)
            return self._call(node.target, first, like=node, **given)
        return self._call(node.target, *places, like=node, **given)

    def _given(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            if argument not in self._rows:
                raise NotRows(str(argument))
            return self._rows[argument]
        return argument


class RowsOfChoices(Rows):
    """Rows [groups, tokens, choices, ...]: one for each choice of a token."""

    def mixture(self, found: Mixture, groups: int, tokens: int) -> Node:
        """Returns the result of a mixture of `groups` times `tokens` tokens, with the shape and type
        of that of the loop. Raises NotRows."""
        x, index, weight = (self._call(aten.reshape.default, node, [groups, tokens, -1])
                            for node in (found.x, found.index, found.weight))
        index = self._typed(index, torch.int64)
        if found.outside:
            # A number that no expert has chooses none.
            inside = self._call(aten.bitwise_and.Tensor, self._call(aten.ge.Scalar, index, 0),
                                self._call(aten.lt.Scalar, index, len(self._loop.experts)))
            weight = self._call(aten.mul.Tensor, weight,
                                self._typed(inside, weight.meta["val"].dtype))
            index = self._call(aten.clamp.default, index, 0, len(self._loop.experts) - 1)
        self._index = index
        y = self._applied(self._call(aten.expand.default, self._call(aten.unsqueeze.default, x, 2),
                                     [*index.meta["val"].shape, x.meta["val"].shape[-1]]))
        y = self._call(aten.mul.Tensor, y, self._call(aten.unsqueeze.default, weight, 3))
        result = found.out.meta["val"]
        y = self._call(aten.reshape.default, self._call(aten.sum.dim_IntList, y, [2]),
                       list(result.shape))
        if found.base is not None:
            base = self._call(aten.reshape.default, found.base, list(result.shape))
            y = self._call(aten.add.Tensor, base, y)
        return self._typed(y, result.dtype)

    def _product(self, rows: Node, weights: Node, transpose: bool, like: Node) -> Node:
        return self._call(torch.ops.cleave.grouped_linear.default, rows, weights, self._index,
                          transpose, like=like)

    def _own(self, stack: Node) -> Node:
        return self._call(aten.embedding.default, stack, self._index)


class RowsOfParts(Rows):
    """Rows [experts, ...]: those of each expert."""

    def joined(self, found: Parts) -> Node:
        """Returns the joined results of experts, each of its part. Raises NotRows."""
        x, count = found.x, len(self._loop.experts)
        shape = list(x.meta["val"].shape)
        if not found.single:
            split = [*shape[:found.dim], count, shape[found.dim] // count, *shape[found.dim + 1:]]
            x = self._call(aten.reshape.default, x, split)
        y = self._applied(self._call(aten.movedim.int, x, found.dim, 0))
        y = self._call(aten.movedim.int, y, 0, found.out_dim)
        return y if found.out_single else self._call(aten.reshape.default, y,
                                                     list(found.out.meta["val"].shape))

    def _product(self, rows: Node, weights: Node, transpose: bool, like: Node) -> Node:
        count, *lead, width = rows.meta["val"].shape
        if transpose:
            weights = self._call(aten.transpose.int, weights, 1, 2, like=like)
        y = self._call(aten.bmm.default,
                       self._call(aten.reshape.default, rows, [count, -1, width], like=like),
                       weights, like=like)
        return self._call(aten.reshape.default, y, [count, *lead, y.meta["val"].shape[-1]], like=like)

    def _own(self, stack: Node) -> Node:
        count, *shape = stack.meta["val"].shape
        return self._call(aten.reshape.default, stack, [count, *[1] * (self._rank - 1), *shape])


def _is_elementwise(node: Node) -> bool:
    target = node.target
    return target in _ELEMENTWISE or torch.Tag.pointwise in getattr(target, "tags", ())
