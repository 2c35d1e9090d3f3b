# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models of experts that drop no token, whose choices are inputs, and choices of several kinds."""

import re

import numpy as np
from recipe_runs import random_inputs

from cleave.testing.tools import run_tool, tool

SAMPLES, TOKENS, CHOICES, EXPERTS, WIDTH, INNER, LAYERS = 8, 6, 2, 4, 8, 12, 2


def layer(number, entering, bias):
    """The text of a gated layer of experts as transformers write it, and the value it ends with."""
    index, n = f"{SAMPLES}x{TOKENS}x{CHOICES}", number
    kind = lambda *shape, of="f64": f"tensor<{'x'.join(map(str, shape))}x{of}>"
    tokens, rows, inner = kind(SAMPLES, TOKENS, WIDTH), kind(index, WIDTH), kind(index, INNER)
    gate, down, chosen = kind(EXPERTS, INNER, WIDTH), kind(EXPERTS, WIDTH, INNER), kind(index, of="i64")
    one = kind(SAMPLES, TOKENS, 1, WIDTH)
    lines = [
        f"%r{n} = graph.reshape {entering} : ({tokens}) -> {one}",
        f"%b{n} = graph.broadcast %r{n} : ({one}) -> {rows}",
        f"%g{n} = graph.grouped_linear %b{n}, %gate{n}, %i{n} {{transpose}} : ({rows}, {gate}, {chosen}) -> {inner}",
        f"%u{n} = graph.grouped_linear %b{n}, %up{n}, %i{n} {{transpose}} : ({rows}, {gate}, {chosen}) -> {inner}"]
    if bias:
        table = kind(EXPERTS, INNER)
        lines += [f"%t{n} = graph.gather %bias{n}, %i{n} {{dim = 0 : i64}} : ({table}, {chosen}) -> {inner}",
                  f"%v{n} = graph.add %g{n}, %t{n} : ({inner}, {inner}) -> {inner}"]
    lines += [
        f"%s{n} = graph.silu %{'v' if bias else 'g'}{n} : ({inner}) -> {inner}",
        f"%m{n} = graph.mul %s{n}, %u{n} : ({inner}, {inner}) -> {inner}",
        f"%y{n} = graph.grouped_linear %m{n}, %down{n}, %i{n} {{transpose}} : ({inner}, {down}, {chosen}) -> {rows}",
        f"%w{n} = graph.reshape %p{n} : ({kind(index)}) -> {kind(index, 1)}",
        f"%z{n} = graph.mul %y{n}, %w{n} : ({rows}, {kind(index, 1)}) -> {rows}",
        f"%o{n} = graph.reduce sum %z{n} {{dims = array<i64: 2>}} : ({rows}) -> {tokens}",
        f"%x{n + 1} = graph.add {entering}, %o{n} : ({tokens}, {tokens}) -> {tokens}"]
    arguments = [(f"gate{n}", gate), (f"up{n}", gate), (f"down{n}", down)]
    inputs = [(f"i{n}", chosen), (f"p{n}", kind(index))]
    if bias:
        arguments.append((f"bias{n}", table))
    return lines, arguments, inputs


def model(bias=False, layers=LAYERS):
    """Tokens, the experts that they choose, and their weights are inputs."""
    lines, parameters, inputs = [], [("proj", f"tensor<{WIDTH}x{WIDTH}xf64>")], []
    tokens = f"tensor<{SAMPLES}x{TOKENS}x{WIDTH}xf64>"
    lines.append(f"%x0 = graph.linear %x, %proj : ({tokens}, tensor<{WIDTH}x{WIDTH}xf64>) -> {tokens}")
    for number in range(layers):
        more, own, given = layer(number, f"%x{number}", bias)
        lines, parameters, inputs = lines + more, parameters + own, inputs + given
    last = f"%x{layers}"
    arguments = [f'%{name}: {kind} {{graph.name = "{name}", graph.role = "input", graph.batch_dim = 0 : i64}}'
                 for name, kind in [("x", tokens), *inputs]]
    arguments += [f'%{name}: {kind} {{graph.name = "{name}", graph.role = "parameter"}}' for name, kind in parameters]
    body = "\n  ".join(lines)
    return f"""func.func @loss({", ".join(arguments)}) -> (tensor<f64> {{graph.name = "loss"}}) {{
  {body}
  %q = graph.mul {last}, {last} : ({tokens}, {tokens}) -> {tokens}
  %l = graph.reduce sum %q {{dims = array<i64: 0, 1, 2>}} : ({tokens}) -> tensor<f64>
  return %l : tensor<f64>
}}
"""


def even(_, shape):
    """Each expert as often as the others, of each sample."""
    return np.broadcast_to(np.arange(shape[1] * shape[2]).reshape(shape[1:]) % EXPERTS, shape)


ROUTINGS = {
    "even": even,
    "any": lambda rng, shape: rng.integers(0, EXPERTS, shape),
    "one": lambda rng, shape: np.full(shape, rng.integers(EXPERTS)),
    "some": lambda rng, shape: rng.choice([0, EXPERTS - 1], shape),  # others have no rows
    "samples": lambda rng, shape: np.broadcast_to(  # those of a rank all choose one expert
        (np.arange(shape[0]) * EXPERTS // shape[0])[:, None, None], shape),
}


def drawn(step, routing, seed=5):
    inputs, rng = random_inputs(step, seed), np.random.default_rng(seed)
    for name, value in inputs.items():
        if re.fullmatch(r"i\d+", name):
            inputs[name] = np.ascontiguousarray(ROUTINGS[routing](rng, value.shape)).astype(np.int64)
        elif name == "x" or re.fullmatch(r"p\d+", name):
            inputs[name] = rng.standard_normal(value.shape) * 0.5
    return inputs


def emitted(path, phase, *flags):
    return run_tool([tool("cleave-compile"), str(path), f"--emit={phase}", *flags])


def written(folder, **settings):
    path = folder / "m.mlir"
    path.write_text(model(**settings))
    return path
