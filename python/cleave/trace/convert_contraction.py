# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Matrix products, einsum, convolutions."""

from __future__ import annotations

import string

from .ir import TensorType, broadcast_shapes
from .registry import Unsupported, aten, converts


@converts(aten.linear.default)
def linear(c, x, weight, bias=None):
    if weight.type.rank != 2:
        raise Unsupported(f"a weight of rank {weight.type.rank}")
    return c.b.linear(x, weight, bias)


def product(c, a, b):
    """Matrix product by the rules of torch.matmul."""
    if a.type.rank == 1 and b.type.rank == 1:
        return c.b.contract("k,k->", a, b)
    letters = iter(string.ascii_lowercase)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    names = [next(letters) for _ in batch]
    m, k, n = next(letters), next(letters), next(letters)

    def operand(x, matrix):
        """`x` without the unit dimensions it repeats along, and its letters."""
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


@converts(aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default,
          aten.dot.default)
def matmul(c, a, b):
    return product(c, a, b)


@converts(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def addmm(c, bias, a, b, beta=1, alpha=1):
    result = product(c, a, b)
    if alpha != 1:
        result = c.b.binary("mul", result, c.b.scalar(alpha, result.dtype))
    if beta == 0:
        return result
    if beta != 1:
        bias = c.b.binary("mul", bias, c.b.scalar(beta, bias.dtype))
    return c.b.binary("add", result, bias)


@converts(aten.addbmm.default)
def addbmm(c, bias, a, b, beta=1, alpha=1):
    result = c.b.contract("bij,bjk->ik", a, b)
    if alpha != 1:
        result = c.b.binary("mul", result, c.b.scalar(alpha, result.dtype))
    if beta == 0:
        return result
    if beta != 1:
        bias = c.b.binary("mul", bias, c.b.scalar(beta, bias.dtype))
    return c.b.binary("add", result, bias)


@converts(aten._trilinear.default)
def trilinear(c, x, y, z, new_x, new_y, new_z, summed, unroll_dim=1):
    """The sum over `summed` of the product of three tensors, each with new dimensions
    of one element."""
    rank = x.type.rank + len(new_x)

    def spread(value, new):
        sizes = iter(value.shape)
        return c.b.reshape(value, [1 if d in new else next(sizes) for d in range(rank)])
    result = c.b.binary("mul", spread(x, new_x), spread(y, new_y))
    return c.b.reduce("sum", c.b.binary("mul", result, spread(z, new_z)), summed)


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
    """Terms and operands without the dimensions of size 1 along which an operand is
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
    """`x` with one dimension for each letter of `term`: those of a letter that repeats
    become their diagonal."""
    for letter in [l for l in dict.fromkeys(term) if term.count(l) > 1]:
        while term.count(letter) > 1:
            first, last = term.index(letter), term.rindex(letter)
            places = [b.iota(TensorType(tuple(n if i == d else 1 for i, n in enumerate(x.shape)),
                                        "i64"), d) for d in (first, last)]
            # Elements beside it may be infinite or NaN.
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


# Convolutions -----------------------------------------------------------------------


def _pair(value):
    value = [value] if isinstance(value, int) else list(value)
    return value * 2 if len(value) == 1 else value


def convolution2d(c, x, weight, bias, stride, padding, dilation, groups):
    """[n, c, h, w] with [o, c / groups, kh, kw]: patches times the weight."""
    b = c.b
    kernel = list(weight.shape[2:])
    stride, dilation = _pair(stride), _pair(dilation)
    if isinstance(padding, str):
        extra = [(k - 1) * d if padding == "same" else 0 for k, d in zip(kernel, dilation)]
        padding = [e // 2 for e in extra]
        # Of an odd width, the larger half is behind.
        x = b.pad(x, 0, [0] * 4, [0, 0, *(e % 2 for e in extra)])
    rows = b.patches(x, kernel, stride, _pair(padding), dilation)
    if groups == 1:
        result = b.contract("nhwcij,ocij->nohw", rows, weight)
    else:
        n, h, w, channels = rows.shape[:4]
        rows = b.reshape(rows, [n, h, w, groups, channels // groups, *kernel])
        split = b.reshape(weight, [groups, weight.shape[0] // groups, *weight.shape[1:]])
        result = b.contract("nhwgcij,gocij->ngohw", rows, split)
        result = b.reshape(result, [n, weight.shape[0], h, w])
    if bias is not None:
        result = b.binary("add", result, b.reshape(bias, [weight.shape[0], 1, 1]))
    return result


@converts(aten.conv2d.default, aten.conv2d.padding)
def conv2d(c, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    lead = x.type.rank == 3
    x = c.b.reshape(x, (1, *x.shape)) if lead else x
    result = convolution2d(c, x, weight, bias, stride, padding, dilation, groups)
    return c.b.reshape(result, result.shape[1:]) if lead else result


@converts(aten.conv1d.default, aten.conv1d.padding)
def conv1d(c, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    def first(value, unit):
        return value if isinstance(value, str) else [unit, _pair(value)[0]]
    image = c.b.reshape(x, (*((1,) if x.type.rank == 2 else ()), *x.shape[:-1], 1, x.shape[-1]))
    kernel = c.b.reshape(weight, (*weight.shape[:2], 1, weight.shape[2]))
    result = convolution2d(c, image, kernel, bias, first(stride, 1), first(padding, 0),
                           first(dilation, 1), groups)
    return c.b.reshape(result, c.type.shape)


@converts(aten.convolution.default)
def convolution(c, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    from .convert_windows import conv3d, transposed_convolution
    if transposed:
        return transposed_convolution(c, x, weight, bias, stride, padding, output_padding, groups,
                                      dilation, weight.type.rank - 2)
    convert = {3: conv1d, 4: conv2d, 5: conv3d}[weight.type.rank]
    return convert(c, x, weight, bias, stride, padding, dilation, groups)
