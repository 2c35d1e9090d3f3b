# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Decides what the code around the experts of a loop computes.

The code is known by its results, not by how it is written. It is evaluated: with simple functions in
place of the experts, it must give the sum that a mixture is, for choices and weights drawn at random
and at their edges. It may only move, multiply and add numbers, and compare integers, so that its
results are polynomials of the floating-point ones, and two that agree at random points are one
(Schwartz 1980, Fast probabilistic algorithms for verification of polynomial identities).
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Callable, Iterator

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from .calls import Expert, dependence, is_tensor, known, without_copies

aten = torch.ops.aten

#: Operators that may give floating-point numbers around experts: those that move, multiply, add and
#: convert them.
_MOVING = frozenset("""
    _to_copy _unsafe_view add alias bmm cat clone contiguous einsum empty empty_like expand expand_as flatten
    full full_like gather index index_add index_copy index_put index_select lift_fresh_copy
    masked_fill masked_select matmul mm mul narrow new_empty new_full new_zeros ones ones_like permute repeat
    repeat_interleave reshape scatter scatter_add select slice split split_with_sizes squeeze stack
    sum t to transpose type_as unbind unflatten unsqueeze view view_as where zero zeros
    zeros_like""".split())

#: Operators whose results are not defined.
_UNDEFINED = (aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default)

#: Operators that give zeros.
_ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)

#: Operators that read all elements of a tensor, and tell whether one is not 0, or how many.
_WHOLE = (aten.any.default, aten.sum.default, aten.count_nonzero.default, aten.max.default)

#: Operators that leave choices as they are, or some of them.
_KEPT = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.clone.default,
         aten.contiguous.default, aten._to_copy.default, aten.to.dtype, aten.slice.Tensor,
         aten.flatten.using_ints, aten.unsqueeze.default, aten.alias.default)

#: The largest number of results, and of tensors of choices and weights, that are tried.
_TRIES = 8


@dataclasses.dataclass
class Mixture:
    """For each token of `x` the sum of its experts' results, of those that `index` chooses, each
    times a number of `weight`, added to `base`."""

    x: Node
    index: Node
    weight: Node
    base: Node | None
    out: Node
    #: The value of `out` if no expert is chosen: `base`, or zeros. None if the program has no such node.
    begin: Node | None
    #: Whether numbers of `index` may be those of no expert, which then give nothing.
    outside: bool
    #: The nodes that are no longer needed.
    inner: set[Node]


@dataclasses.dataclass
class Parts:
    """The results of experts, each of its own part of `x`, joined in the order of the experts."""

    x: Node
    #: The dimension of `x` that has the parts, and whether each is one place of it.
    dim: int
    single: bool
    out: Node
    #: The dimension of `out` that has the results, and whether each is one place of it.
    out_dim: int
    out_single: bool
    #: The nodes that are no longer needed.
    inner: set[Node]


# Mixtures -----------------------------------------------------------------------------


def mixture(program: torch.export.ExportedProgram, experts: list[Expert],
            decided: dict[Any, bool]) -> Mixture | None:
    """Returns the sum over chosen experts that a loop computes; None if it computes another
    function, or if that is not known. `decided` keeps what code has been found to compute."""
    order = {node: i for i, node in enumerate(program.graph.nodes)}
    if len(called := without_copies([expert.x for expert in experts])) == 1:
        for expert in experts:
            expert.x = called[0]
    every = (1 << len(experts)) - 1
    inner = {node for expert in experts for node in expert.nodes}
    after = dependence(program.graph.nodes, {n: 1 << i for i, e in enumerate(experts) for n in e.nodes})
    if any(after.get(e.x) for e in experts) or not all(
            is_float(n) and n.meta["val"].dim() and known(n.meta["val"].shape[-1])
            for n in (experts[0].x, experts[0].y)):
        return None
    outs = [n for n, found in after.items() if found == every and n not in inner and is_float(n)]
    width = experts[0].y.meta["val"].shape[-1]
    # Of tokens that are repeated it is not seen that they choose different experts.
    for outside in (False, True):
        for out in outs[:_TRIES]:
            for x in _common(experts):
                tokens = size_of(x) // x.meta["val"].shape[-1]
                if tokens < 1 or size_of(out) != tokens * width \
                        or x.meta["val"].shape[-1] != experts[0].x.meta["val"].shape[-1]:
                    continue
                found = _of(experts, order, after, out, x, tokens, outside, decided)
                if found is not None:
                    return found
    return None


def _of(experts: list[Expert], order: dict[Node, int], after: dict[Node, int], out: Node, x: Node,
        tokens: int, outside: bool, decided: dict[Any, bool]) -> Mixture | None:
    """Returns the mixture whose result is `out`, of `tokens` tokens in `x`, whose choices may be
    `outside` those of different experts."""
    before = _slice(out, experts, {x})
    free = sorted((n for n in before if not after.get(n)), key=order.__getitem__, reverse=True)
    results = {expert.y for expert in experts}
    # A value computed for one expert alone is not one that all of them read.
    every = (1 << len(experts)) - 1
    touched = _touched(free, after)
    sized = [n for n in free if touched[n] == every and (is_float(n) or _is_integer(n))
             and size_of(n) > 0 and size_of(n) % tokens == 0 and size_of(n) // tokens <= len(experts)]
    indices = [n for n in sized if _is_integer(n)
               and _chosen_of(n, len(experts), tokens) is not outside]
    weights = [n for n in sized if is_float(n)]
    begins = [n for n in free if is_float(n) and size_of(n) == size_of(out) and n is not x
              and any(after.get(user) for user in n.users)]
    # Of the tensors that are computed from others the last ones come first.
    for index in indices[:_TRIES]:
        for weight in [n for n in weights if size_of(n) == size_of(index)][:_TRIES]:
            for base in (None, *begins[:2]):
                cuts = {x, index, weight} | ({base} if base else set())
                region = _slice(out, experts, cuts)
                if not all(map(_closed, region - cuts)) or not cuts <= region:
                    continue
                nodes = sorted(region - cuts, key=order.__getitem__)
                begin = base or next((n for n in begins if n.target in _ZEROS), None)
                if begin is not None and begin.meta["val"].shape != out.meta["val"].shape:
                    begin = None
                found = Mixture(x, index, weight, base, out, begin, outside, region - cuts)
                if not all(_moves(n) for n in nodes if n not in results):
                    continue
                key = _written(nodes, experts, found)
                if key not in decided:
                    decided[key] = _computes(nodes, experts, found, tokens)
                if decided[key]:
                    return found
    return None


def _chosen_of(index: Node, count: int, tokens: int) -> bool:
    """Returns whether all numbers of `index` are known to be below `count`, and those of each of
    `tokens` tokens to differ: they are places of the largest of so many."""
    while index.target is not operator.getitem and index.target in _KEPT:
        index = index.args[0]
    source = index
    if index.target is operator.getitem:
        source = index.args[0]
        if index.args[1] != 1 or source.target not in (aten.topk.default, aten.max.dim,
                                                       aten.sort.default):
            return False
    elif index.target not in (aten.argmax.default, aten.argsort.default):
        return False
    scores = source.args[0].meta["val"]
    places = {aten.topk.default: 2, aten.max.dim: 1, aten.sort.default: 1}.get(source.target, 1)
    dim = source.args[places] if len(source.args) > places else source.kwargs.get("dim", -1)
    return dim is not None and dim % scores.dim() == scores.dim() - 1 \
        and scores.shape[-1] <= count and scores.numel() == tokens * scores.shape[-1]


def _touched(free: list[Node], after: dict[Node, int]) -> dict[Node, int]:
    """Returns for each of `free`, which depend on no expert and whose last ones come first, the union
    of the bits in `after` of nodes that depend on it through others of `free` alone."""
    found: dict[Node, int] = {}
    for node in free:
        found[node] = 0
        for user in node.users:
            found[node] |= after.get(user, 0) or found.get(user, 0)
    return found


def _common(experts: list[Expert]) -> list[Node]:
    """Returns the floating-point tensors that what each expert is called with is moved from, the
    last first."""
    def chain(node: Node) -> Iterator[Node]:
        while True:
            yield node
            source = next((n for n in node.all_input_nodes if is_float(n)), None)
            if source is None or not _moves(node):
                return
            node = source

    shared = set.intersection(*(set(chain(expert.x)) for expert in experts))
    return [n for n in chain(experts[0].x) if n in shared and size_of(n) > 0][:_TRIES]


def _slice(out: Node, experts: list[Expert], cuts: set[Node]) -> set[Node]:
    """Returns the nodes that `out` depends on, through what experts are called with in place of
    their nodes, up to `cuts`, which are among them."""
    calls = {expert.y: expert.x for expert in experts}
    found, pending = set(), [out]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        if node not in cuts:
            pending += [calls[node]] if node in calls else node.all_input_nodes
    return found


def _closed(node: Node) -> bool:
    return node.op == "call_function"


def size_of(node: Node) -> int:
    """Returns the number of elements of a tensor; -1 if it depends on values."""
    count = node.meta["val"].numel()
    return -1 if isinstance(count, torch.SymInt) else count


def is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_integer(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int32, torch.int64)


def _moves(node: Node) -> bool:
    """Returns whether a node around experts only moves, multiplies or adds numbers, if they are
    floating-point ones, and does not decide by them."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem or not is_tensor(node)
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    name = target._schema.name.split("::")[1]
    values = pytree.tree_leaves(node.meta.get("val"))
    if any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values):
        return name in _MOVING and node.kwargs.get("alpha", 1) == 1
    return name in ("sym_size", "zeros_like", "ones_like", "full_like", "new_zeros", "new_full") \
        or not any(map(is_float, node.all_input_nodes))


# Evaluation ---------------------------------------------------------------------------


def _written(nodes: list[Node], experts: list[Expert], mixture: Mixture) -> Any:
    """Returns a key that is the same for code that is written alike, and computes the same."""
    given = (mixture.x, mixture.index, mixture.weight, mixture.base)
    numbers = {node: i for i, node in enumerate(n for n in given if n is not None)}
    calls = {expert.y: (i, expert.x) for i, expert in enumerate(experts)}

    def shown(argument: Any) -> str:
        return f"%{numbers[argument]}" if isinstance(argument, Node) else repr(argument)

    lines = []
    for node in nodes:
        numbers[node] = len(numbers)
        if node in calls:
            lines.append((f"expert {calls[node][0]}", shown(calls[node][1])))
            continue
        leaves, tree = pytree.tree_flatten((node.args, node.kwargs),
                                           is_leaf=lambda a: isinstance(a, Node))
        lines.append((str(node.target), str(tree), *map(shown, leaves)))
    shapes = [tuple(n.meta["val"].shape) for n in given if n is not None]
    return (str(shapes), mixture.outside, mixture.base is None,
            experts[0].y.meta["val"].shape[-1], len(experts), *lines)


def _computes(nodes: list[Node], experts: list[Expert], mixture: Mixture, tokens: int) -> bool:
    """Returns whether `nodes` compute a mixture, as far as draws in f64 tell: of choices at random,
    of all tokens choosing the first experts, and the last; with weights of any sign and size."""
    count = size_of(mixture.index) // tokens
    number = len(experts)
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    width, read = experts[0].y.meta["val"].shape[-1], mixture.x.meta["val"].shape[-1]
    factors, terms, scales = normal(number, width), normal(number, width), normal(width)
    columns, sums = torch.arange(width) % read, normal(read)

    def applied(x: torch.Tensor, expert: torch.Tensor | int) -> torch.Tensor:
        # Each number that is read counts, and the function is not linear.
        whole = torch.sin(x @ sums)[..., None] * scales
        return whole + torch.sin(x[..., columns] + terms[expert]) * factors[expert]

    shuffled = torch.rand(tokens, number, generator=draw).argsort(-1)[:, :count]
    first = torch.arange(count).expand(tokens, -1)
    draws = [shuffled, first, number - 1 - first]
    if mixture.outside:
        # Numbers of any kind: such that no expert has, and one more than once.
        draws.append(torch.randint(number, (tokens, count), generator=draw))
        draws.append(torch.randint(-1, number + 1, (tokens, count), generator=draw))
    scale = torch.tensor([0.0, 1.0, -1.0, 1e-3, 1e3])
    for index in draws:
        inside = (index >= 0) & (index < number)
        x = normal(*mixture.x.meta["val"].shape)
        weight = normal(tokens, count) * scale[torch.randint(5, (tokens, count), generator=draw)]
        values = {mixture.x: x,
                  mixture.index: index.to(mixture.index.meta["val"].dtype).reshape(
                      mixture.index.meta["val"].shape),
                  mixture.weight: weight.reshape(mixture.weight.meta["val"].shape)}
        rows = x.reshape(tokens, 1, -1).expand(-1, count, -1)
        right = (applied(rows, index.clamp(0, number - 1)) * (weight * inside)[..., None]).sum(1)
        if mixture.base is not None:
            begin = values[mixture.base] = normal(*mixture.base.meta["val"].shape)
            right = right + begin.reshape(right.shape)
        try:
            result = _evaluated(nodes, values, experts, applied)
        except (RuntimeError, IndexError, TypeError, ValueError):
            # Eager code fails as well for a number that no expert has.
            if inside.all():
                return False
            continue
        if not torch.allclose(result.reshape(right.shape), right, rtol=1e-9, atol=1e-9):
            return False
    return True


def chooses(condition: Node, truth: bool, mixture: Mixture, experts: list[Expert], number: int,
            order: dict[Node, int]) -> bool:
    """Returns whether a condition is `truth` exactly if a token chooses the expert `number`: it reads
    whether any of some elements is not 0, or how many are not, and these are of the tokens, or of the
    choices, that are of this expert, as far as draws tell."""
    region = _slice(condition, experts, {mixture.index}) - {mixture.index}
    results = {expert.y for expert in experts}
    whole = [n for n in region if n.target in _WHOLE]
    if not all(map(_closed, region)) or not all(map(_moves, region)) or results & region \
            or len(whole) != 1:
        return False
    elements = whole[0].args[0]
    nodes = sorted(region, key=order.__getitem__)
    like = mixture.index.meta["val"]
    tokens = size_of(mixture.x) // mixture.x.meta["val"].shape[-1]
    count = like.numel() // tokens
    draw = torch.Generator().manual_seed(0)
    draws = [(torch.arange(count) + i).remainder(len(experts)).expand(tokens, -1)
             for i in range(len(experts))]
    draws += [torch.rand(tokens, len(experts), generator=draw).argsort(-1)[:, :count]
              for _ in range(4)]
    # One token alone chooses the first of these experts.
    for i in range(len(experts)):
        one = draws[(i + 1) % len(experts)].clone()
        one[int(torch.randint(tokens, (), generator=draw))] = draws[i][0]
        draws.append(one)
    for index in draws:
        own = index == number
        given = {mixture.index: index.to(like.dtype).reshape(like.shape)}
        try:
            found = _evaluated(nodes, {**given}, experts, lambda x, _: x)
            read = _evaluated(nodes[:nodes.index(elements) + 1], {**given}, experts, lambda x, _: x) \
                if elements is not mixture.index else index
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False
        # Elements may be in any order of choices and tokens.
        chosen = (read != 0).sum() if read.numel() != tokens else (read != 0).reshape(tokens)
        wanted = own.sum() if read.numel() != tokens else own.any(-1)
        if (bool(found) is truth) != bool(own.any()) or not torch.equal(chosen, wanted):
            return False
    return True


def _evaluated(nodes: list[Node], values: dict[Node, Any], experts: list[Expert],
               applied: Callable) -> torch.Tensor:
    """Returns the value of the last of `nodes`, computed in f64, with `applied(x, i)` for what expert
    `i` gives. Elements that an operator leaves undefined are not numbers."""
    calls = {expert.y: (expert.x, i) for i, expert in enumerate(experts)}
    reads = {node: [calls[node][0]] if node in calls else node.all_input_nodes for node in nodes}
    last = {n: node for node in nodes for n in reads[node]}

    def value(argument: Any) -> Any:
        if isinstance(argument, Node):
            return values[argument]
        if isinstance(argument, torch.dtype) and argument.is_floating_point:
            return torch.float64
        return torch.device("cpu") if isinstance(argument, torch.device) else argument

    for node in nodes:
        if node in calls:
            x, number = calls[node]
            found = applied(values[x], number)
        else:
            args, kwargs = pytree.tree_map(value, (node.args, node.kwargs),
                                           is_leaf=lambda a: isinstance(a, Node))
            found = node.target(*args, **kwargs)
        if isinstance(found, torch.Tensor) and found.is_floating_point():
            undefined = node.target in _UNDEFINED
            found = torch.full_like(found, torch.nan) if undefined else found.double()
        values[node] = found
        for n in reads[node]:
            if last[n] is node:
                values.pop(n, None)
    return values[nodes[-1]]


# Parts of a tensor --------------------------------------------------------------------


def parts(experts: list[Expert]) -> Parts | None:
    """Returns the parts of a tensor that each expert computes its own one of; None if there are
    none."""
    if not all(is_float(expert.x) and size_of(expert.x) > 0 for expert in experts):
        return None
    source = [_part(expert.x) for expert in experts]
    first = source[0]
    out = next(iter(experts[0].y.users), None)
    if first is None or out is None or out.target not in (aten.cat.default, aten.stack.default) \
            or out.args[0] != [expert.y for expert in experts] \
            or any(len(expert.y.users) != 1 for expert in experts):
        return None
    x, dim, single, _ = first
    alike = len(without_copies([found[0] for found in source if found is not None])) == 1
    shape = experts[0].x.meta["val"].shape
    if not alike or size_of(x) < 1 or any(
            found is None or found[1:] != (dim, single, i)
            or expert.x.meta["val"].shape != shape
            for i, (found, expert) in enumerate(zip(source, experts))) \
            or size_of(x) != len(experts) * size_of(experts[0].x):
        return None
    given = out.args[1] if len(out.args) > 1 else out.kwargs.get("dim", 0)
    inner = {expert.x for expert in experts} | {n for e in experts for n in e.x.all_input_nodes}
    return Parts(x, dim, single, out, given % out.meta["val"].dim(), out.target is aten.stack.default,
                 {out} | inner - {x})


def _part(node: Node) -> tuple[Node, int, bool, int] | None:
    """Returns the tensor that `node` is a part of, the dimension, whether the part is one place of
    it, and which part it is; None if it is none."""
    target, args = node.target, node.args
    if node.kwargs:
        return None
    if target is aten.select.int:
        return args[0], args[1] % args[0].meta["val"].dim(), True, args[2]
    if target is aten.slice.Tensor and len(args) == 4:
        part, rest = divmod(args[2], node.meta["val"].shape[args[1]])
        return None if rest else (args[0], args[1] % args[0].meta["val"].dim(), False, part)
    if target is operator.getitem and not args[0].kwargs and args[0].target in (
            aten.chunk.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int):
        source, given = args[0].args[0], args[0].args
        single = args[0].target is aten.unbind.int
        dim = given[1 if single else 2] if len(given) > (1 if single else 2) else 0
        return source, dim % source.meta["val"].dim(), single, args[1]
    return None
