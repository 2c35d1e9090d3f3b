# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Delayed scaling of 8-bit operands (--graph-fp8) against PyTorch's own 8-bit types.

The interpreter runs the step op by op, in the types of the program; PyTorch computes forward,
backward, maxima and scales by hand, with casts to torch.float8_e4m3fn and torch.float8_e5m2.
"""

import re

import numpy as np
import pytest
import torch

from cleave.testing.tools import interpret, optimize

STEP = ("--canonicalize", "--cse", "--graph-differentiate", "--canonicalize", "--cse",
        "--graph-apply-optimizer=optimizer=sgd momentum=0",
        "--graph-derive-evaluate=drop-entry", "--graph-chunk-loss",
        "--graph-mixed-precision=keep-chosen")

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def mlp(widths=(5, 8, 6, 3), samples=16, chosen=""):
    """Linear layers with ReLU between them, and the squared error."""
    lines, value, kind = [], "%x", f"tensor<{samples}x{widths[0]}xf32>"
    arguments = [f'%x: {kind} {{graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64}}',
                 f'%t: tensor<{samples}x{widths[-1]}xf32> '
                 '{graph.name = "t", graph.role = "input", graph.batch_dim = 0 : i64}']
    for i, (n, m) in enumerate(zip(widths, widths[1:])):
        arguments += [f'%w{i}: tensor<{m}x{n}xf32> {{graph.name = "w{i}", graph.role = "parameter"}}',
                      f'%b{i}: tensor<{m}xf32> {{graph.name = "b{i}", graph.role = "parameter"}}']
        to = f"tensor<{samples}x{m}xf32>"
        lines.append(f"%y{i} = graph.linear {value}, %w{i} bias %b{i} {{{chosen if i == 1 else ''}}} : "
                     f"({kind}, tensor<{m}x{n}xf32>, tensor<{m}xf32>) -> {to}")
        value, kind = f"%y{i}", to
        if i + 2 < len(widths):
            lines.append(f"%h{i} = graph.relu {value} : ({kind}) -> {kind}")
            value = f"%h{i}"
    lines += [f"%d = graph.sub {value}, %t : ({kind}, {kind}) -> {kind}",
              f"%q = graph.mul %d, %d : ({kind}, {kind}) -> {kind}",
              f"%loss = graph.reduce sum %q {{dims = array<i64: 0, 1>}} : ({kind}) -> tensor<f32>",
              "return %loss : tensor<f32>"]
    return ("func.func @loss(" + ", ".join(arguments)
            + ') -> (tensor<f32> {graph.name = "loss"}) {\n' + "\n".join(lines) + "\n}\n")


def states(program, entry="train"):
    """The shapes of the arguments of state by name."""
    header = re.search(rf"@{entry}\((.*?)\) ->", program, re.DOTALL).group(1)
    found = re.findall(r'tensor<([\dx]*)f32> \{graph.name = "([^"]*)", '
                       r'graph.optional = "scales of fp8", graph.role = "state"', header)
    return {name: tuple(int(n) for n in shape.split("x")[:-1]) for shape, name in found}


class Scaled:
    """A tensor of 8 bits, with delayed scaling."""

    def __init__(self, dtype, history, margin):
        self.dtype, self.largest = dtype, torch.finfo(dtype).max
        self.scale, self.history, self.margin = torch.tensor(1.0), torch.zeros(history), margin
        self.seen = None

    def copy(self, x):
        """The numbers of the copy; remembers the maximum for `update`."""
        x = x.float()
        self.seen = x.abs().max()
        return (x * self.scale).clamp(-self.largest, self.largest).to(self.dtype).float()

    def update(self):
        self.history = torch.cat([self.history[1:], self.seen[None]])
        amax = self.history.max()
        if 0 < amax < float("inf"):
            self.scale = self.largest * 2.0 ** -self.margin / amax


def product(a, b, one, other):
    """Sums in f64, rounded to f32 once, divided by the scales."""
    return (a.double() @ b.double()).float() * (1 / one.scale * (1 / other.scale))


class Reference:
    """The layers but the last in 8 bits, the last in bf16; SGD."""

    def __init__(self, weights, biases, history, margin=0):
        self.weights, self.biases = weights, biases
        count = len(weights) - 1
        self.tensors = {f"w{i}.fp8_{kind}": Scaled(dtype, history, margin) for i in range(count)
                        for kind, dtype in (("input", E4M3), ("weight", E4M3), ("gradient", E5M2))}

    def step(self, x, target, lr):
        scaled, last = self.tensors, len(self.weights) - 1
        inputs, copies = [x], []
        for i, (w, b) in enumerate(zip(self.weights, self.biases)):
            if i < last:
                qx, qw = scaled[f"w{i}.fp8_input"], scaled[f"w{i}.fp8_weight"]
                copies.append((qx.copy(inputs[-1]), qw.copy(w)))
                y = product(copies[-1][0], copies[-1][1].T, qx, qw) + b
                inputs.append(torch.relu(y.bfloat16()))
            else:
                y = (inputs[-1].bfloat16().double() @ w.bfloat16().double().T).float() + b
        # What other ops read of the difference is rounded.
        difference = (y - target).bfloat16()
        loss = (difference * difference).sum(dtype=torch.float64).float()
        g = 2 * difference.float()
        gradients = {}
        for i in reversed(range(last + 1)):
            gradients[f"b{i}"] = g.float().sum(0, dtype=torch.float64).float()
            if i == last:
                g16 = g.bfloat16().double()
                gradients[f"w{i}"] = (g16.T @ inputs[i].bfloat16().double()).float()
                g = (g16 @ self.weights[i].bfloat16().double()).float()
            else:
                qg = scaled[f"w{i}.fp8_gradient"]
                copy = qg.copy(g)
                gradients[f"w{i}"] = product(copy.T, copies[i][0], qg, scaled[f"w{i}.fp8_input"])
                g = product(copy, copies[i][1], qg, scaled[f"w{i}.fp8_weight"])
            if i > 0:
                g = torch.where(inputs[i] > 0, g, 0.0)
        for i in range(last + 1):
            self.weights[i] = self.weights[i] - lr * gradients[f"w{i}"]
            self.biases[i] = self.biases[i] - lr * gradients[f"b{i}"]
        for tensor in scaled.values():
            tensor.update()
        return loss, gradients

    def states(self):
        return {f"{n}_{slot}": value for n, s in self.tensors.items()
                for slot, value in (("scale", s.scale), ("amax_history", s.history))}


def start(widths, samples, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    weights = [draw(m, n) * 0.4 for n, m in zip(widths, widths[1:])]
    biases = [draw(m) * 0.1 for m in widths[1:]]
    return weights, biases, draw(samples, widths[0]), draw(samples, widths[-1])


def run(program, reference, x, target, lr, number, state):
    """One step of the interpreter: results and gradients by name."""
    given = {f"w{i}": w.numpy() for i, w in enumerate(reference.weights)}
    given |= {f"b{i}": b.numpy() for i, b in enumerate(reference.biases)}
    given |= {"x": x.numpy(), "t": target.numpy(), "lr": np.float32(lr), "step": np.int64(number)}
    return interpret(program, given | state, entry="train", mode="typed")


def near(found, expected, name, bound=2e-5):
    expected = expected.numpy()
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=bound,
                               atol=bound * max(np.abs(expected).max(), 1e-30), err_msg=name)


@pytest.mark.parametrize("history, margin", [(1, 0), (3, 0), (16, 2)])
def test_steps_of_a_small_network(history, margin):
    widths, samples = (5, 8, 6, 3), 16
    weights, biases, x, target = start(widths, samples)
    reference = Reference(weights, biases, history, margin)
    program = optimize(mlp(widths, samples), *STEP,
                       f"--graph-fp8=history={history} margin={margin}", "--canonicalize", "--cse")
    shapes = states(program)
    assert set(shapes) == set(reference.states())
    state = {n: np.zeros(s, np.float32) for n, s in shapes.items()}
    for number in range(1, 6):
        # The numbers grow: some are clamped by the scale of the steps before.
        found, gradients = run(program, reference, x * number, target, 1e-3, number, state)
        loss, expected = reference.step(x * number, target, 1e-3)
        near(found["loss"], loss, "loss")
        for name, value in expected.items():
            near(gradients[name], value, f"{number}: gradient of {name}")
        for name, value in reference.states().items():
            near(found[name], value, f"{number}: {name}", 1e-6 if number == 1 else 2e-5)
        for i, value in enumerate(reference.weights):
            near(found[f"w{i}"], value, f"{number}: w{i}")
        state = {n: found[n] for n in shapes}
    assert float(reference.tensors["w0.fp8_input"].scale) != 1


def one_step(history, largest, state, kinds="input"):
    """What a step makes of the state of the first input, whose largest number is `largest`."""
    weights, biases, x, target = start((5, 8, 3), 4)
    x = x / x.abs().max()
    x[0, 0] = 1
    x = x * largest
    program = optimize(mlp((5, 8, 3), 4), *STEP, f"--graph-fp8=history={history}")
    given = {n: np.zeros(s, np.float32) for n, s in states(program).items()} | {
        f"w0.fp8_{kinds}_{n}": np.asarray(v, np.float32) for n, v in state.items()}
    found, _ = run(program, Reference(weights, biases, history), x, target, 0.0, 1, given)
    return found[f"w0.fp8_{kinds}_scale"], found[f"w0.fp8_{kinds}_amax_history"]


@pytest.mark.parametrize("largest, state, scale, history", [
    # 448 / 4; the step's own maximum counts, what is shifted out does not.
    (1, dict(scale=7, amax_history=[9, 2, 4]), 112, [2, 4, 1]),
    (4, dict(scale=7, amax_history=[0, 0, 0]), 112, [0, 0, 4]),
    # No numbers: the scale stays, and 0 is a scale that was not set.
    (0, dict(scale=7, amax_history=[5, 0, 0]), 7, [0, 0, 0]),
    (0, dict(scale=0, amax_history=[0, 0, 0]), 1, [0, 0, 0]),
    # A maximum that is not finite leaves the scale until it is shifted out.
    (float("nan"), dict(scale=7, amax_history=[1, 2, 4]), 7, [2, 4, float("nan")]),
    (1, dict(scale=7, amax_history=[1, float("inf"), 4]), 7, [float("inf"), 4, 1]),
    (1, dict(scale=7, amax_history=[float("nan"), 2, 4]), 112, [2, 4, 1]),
])
def test_the_next_scale(largest, state, scale, history):
    found, maxima = one_step(3, largest, state)
    assert float(found) == scale
    np.testing.assert_array_equal(maxima, np.asarray(history, np.float32))


@pytest.mark.parametrize("x, expected", [(4.0, 4.0), (5.0, 4.0), (-5.0, -4.0), (1.0, 1.0)])
def test_the_copy_saturates(x, expected):
    """With scale 112: 4 is 448 and 4 again, 5 is 448 too, in each of the operands."""
    program = optimize(mlp((1, 1, 1), 1), *STEP, "--graph-fp8=history=3")
    state = {n: np.zeros(s, np.float32) for n, s in states(program).items()}
    state["w0.fp8_input_scale"] = np.float32(112)
    one = [torch.ones(1, 1), torch.ones(1, 1)]
    reference = Reference(one, [torch.full((1,), 8.0), torch.zeros(1)], 3)
    found, _ = run(program, reference, torch.tensor([[x]]), torch.zeros(1, 1), 0.0, 1, state)
    # relu(x + 8) squared.
    assert float(found["loss"]) == (expected + 8) ** 2


def test_evaluation_reads_the_scales_of_training():
    weights, biases, x, target = start((5, 8, 6, 3), 16)
    reference = Reference(weights, biases, 2)
    program = optimize(mlp(), *STEP, "--graph-fp8=history=2")
    own = states(program, "evaluate")
    assert set(own) == {n for n in states(program) if n.endswith("scale") and "gradient" not in n}
    state = {n: np.zeros(s, np.float32) for n, s in states(program).items()}
    for n in own:
        state[n] = np.float32(20)
    found, _ = run(program, reference, x, target, 0.0, 1, state)
    given = {f"w{i}": w.numpy() for i, w in enumerate(weights)}
    given |= {f"b{i}": b.numpy() for i, b in enumerate(biases)} | {"x": x.numpy(), "t": target.numpy()}
    evaluated, _ = interpret(program, given | {n: state[n] for n in own}, entry="evaluate", mode="typed")
    assert float(evaluated["loss"]) == float(found["loss"])
    assert set(evaluated) == {"loss"}


def test_an_op_can_stay_in_16_bits():
    all_of_them = optimize(mlp(), *STEP, "--graph-fp8")
    without = optimize(mlp(chosen='graph.precision = "16bit"'), *STEP, "--graph-fp8")
    assert any(n.startswith("w1.") for n in states(all_of_them))
    assert not any(n.startswith("w1.") for n in states(without))
    assert "graph.precision" not in without
    in_f32 = optimize(mlp(chosen='graph.precision = "f32"'), *STEP, "--graph-fp8")
    assert {n.split(".")[0] for n in states(in_f32)} == {"w0"}
