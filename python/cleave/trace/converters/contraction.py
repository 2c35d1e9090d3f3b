# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Matrix multiplication and einsum."""

from __future__ import annotations

import string

import torch

from ... import grouped  # noqa: F401 (defines the operators)
from ..ir import TensorType, broadcast_shapes
from ..registry import Unsupported, aten, converts


@converts(aten.linear.default)
def linear(c, x, weight, bias=None):
    if weight.type.rank != 2:
        raise Unsupported(f"the weight has rank {weight.type.rank}, not 2")
    return c.b.linear(x, weight, bias)


def product(c, a, b):
    """Returns the matmul a @ b, with the shapes of torch.matmul."""
    if a.type.rank == 1 and b.type.rank == 1:
        return c.b.contract("k,k->", a, b)
    letters = iter(string.ascii_lowercase)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    names = [next(letters) for _ in batch]
    m, k, n = next(letters), next(letters), next(letters)

    def operand(x, matrix):
        """Returns `x` without its broadcast batch dimensions, and its einsum letters."""
        lead = x.shape[:-2] if x.type.rank >= 2 else ()
        kept = [(name, size) for name, size, full in
                zip(names[len(names) - len(lead):], lead, batch[len(batch) - len(lead):])
                if size == full]
        x = c.b.reshape(x, [s for _, s in kept] + list(x.shape[-len(matrix):]))
        return x, "".join(n for n, _ in kept) + matrix

    a, left = operand(a, m + k if a.type.rank > 1 else k)
    b, right = operand(b, k + n if b.type.rank > 1 else k)
    output = "".join(names) + (m if m in left else "") + (n if n in right else "")
    return c.b.contract(f"{left},{right}->{output}", a, b)


@converts(aten.matmul.default, aten.mm.default, aten.bmm.default)
def matmul(c, a, b):
    return product(c, a, b)


@converts(aten.mv.default, aten.dot.default)
def product_with_vector(c, a, b):
    # Autocast leaves the operands of these as they are.
    return c.b.reduce("sum", c.b.binary("mul", a, b), [a.type.rank - 1])


def add_bias(c, bias, result, beta, alpha):
    """beta * bias + alpha * result; a bias times 0 is not read."""
    if alpha != 1:
        result = c.b.binary("mul", result, c.b.scalar(alpha, result.dtype))
    if beta == 0:
        return result
    if beta != 1:
        bias = c.b.binary("mul", bias, c.b.scalar(beta, bias.dtype))
    return c.b.binary("add", result, bias)


@converts(aten.addmm.default, aten.baddbmm.default)
def addmm(c, bias, a, b, beta=1, alpha=1):
    return add_bias(c, bias, product(c, a, b), beta, alpha)


@converts(aten.addmv.default)
def addmv(c, bias, a, b, beta=1, alpha=1):
    return add_bias(c, bias, product_with_vector(c, a, b), beta, alpha)


@converts(aten.addbmm.default)
def addbmm(c, bias, a, b, beta=1, alpha=1):
    return add_bias(c, bias, c.b.contract("bij,bjk->ik", a, b), beta, alpha)


@converts(aten._trilinear.default)
def trilinear(c, x, y, z, new_x, new_y, new_z, summed, unroll_dim=1):
    """Returns the sum over the dimensions `summed` of the product of three tensors; `new_x`,
    `new_y` and `new_z` are dimensions of size 1 that are first inserted into each of them."""
    rank = x.type.rank + len(new_x)

    def spread(value, new):
        sizes = iter(value.shape)
        return c.b.reshape(value, [1 if d in new else next(sizes) for d in range(rank)])
    result = c.b.binary("mul", spread(x, new_x), spread(y, new_y))
    return c.b.reduce("sum", c.b.binary("mul", result, spread(z, new_z)), summed)


@converts(torch.ops.cleave.grouped_linear.default)
def grouped_linear(c, rows, weight, groups, transpose):
    return c.b.grouped_linear(rows, weight, c.b.cast(groups, "i64"), transpose)


@converts(torch.ops.cleave.grouped_linear_weight_grad.default)
def grouped_linear_weight_grad(c, rows, gradient, groups, size, transpose):
    return c.b.grouped_linear_weight_grad(rows, gradient, c.b.cast(groups, "i64"), size, transpose)


@converts(aten.outer.default)
def outer(c, a, b):
    return c.b.contract("i,j->ij", a, b)


@converts(aten.einsum.default)
def einsum(c, equation, operands, path=None):
    equation = equation.replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if "..." in equation:
        terms, output = _spell_dots(terms, output, arrow, operands)
    if not arrow:
        letters = "".join(terms)
        output = output or "".join(sorted(l for l in set(letters) if letters.count(l) == 1))
    terms, operands = zip(*(_diagonals(c.b, *pair) for pair in zip(terms, operands)))
    terms, operands = _without_units(c.b, terms, operands)
    value, term = operands[0], terms[0]
    for i in range(1, len(operands)):
        later = set(output).union(*terms[i + 1:]) if i + 1 < len(terms) else set(output)
        result = (output if i == len(operands) - 1 else
                  "".join(dict.fromkeys(l for l in term + terms[i] if l in later)))
        value, term = c.b.contract(f"{term},{terms[i]}->{result}", value, operands[i]), result
    if len(operands) == 1:
        gone = [i for i, letter in enumerate(term) if letter not in output]
        value = c.b.reduce("sum", value, gone)
        term = "".join(l for l in term if l in output)
        value = c.b.transpose(value, [term.index(l) for l in output])
    return value


def _without_units(b, terms, operands):
    """Returns terms and operands without the dimensions of size 1 along which an operand is
    repeated, because another one has more elements there."""
    sizes = {}
    for term, x in zip(terms, operands):
        for letter, size in zip(term, x.shape):
            sizes[letter] = max(size, sizes.get(letter, 1))
    kept = [[d for d, letter in enumerate(term) if x.shape[d] == sizes[letter]]
            for term, x in zip(terms, operands)]
    return (["".join(term[d] for d in own) for term, own in zip(terms, kept)],
            [b.reshape(x, [x.shape[d] for d in own]) for x, own in zip(operands, kept)])


def _diagonals(b, term, x):
    """Returns the letters of `term` without repetition, and `x` with one dimension for
    each: dimensions of a repeated letter are reduced to their diagonal."""
    for letter in [l for l in dict.fromkeys(term) if term.count(l) > 1]:
        while term.count(letter) > 1:
            first, last = term.index(letter), term.rindex(letter)
            places = [b.iota(TensorType(tuple(n if i == d else 1 for i, n in enumerate(x.shape)),
                                        "i64"), d) for d in (first, last)]
            # A select, since elements off the diagonal may be infinite or NaN.
            x = b.select(b.compare("eq", *places), x, b.scalar(0, x.dtype))
            x = b.reduce("sum", x, [last])
            term = term[:last] + term[last + 1:]
    return term, x


def _spell_dots(terms, output, arrow, operands):
    """Replaces "..." by letters that the equation does not use."""
    free = [l for l in string.ascii_letters if l not in "".join(terms)]
    ranks = [v.type.rank - len(t.replace("...", "")) for t, v in zip(terms, operands)
             if "..." in t]
    dots = free[:max(ranks)]
    spelled = []
    for term, value in zip(terms, operands):
        rank = value.type.rank - len(term.replace("...", ""))
        spelled.append(term.replace("...", "".join(dots[len(dots) - rank:])))
    if not arrow:
        letters = "".join(t.replace("...", "") for t in terms)
        output = "..." + "".join(sorted(l for l in set(letters) if letters.count(l) == 1))
    return spelled, output.replace("...", "".join(dots))
