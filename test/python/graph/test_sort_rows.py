# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Rows sorted by group: the ops against NumPy, by the interpreter, in native code and on the stand-in
GPU; and the pass that makes them, whose programs compute what they did, forward and backward."""

import numpy as np
import pytest

from cleave.testing.tools import build_dir, interpret, optimize
from op_runs import TARGETS, module, run_op, tensor_type
from proofs import ALL

#: Rows, groups, k, m.
SHAPES = [(1, 1, 1, 1), (7, 3, 5, 4), (40, 8, 33, 17), (300, 5, 70, 600), (520, 2, 9, 260), (64, 64, 16, 16),
          (5, 1, 530, 3)]


def draw_groups(random, rows, groups, kind):
    if kind == "one":
        return np.full(rows, random.integers(groups))
    if kind == "few":  # most groups have no rows
        return random.choice(random.integers(0, groups, 2), rows)
    return random.integers(0, groups, rows)


def sorted_by(groups, size, origin=0):
    """Order, inverse and offsets by a stable sort."""
    own = groups - origin
    key = np.where((own < 0) | (own >= size), size, own)
    order = np.argsort(key, kind="stable")
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return order, inverse, np.searchsorted(key[order], np.arange(size + 1))[None]


def ranges_of(random, rows, ranks, groups):
    """Offsets of rows that came from ``ranks`` ranks, with gaps between them."""
    bounds = np.sort(random.integers(0, rows + 1, 2 * ranks)).reshape(ranks, 2)
    return np.stack([np.concatenate([[low], np.sort(random.integers(low, high + 1, groups - 1)), [high]])
                     for low, high in bounds])


def products(rows, weight, offsets, transpose):
    result = np.zeros((len(rows), weight.shape[1 if transpose else 2]))
    for bounds in offsets:
        for group, (low, high) in enumerate(zip(bounds[:-1], bounds[1:])):
            result[low:high] = rows[low:high] @ (weight[group].T if transpose else weight[group])
    return result


def weight_gradients(rows, grads, offsets, transpose):
    result = np.zeros((offsets.shape[1] - 1, rows.shape[1], grads.shape[1]))
    for bounds in offsets:
        for group, (low, high) in enumerate(zip(bounds[:-1], bounds[1:])):
            result[group] += rows[low:high].T @ grads[low:high]
    return result.transpose(0, 2, 1) if transpose else result


class Program:
    """Ops on inputs drawn at random, and what they give."""

    def __init__(self, seed, dtype):
        self.random, self.dtype = np.random.default_rng(seed), dtype
        self.inputs, self.lines, self.types, self.expected = {}, [], {}, {}

    def input(self, value):
        name = f"x{len(self.inputs)}"
        self.inputs[name] = value
        return name

    def floats(self, *shape):
        return self.random.standard_normal(shape).astype(self.dtype)

    def op(self, text, operands, attributes, results):
        names = [f"r{len(self.expected) + i}" for i in range(len(results))]
        types = [tensor_type(value) for value in results]
        kinds = ", ".join(tensor_type(self.inputs[name]) for name in operands)
        origin = f"%{operands[0]} origin %{operands[1]}" if len(operands) == 2 else None
        listed = origin or ", ".join("%" + name for name in operands)
        self.lines.append(f"{', '.join('%' + n for n in names)} = graph.{text} {listed} {{{attributes}}} : "
                          f"({kinds}) -> {types[0] if len(types) == 1 else '(' + ', '.join(types) + ')'}")
        self.expected.update(zip(names, results))
        self.types.update(zip(names, types))

    def sort(self, kind, rows, groups, integer):
        ids = draw_groups(self.random, rows, groups, kind).astype(integer)
        self.op("sort_rows", [self.input(ids)], f"size = {groups}", sorted_by(ids, groups))
        if groups > 2:
            origin = self.input(np.array([1]))
            self.op("sort_rows", [self.operands_of(-2), origin], f"size = {groups - 2}, global_size = {groups}",
                    sorted_by(ids, groups - 2, 1))
        return sorted_by(ids, groups)[2]

    def operands_of(self, index):
        return list(self.inputs)[index]

    def multiply(self, offsets, rows, groups, k, m, transpose):
        name = self.input(offsets)
        a, b, g = self.floats(rows, k), self.floats(groups, *((m, k) if transpose else (k, m))), self.floats(rows, m)
        x, w, dy = map(self.input, (a, b, g))
        flag = "transpose" if transpose else ""
        self.op("grouped_contract", [x, w, name], flag, [products(a, b, offsets, transpose).astype(self.dtype)])
        self.op("grouped_contract_weight_grad", [x, dy, name], flag,
                [weight_gradients(a, g, offsets, transpose).astype(self.dtype)])

    def check(self, found, bound):
        for name, value in self.expected.items():
            if value.dtype.kind == "i":
                np.testing.assert_array_equal(found[name], value, err_msg=name)
            else:
                scale = max(1.0, np.abs(value).max(initial=0))
                np.testing.assert_allclose(found[name], value, atol=bound * scale, rtol=0, err_msg=name)


def programs(dtype, seed):
    program = Program(seed, dtype)
    kinds, integers = ["any", "one", "few"], [np.int64, np.int32, np.int64]
    for i, (rows, groups, k, m) in enumerate(SHAPES):
        offsets = program.sort(kinds[(i + seed) % 3], rows, groups, integers[i % 3])
        if (i + seed) % 3 == 1:
            offsets = ranges_of(program.random, rows, 3, groups)
        for transpose in (False, True):
            program.multiply(offsets, rows, groups, k, m, transpose)
    return program


@pytest.mark.parametrize("seed", range(3))
def test_interpreter(seed):
    program = programs(np.float64, seed)
    text = module(program.inputs, "\n".join(program.lines), program.types)
    program.check(interpret(text, program.inputs | {"w": np.ones(3, np.float32)})[0], 1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("target", TARGETS)
def test_native(target, dtype, tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAVE_CUDA_LIBRARIES", str(build_dir() / "fake_cuda"))
    for seed in range(3 if ALL else 1):
        program = programs(dtype, seed)
        found, = run_op(tmp_path, program.inputs, "\n".join(program.lines), program.types, target)
        program.check(found, 1e-5 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("narrow", ["bf16", "f16"])
@pytest.mark.parametrize("target", TARGETS)
def test_native_of_16_bits(target, narrow, tmp_path, monkeypatch):
    """Small integers: every term and sum is exact, also after one rounding at the end."""
    monkeypatch.setenv("CLEAVE_CUDA_LIBRARIES", str(build_dir() / "fake_cuda"))
    random = np.random.default_rng(5)
    offsets, lines, types, expected = np.array([[0, 9, 9, 20]]), [], {}, {}
    inputs = {"o": offsets, "x": random.integers(-3, 4, (21, 18)).astype(np.float32),
              "v": random.integers(-3, 4, (3, 18, 34)).astype(np.float32),
              "g": random.integers(-3, 4, (21, 34)).astype(np.float32)}
    shapes = {name: "x".join(map(str, value.shape)) for name, value in inputs.items()}
    for name in "xvg":
        lines.append(f"%{name}n = graph.cast %{name} : (tensor<{shapes[name]}xf32>) -> tensor<{shapes[name]}x{narrow}>")
    for op, other, shape, value in (
            ("grouped_contract", "v", "21x34", products(inputs["x"], inputs["v"], offsets, False)),
            ("grouped_contract_weight_grad", "g", "3x18x34",
             weight_gradients(inputs["x"], inputs["g"], offsets, False))):
        for sums, attribute in (("f32", " {result_element = f32}"), (narrow, "")):
            result = f"{op}_{sums}"
            lines.append(
                f"%{result} = graph.{op} %xn, %{other}n, %o{attribute} : (tensor<21x18x{narrow}>, "
                f"tensor<{shapes[other]}x{narrow}>, tensor<1x4xi64>) -> tensor<{shape}x{sums}>")
            if sums != "f32":
                lines.append(f"%w{result} = graph.cast %{result} : (tensor<{shape}x{sums}>) -> tensor<{shape}xf32>")
                result = "w" + result
            types[result], expected[result] = f"tensor<{shape}xf32>", value
    found, = run_op(tmp_path, inputs, "\n".join(lines), types, target)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


# ---------------------------------------------------------------------------
# The pass
# ---------------------------------------------------------------------------


class Rows:
    """A model of random layers of groups, with what people put between them."""

    UNARY = ["silu", "tanh", "sigmoid", "neg", "exp"]

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.lines, self.inputs, self.arguments = [], {}, []
        pick = self.random.integers
        self.index = tuple(int(n) for n in pick(1, 5, pick(1, 4)))
        self.count, self.groups = int(np.prod(self.index)), int(pick(1, 5))
        self.ids = [self.argument(draw_groups(self.random, self.count, self.groups,
                                              self.random.choice(["any", "one", "few"])).reshape(self.index),
                                  "input")]
        self.ids.append(self.op("reshape", [self.ids[0]], (self.count,), "i64"))

    def argument(self, value, role="parameter"):
        name = f"a{len(self.arguments)}"
        self.inputs[name] = value
        self.arguments.append(f'%{name}: {tensor_type(value)} {{graph.name = "{name}", graph.role = "{role}"}}')
        return name, value.shape, "i64" if value.dtype == np.int64 else "f64"

    def floats(self, *shape):
        return self.argument(self.random.standard_normal(shape))

    def op(self, name, operands, shape, element="f64", attributes=""):
        result = f"v{len(self.lines)}"
        kind = lambda shape, element: "tensor<" + "".join(f"{n}x" for n in shape) + element + ">"
        self.lines.append(f"%{result} = graph.{name} {', '.join('%' + o[0] for o in operands)}{attributes} : "
                          f"({', '.join(kind(o[1], o[2]) for o in operands)}) -> {kind(shape, element)}")
        return result, tuple(shape), element

    def linear(self, rows, width):
        """With rows of any form, a weight that is transposed or not, and a bias or none."""
        k, flat = rows[1][-1], self.random.random() < 0.3
        index, ids = ((self.count,), self.ids[1]) if flat else (self.index, self.ids[0])
        if rows[1] != (*index, k):
            rows = self.op("reshape", [rows], (*index, k))
        transposed = self.random.random() < 0.5
        weight = self.floats(self.groups, *((width, k) if transposed else (k, width)))
        result = self.op("grouped_linear", [rows, weight, ids], (*index, width),
                         attributes=" {transpose}" if transposed else "")
        if self.random.random() < 0.4:
            bias = self.op("gather", [self.floats(self.groups, width), ids], (*index, width),
                           attributes=" {dim = 0 : i64}")
            result = self.op("add", [result, bias], result[1])
        return self.op("reshape", [result], (*self.index, width)) if flat else result

    def between(self, rows):
        """Something that keeps rows apart, or does not quite."""
        shape, width = rows[1], rows[1][-1]
        rank = len(self.index)
        kind = self.random.integers(8)
        if kind == 0:
            return self.op(self.random.choice(self.UNARY), [rows], shape)
        if kind == 1:  # a scale for each row
            return self.op("mul", [rows, self.floats(*self.index, 1)], shape)
        if kind == 2:  # one that some rows share, by the rules of NumPy
            kept = [n if self.random.random() < 0.5 else 1 for n in self.index]
            return self.op("mul", [rows, self.floats(*kept, width)], shape)
        if kind == 3:
            return self.op("softmax", [rows], shape, attributes=f" {{dim = {rank} : i64}}")
        if kind == 4:  # halves
            halves = [self.op("slice", [rows], (*self.index, width // 2), attributes=(
                f" {{offsets = array<i64: {', '.join(map(str, [0] * rank + [at]))}>, "
                f"sizes = array<i64: {', '.join(map(str, (*self.index, width // 2)))}>, "
                f"strides = array<i64: {', '.join(['1'] * (rank + 1))}>}}")) for at in (0, width // 2)]
            return self.op("concat", halves[::-1], shape, attributes=f" {{dim = {rank} : i64}}")
        if kind == 5:  # in the order of rows: not each row alone
            return self.op("cumulative_sum", [rows], shape, attributes=" {dim = 0 : i64}")
        if kind == 6:
            return self.op("add", [rows, self.floats(width)], shape)
        return self.op("reshape", [self.op("reshape", [rows], (self.count, width))], shape)

    def model(self):
        pick = self.random.integers
        width = 2 * int(pick(1, 4))
        if self.random.random() < 0.6:  # rows that repeat those of tokens
            kept = int(pick(0, len(self.index) + 1))
            tokens = self.floats(*self.index[:kept], *[1] * (len(self.index) - kept), width)
            rows = self.op("broadcast", [tokens], (*self.index, width))
        else:
            rows = self.floats(*self.index, width)
        for _ in range(pick(1, 4)):
            inner = 2 * int(pick(1, 4))
            rows = self.between(rows) if self.random.random() < 0.5 else rows
            gate = self.linear(rows, inner)
            for _ in range(pick(0, 3)):
                gate = self.between(gate)
            if self.random.random() < 0.6:
                gate = self.op("mul", [gate, self.linear(rows, inner)], gate[1])
            rows = gate
        if self.random.random() < 0.6:
            rows = self.op("mul", [rows, self.floats(*self.index, 1)], rows[1])
        if len(self.index) > 1 and self.random.random() < 0.6:
            dim = len(self.index) - 1
            rows = self.op("reduce sum", [rows], (*self.index[:-1], rows[1][-1]),
                           attributes=f" {{dims = array<i64: {dim}>}}")
        rows = self.op("mul", [rows, self.floats(*rows[1])], rows[1])
        self.op("reduce sum", [rows], (),
                attributes=f" {{dims = array<i64: {', '.join(map(str, range(len(rows[1]))))}>}}")
        body, last = "\n".join(self.lines), f"v{len(self.lines) - 1}"
        return f"""func.func @loss({", ".join(self.arguments)}) -> (tensor<f64> {{graph.name = "loss"}}) {{
          {body}
          return %{last} : tensor<f64>
        }}"""


def compare(before, after, inputs):
    expected, found = (interpret(text, inputs, entry="train") for text in (before, after))
    for old, new in zip(expected, found):
        assert old.keys() == new.keys()
        for name, value in old.items():
            scale = max(1.0, np.abs(value).max(initial=0))
            np.testing.assert_allclose(new[name], value, rtol=0, atol=1e-10 * scale, err_msg=name)


@pytest.mark.parametrize("first", range(0, 400, 10) if ALL else [0])
def test_random_rows(first):
    """The value and all gradients are the same, sorted or not; and sorting again changes nothing."""
    for seed in range(first, first + 10):
        rows = Rows(seed)
        text = rows.model()
        before = optimize(text, "--graph-differentiate", "--canonicalize", "--cse")
        after = optimize(before, "--graph-sort-rows")
        assert "grouped_linear" not in after and "graph.sort_rows" in after
        assert optimize(after, "--graph-sort-rows") == after
        try:
            compare(before, after, rows.inputs)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}\n{text}") from error


def gated(tokens, choices, groups, width, inner):
    """A mixture as transformers write it: a token for each choice, gate and up at once, weighted sums."""
    index = f"{tokens}x{choices}"
    double = 2 * inner
    return f"""func.func @loss(
        %x: tensor<{tokens}x{width}xf64> {{graph.name = "x", graph.role = "parameter"}},
        %p: tensor<{index}xf64> {{graph.name = "p", graph.role = "parameter"}},
        %g: tensor<{index}xi64> {{graph.name = "g", graph.role = "input"}},
        %w: tensor<{groups}x{double}x{width}xf64> {{graph.name = "w", graph.role = "parameter"}},
        %d: tensor<{groups}x{width}x{inner}xf64> {{graph.name = "d", graph.role = "parameter"}})
        -> (tensor<f64> {{graph.name = "loss"}}) {{
      %x1 = graph.reshape %x : (tensor<{tokens}x{width}xf64>) -> tensor<{tokens}x1x{width}xf64>
      %r = graph.broadcast %x1 : (tensor<{tokens}x1x{width}xf64>) -> tensor<{index}x{width}xf64>
      %h = graph.grouped_linear %r, %w, %g {{transpose}} : (tensor<{index}x{width}xf64>, tensor<{groups}x{double}x{width}xf64>, tensor<{index}xi64>) -> tensor<{index}x{double}xf64>
      %a = graph.slice %h {{offsets = array<i64: 0, 0, 0>, sizes = array<i64: {tokens}, {choices}, {inner}>, strides = array<i64: 1, 1, 1>}} : (tensor<{index}x{double}xf64>) -> tensor<{index}x{inner}xf64>
      %b = graph.slice %h {{offsets = array<i64: 0, 0, {inner}>, sizes = array<i64: {tokens}, {choices}, {inner}>, strides = array<i64: 1, 1, 1>}} : (tensor<{index}x{double}xf64>) -> tensor<{index}x{inner}xf64>
      %s = graph.silu %a : (tensor<{index}x{inner}xf64>) -> tensor<{index}x{inner}xf64>
      %m = graph.mul %s, %b : (tensor<{index}x{inner}xf64>, tensor<{index}x{inner}xf64>) -> tensor<{index}x{inner}xf64>
      %y = graph.grouped_linear %m, %d, %g {{transpose}} : (tensor<{index}x{inner}xf64>, tensor<{groups}x{width}x{inner}xf64>, tensor<{index}xi64>) -> tensor<{index}x{width}xf64>
      %p1 = graph.reshape %p : (tensor<{index}xf64>) -> tensor<{index}x1xf64>
      %z = graph.mul %y, %p1 : (tensor<{index}x{width}xf64>, tensor<{index}x1xf64>) -> tensor<{index}x{width}xf64>
      %o = graph.reduce sum %z {{dims = array<i64: 1>}} : (tensor<{index}x{width}xf64>) -> tensor<{tokens}x{width}xf64>
      %q = graph.mul %o, %o : (tensor<{tokens}x{width}xf64>, tensor<{tokens}x{width}xf64>) -> tensor<{tokens}x{width}xf64>
      %l = graph.reduce sum %q {{dims = array<i64: 0, 1>}} : (tensor<{tokens}x{width}xf64>) -> tensor<f64>
      return %l : tensor<f64>
    }}"""


def test_a_mixture_permutes_what_enters_and_leaves():
    """Forward and backward of gate, up, activation and down: tokens and gradients enter once each,
    outputs and gradients of tokens leave once each, and nothing between is permuted."""
    before = optimize(gated(6, 2, 3, 8, 4), "--graph-differentiate", "--canonicalize", "--cse")
    both = optimize(before, "--graph-sort-rows", "--cse")
    after = both.split("func.func @train")[1]
    assert after.count("graph.sort_rows") == 1
    gathers = [line for line in after.splitlines() if "graph.gather" in line and "xf64>" in line]
    wide = [line for line in gathers if line.rsplit("->", 1)[1].strip().startswith("tensor<12x8xf64>")]
    assert len(wide) == 4, "\n".join(gathers)
    # Rows of tokens, [12, 8], are made by a gather alone.
    assert not any("broadcast" in line and "tensor<6x2x8xf64>" in line.rsplit("->", 1)[1]
                   for line in after.splitlines()), after
    random = np.random.default_rng(0)
    inputs = {"x": random.standard_normal((6, 8)), "p": random.random((6, 2)),
              "g": random.integers(0, 3, (6, 2)), "w": random.standard_normal((3, 8, 8)),
              "d": random.standard_normal((3, 8, 4))}
    compare(before, both, inputs)
