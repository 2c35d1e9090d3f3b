# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Ops that are raised from smaller ones compute the same, and have the same gradients."""

import random
import re

import numpy as np
import pytest

from cleave.trace.printer import number
from cleave.testing.tools import interpret, optimize
from proofs import ALL

COUNT = 300 if ALL else 8


class Text:
    """The body of a function, op by op."""

    def __init__(self, dtype):
        self.dtype, self.lines, self.arguments, self.types = dtype, [], [], {}
        self.conditions = set()

    def type(self, shape, dtype=None):
        return "tensor<" + "".join(f"{d}x" for d in shape) + (dtype or self.dtype) + ">"

    def argument(self, name, shape, role):
        self.types["%" + name] = tuple(shape)
        self.arguments.append(
            f'%{name}: {self.type(shape)} {{graph.name = "{name}", graph.role = "{role}"}}')
        return "%" + name

    def op(self, name, *operands, shape, attrs="", head=""):
        result = f"%{len(self.lines)}"
        self.types[result] = tuple(shape)
        types = ", ".join(self.type(self.types[v], "i1" if v in self.conditions else None)
                          for v in operands)
        self.lines.append(f"{result} = graph.{name} {head}{', '.join(operands)}{attrs} : "
                          f"({types}) -> {self.type(shape)}")
        return result

    def number(self, value, shape=()):
        result = f"%{len(self.lines)}"
        self.types[result] = tuple(shape)
        self.lines.append(f"{result} = graph.constant dense<{number(value, self.dtype)}> : {self.type(shape)}")
        return result

    def same(self, name, *operands):
        """An element-wise op."""
        shape = np.broadcast_shapes(*(self.types[v] for v in operands))
        return self.op(name, *operands, shape=shape)

    def product(self, draw, a, b):
        return self.same("mul", *draw.sample([a, b], 2))

    def sum(self, x, dims):
        shape = [n for d, n in enumerate(self.types[x]) if d not in dims]
        listed = ", ".join(map(str, dims))
        return self.op("reduce", x, shape=shape, head="sum ", attrs=f" {{dims = array<i64: {listed}>}}")

    def module(self, y):
        """The function whose loss is a weighted sum of the elements of `y`."""
        shape = self.types[y]
        y = self.same("mul", y, self.argument("c", shape, "input"))
        loss = self.sum(y, range(len(shape)))
        body = "\n  ".join(self.lines)
        return (f'func.func @loss({", ".join(self.arguments)}) -> ({self.type(())} '
                f'{{graph.name = "loss"}}) {{\n  {body}\n  return {loss} : {self.type(())}\n}}\n')


def mean(t, draw, x, kept=True):
    """The mean over the last dimension, which is kept."""
    shape = t.types[x]
    total = t.sum(x, [len(shape) - 1])
    early = draw.random() < 0.5
    if kept and early:
        total = t.op("reshape", total, shape=(*shape[:-1], 1))
    total = (t.product(draw, total, t.number(1 / shape[-1])) if draw.random() < 0.5
             and t.dtype in ("f64", "f32") else t.same("div", total, t.number(shape[-1])))
    if kept and not early:
        total = t.op("reshape", total, shape=(*shape[:-1], 1))
    return total


def norm(draw, dtype="f64"):
    """A norm in one of many spellings: its text, and the ops that it is raised to."""
    t = Text(dtype)
    shape = [draw.choice([1, 2, 3, 3, 5]) for _ in range(draw.randint(0, 3))] + [draw.choice([1, 3, 4])]
    size = shape[-1]
    x = t.argument("x", shape, "parameter")
    centred = draw.random() < 0.5
    detached = False
    y = x
    if centred:
        m = mean(t, draw, x)
        if detached := draw.random() < 0.2:
            m = t.same("stop_gradient", m)
        if draw.random() < 0.3:
            m = t.op("broadcast", m, shape=shape)
        y = t.same("sub", x, m)
    squared = y
    if centred and draw.random() < 0.5:
        squared = t.same("sub", x, t.same("stop_gradient", mean(t, draw, x)))
    shifted = t.same("add", *draw.sample([mean(t, draw, t.same("mul", squared, squared)),
                                          t.number(0.125)], 2))
    form = draw.randrange(3)
    if form == 0:
        y = t.product(draw, y, t.same("rsqrt", shifted))
    elif form == 1:
        y = t.same("div", y, t.same("sqrt", shifted))
    else:
        y = t.product(draw, y, t.same("div", t.number(1), t.same("sqrt", shifted)))
    layer = centred and not detached
    for name, op in (("w", "mul"), ("b", "add")):
        if draw.random() < 0.6 and (layer or name == "w"):
            vector = t.argument(name, [size], "parameter")
            if draw.random() < 0.4:
                vector = t.op("reshape", vector, shape=(*[1] * (len(shape) - 1), size))
            y = t.same(op, *draw.sample([y, vector], 2))
    return t.module(y), "layer_norm" if layer else "rms_norm"


def values_of(text, seed):
    """Random values of the arguments of a module."""
    rng = np.random.default_rng(seed)
    found = re.findall(r'%(\w+): tensor<((?:\d+x)*)\w+> \{graph\.name', text)
    return {name: rng.standard_normal([int(d) for d in shape.split("x") if d]) for name, shape in found}


def check_raised(text, seed, passes):
    """Compares loss and gradients before and after passes; returns the raised module."""
    raised = optimize(text, *passes)
    values = values_of(text, seed)
    results = [interpret(optimize(module, "--graph-differentiate"), values, entry="train")
               for module in (text, raised)]
    # The reciprocal of a size is rounded to the type.
    rtol = 1e-6 if "xf32>" in text else 1e-9
    for before, after in zip(*results):
        assert before.keys() == after.keys() and len(before) > 0
        for name in before:
            np.testing.assert_allclose(after[name], before[name], rtol=rtol, atol=rtol, err_msg=name)
    return raised


@pytest.mark.parametrize("case", range(COUNT))
def test_a_norm(case):
    draw = random.Random(case)
    text, op = norm(draw, draw.choice(["f64", "f32", "bf16", "f16"]))
    raised = check_raised(text, case, ["--graph-raise-norms"])
    # A norm of rows of one element, or a mean of one, may be another one too.
    assert raised.count(f"graph.{op} ") == 1 or "x1x" in text or "<1x" in text
    assert "graph.rsqrt" not in raised or "x1x" in text or "<1x" in text


def half(t, x, second, interleaved, split):
    """A half of the last dimension, or one element of each pair, `split` off by a reshape."""
    *lead, size = t.types[x]

    def slice(source, shape, offset, stride):
        n = len(shape)
        lists = {"offsets": [*[0] * (n - 1), offset], "sizes": shape, "strides": [*[1] * (n - 1), stride]}
        attrs = ", ".join(f"{k} = array<i64: {', '.join(map(str, v))}>" for k, v in lists.items())
        return t.op("slice", source, shape=shape, attrs=f" {{{attrs}}}")

    if not interleaved:
        return slice(x, [*lead, size // 2], second * (size // 2), 1)
    if not split:
        return slice(x, [*lead, size // 2], int(second), 2)
    pairs = t.op("reshape", x, shape=[*lead, size // 2, 2])
    return t.op("reshape", slice(pairs, [*lead, size // 2, 1], int(second), 1), shape=[*lead, size // 2])


def joined(t, a, b, interleaved):
    shape = [*t.types[a]]
    if not interleaved:
        whole = [*shape[:-1], 2 * shape[-1]]
        return t.op("concat", a, b, shape=whole, attrs=f" {{dim = {len(shape) - 1} : i64}}")
    a, b = (t.op("reshape", x, shape=[*shape, 1]) for x in (a, b))
    both = t.op("concat", a, b, shape=[*shape, 2], attrs=f" {{dim = {len(shape)} : i64}}")
    return t.op("reshape", both, shape=[*shape[:-1], 2 * shape[-1]])


def rotary(draw, dtype):
    """A rotary embedding in one of its spellings, and whether it is one."""
    t = Text(dtype)
    shape = [draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 4), 2 * draw.randint(2, 4)]
    x = t.argument("x", shape, "parameter")
    interleaved, split, whole = (draw.random() < 0.5 for _ in range(3))
    trained = draw.random() < 0.2
    x1, x2 = (half(t, x, second, interleaved, split) for second in (False, True))
    width = shape[-1] // (1 if whole else 2)
    lead = draw.choice([shape[2:3], shape[1:3], [1, 1, shape[2]]])
    cos = t.same("cos", t.argument("angle", [*lead, width], "parameter" if trained else "input"))
    sin = t.argument("sin", [*lead, width], "input")
    if whole:
        turned = joined(t, t.same("neg", x2), x1, interleaved)
        y = t.same("add", *draw.sample([t.product(draw, x, cos), t.product(draw, turned, sin)], 2))
    else:
        first = t.same("sub", t.product(draw, x1, cos), t.product(draw, x2, sin))
        second = t.same("add", *draw.sample([t.product(draw, x2, cos), t.product(draw, x1, sin)], 2))
        y = joined(t, first, second, interleaved)
    return t.module(y), not trained


@pytest.mark.parametrize("case", range(COUNT))
def test_a_rotary_embedding(case):
    draw = random.Random(case)
    text, is_one = rotary(draw, draw.choice(["f64", "f32", "bf16", "f16"]))
    raised = check_raised(text, case, ["--graph-raise-rotary"])
    assert raised.count("graph.rope ") == is_one
    assert ("graph.slice" in raised) == (not is_one)


def masked(t, draw, scores, size):
    """Scores that some mask hides, in one of many spellings, and what the op then has."""
    shape = t.types[scores]

    def write(line, name, shape):
        t.types[name] = shape
        t.conditions.add(name)
        t.lines.append(f"{name} = graph.{line} -> tensor<{'x'.join(map(str, shape))}xi1>")
        return name

    def order(predicate, by, name):
        """Whether a key comes before its query, moved by some positions."""
        t.lines.append(f"%row{name} = graph.iota {{dim = 0 : i64, start = {by} : i64}} : tensor<{size}x1xi64>")
        t.lines.append(f"%column{name} = graph.iota {{dim = 1 : i64}} : tensor<1x{size}xi64>")
        return write(f"compare {predicate} %column{name}, %row{name} : (tensor<1x{size}xi64>, "
                     f"tensor<{size}x1xi64>)", f"%seen{name}", (size, size))

    def join(op, *names):
        types = ", ".join(f"tensor<{size}x{size}xi1>" for _ in names)
        return write(f"{op} {', '.join(names)} : ({types})", f"%{op}{len(t.lines)}", (size, size))

    kind = draw.choice(["none", "causal", "window", "input", "bias"])
    if kind == "none":
        return scores, []
    if kind == "bias":
        bias = t.argument("bias", shape[draw.randint(0, 2):], "parameter")
        return t.same("add", *draw.sample([scores, bias], 2)), [" bias "]
    seen, found = order("le", 0, "a"), ["causal"]
    if draw.random() < 0.5:
        seen = join("not", order("gt", 0, "b"))
    if kind == "window":
        width = draw.randint(1, size)
        seen = join("and", *draw.sample([seen, order("gt", -width, "c")], 2))
        found += [f"window = {width}"] if width < size else []
    if kind == "input":
        x = t.argument("x", (size, size), "input")
        y = t.argument("y", (size, size), "input")
        drawn = write(f"compare lt {x}, {y} : ({t.type(t.types[x])}, {t.type(t.types[y])})", "%drawn",
                      (size, size))
        seen, found = join("or", drawn, join("and", order("ge", 0, "d"), seen)), [" mask "]
    low = t.number(-3e38 if kind != "input" and t.dtype != "f16" and draw.random() < 0.5 else -np.inf)
    if draw.random() < 0.5:
        scores = t.op("select", seen, scores, low, shape=shape)
    else:
        mask = t.op("select", seen, t.number(0), low, shape=(size, size))
        scores = t.same("add", *draw.sample([scores, mask], 2))
    return scores, found


def attention(draw, dtype):
    """Attention in one of its spellings, and what is said of its mask."""
    t = Text(dtype)
    batch, groups, times, size = (draw.randint(1, 3) for _ in range(4))
    size, width, out, heads = size + 1, draw.randint(1, 3), draw.randint(1, 3), groups * times
    q = t.argument("q", (batch, heads, size, width), "parameter")
    k = t.argument("k", (batch, groups, size, width), "parameter")
    v = t.argument("v", (batch, groups, size, out), "parameter")

    def repeated(x):
        if times == 1:
            return x
        *_, n, d = t.types[x]
        x = t.op("reshape", x, shape=(batch, groups, 1, n, d))
        return t.op("reshape", t.op("broadcast", x, shape=(batch, groups, times, n, d)),
                    shape=(batch, heads, n, d))

    if draw.random() < 0.5:
        q = t.product(draw, q, t.number(0.25))
    k, v = repeated(k), repeated(v)
    pair = [("bhqd", q), ("bhkd", k)]
    draw.shuffle(pair)
    scores = t.op("contract", *(x for _, x in pair), shape=(batch, heads, size, size),
                  head=f'"{",".join(letters for letters, _ in pair)}->bhqk" ')
    if draw.random() < 0.5:
        scores = t.same("div", scores, t.number(2))
    scores, found = masked(t, draw, scores, size)
    p = t.op("softmax", scores, shape=t.types[scores])
    pair = [("bhqk", p), ("bhkd", v)]
    draw.shuffle(pair)
    order = draw.choice(["bhqd", "bqhd"])
    sizes = dict(b=batch, h=heads, q=size, d=out)
    y = t.op("contract", *(x for _, x in pair), shape=[sizes[c] for c in order],
             head=f'"{",".join(letters for letters, _ in pair)}->{order}" ')
    return t.module(y), found


@pytest.mark.parametrize("case", range(COUNT))
def test_attention(case):
    draw = random.Random(case)
    text, found = attention(draw, draw.choice(["f64", "f32", "bf16", "f16"]))
    raised = check_raised(text, case, ["--graph-raise-attention"])
    line, = (line for line in raised.splitlines() if "graph.attention " in line)
    assert all(word in line for word in found)
    assert ("causal" in line) == ("causal" in found) and "softmax" not in raised
