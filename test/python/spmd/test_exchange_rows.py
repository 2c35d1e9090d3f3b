# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Experts that drop no token, over ranks: rows go to the ranks of their experts, and weights stay.
Layouts against one device, by the interpreter in f64 and natively in f32, for experts that are
chosen evenly, all at once, or never."""

import json
import re

import numpy as np
import pytest
from native_layouts import Expected, check_native, compile_native
from recipe_runs import OPTIMIZERS, agree, random_inputs

from cleave import _runtime
from cleave.testing.tools import ToolError, interpret, run_tool, tool
from proofs import ALL

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


ROUTINGS = {
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


#: Mesh, plan and further flags.
LAYOUTS = [
    ("ep=2", "expert", ()),
    ("ep=4", "expert", ()),
    ("ep=2", "expert", ("--micro-batches=2",)),
    ("dp=2,ep=2", "expert", ("--micro-batches=2",)),
    ("ep=2,dp=2", "expert,zero1", ()),
    ("dp=2,ep=2", "expert,zero2", ("--micro-batches=2",)),
    ("dp=2,ep=2", "expert,zero3", ()),
    ("ep=2,tp=2", "expert,megatron", ()),
    ("ep=2,tp=2", "megatron-sp,expert", ("--micro-batches=2",)),
    ("dp=2", "expert(dp)", ()),
    ("ep=2", "expert", ("--recompute=full",)),
    ("pp=2,ep=2", "expert", ("--micro-batches=4", "--schedule=1f1b", "--stages=gate1")),
    ("pp=2,ep=2", "expert", ("--micro-batches=4", "--schedule=zb-h1", "--stages=gate1")),
]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_rows_that_travel_equal_one_device(tmp_path, number):
    mesh, plan, flags = LAYOUTS[number]
    path = written(tmp_path, bias=number % 3 == 2)
    own = OPTIMIZERS["adamw"]
    step = emitted(path, "step", *own)
    layout = [f"--mesh={mesh}", f"--plan={plan}", *flags]
    phases = {phase: emitted(path, phase, *own, *layout) for phase in ("local", "scheduled")}
    train = phases["local"].split("func.func @train")[1]
    assert "spmd.all_to_all_rows" in train and "grouped_linear" not in train
    assert not re.search(r"spmd.all_gather %\S+ by <@mesh, \[{\"[de]p\"}, {}, {}\]>.*f64> -> tensor<4x", train)
    names = list(ROUTINGS)
    for routing in names if ALL else [names[number % 4], "one"]:
        inputs = drawn(step, routing)
        expected, gradients = interpret(step, inputs, entry="train")
        for phase, text in phases.items():
            found, own_gradients = interpret(text, inputs, entry="train")
            agree(found, expected)
            if phase == "local":
                agree(own_gradients, gradients)
    check_native(path, own, layout, inputs, Expected(step, inputs, expected))


def test_bytes_are_those_of_the_papers(tmp_path):
    """Four all-to-alls of rows in each layer, of an even share each, and contractions of those rows:
    what the closed form says."""
    path = written(tmp_path)
    path.write_text(path.read_text().replace("f64", "f32"))
    report = json.loads(run_tool([tool("cleave-compile"), str(path), "--mesh=ep=4", "--plan=expert",
                                  "--plan-only", "--report=-"]))
    [rows] = [row for row in report["communication"]["train"]["totals"] if row["kind"] == "all_to_all_rows"]
    each = SAMPLES // 4 * TOKENS * CHOICES * WIDTH * 3 / 4
    assert (rows["count"], rows["elements"]) == (4 * LAYERS, 4 * LAYERS * each)
    assert report["cost"]["operations"]["ratio"] == 1
    assert not report["cost"]["excesses"]


@pytest.mark.parametrize("mesh, flags", [("ep=2", ()), ("dp=2,ep=2", ("--micro-batches=2",))])
def test_a_buffer_that_overflows_changes_nothing(tmp_path, mesh, flags):
    """Where experts are chosen so that a rank receives more than it has room for, the step ends
    with an error; where it is not so, it runs."""
    path = written(tmp_path)
    own, layout = OPTIMIZERS["adamw"], [f"--mesh={mesh}", "--plan=expert", "--expert-buffer=1.75", *flags]
    step = emitted(path, "step", *own)
    local = emitted(path, "local", *own, *layout)
    with pytest.raises(ToolError, match="check failed: gate0: a rank receives more than"):
        interpret(local, drawn(step, "one"), entry="train")
    inputs = drawn(step, "any")
    agree(interpret(local, inputs, entry="train")[0], interpret(step, inputs, entry="train")[0])
    artifact = compile_native(path, *own, *layout)

    def run(routing):
        session = _runtime.open(str(artifact))
        tensors = {tensor["name"]: tensor for tensor in session.tensors()}
        for name, value in drawn(step, routing).items():
            if name in tensors and name != "step":
                kind = {"f32": np.float32, "i64": np.int64}[tensors[name]["dtype"]]
                session.write(name, np.frombuffer(np.ascontiguousarray(value.astype(kind)).tobytes(), np.uint8))
        held = [name for name, tensor in tensors.items() if tensor["role"] in ("parameter", "state")]
        before = [bytes(session.read(name)) for name in held]
        error = session.run("train", 0, 3)
        return error, before == [bytes(session.read(name)) for name in held]

    error, same = run("one")
    assert same and re.search(r"receives \d+ rows, \d+ more than it has room for", error)
    error, same = run("any")
    assert not same and not error
