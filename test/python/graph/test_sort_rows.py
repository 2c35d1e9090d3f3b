# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Rows sorted by group: the ops against NumPy, by the interpreter, in native code and on the stand-in
GPU."""

import numpy as np
import pytest

from cleave.testing.tools import build_dir, interpret
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
    """Small integers: every product and sum is exact, also after one rounding at the end."""
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
