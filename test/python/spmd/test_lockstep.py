# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Products in steps that read the same value: what they are sent, how often, and how
much of it is there at once."""

import dataclasses
import re

import numpy as np
import pytest

import cleave
from cleave.testing.tools import interpret, optimize
from memory_models import SHAPES
from summa_runs import LOCAL, trained
from training_support import named_tokens

Q = 4
VALUE, WEIGHT = "tensor<16x32xf64>", "tensor<32x32xf64>"
LIES = '#spmd.sharding<@mesh, [{"row"}, {"col"}]>'
AB, ABT, ATB = "bi,io->bo", "bo,io->bi", "bi,bo->io"


def kind(name):
    """Weights and their gradients begin with w, values with another letter."""
    return WEIGHT if name[0] == "w" else VALUE


def write(arguments, lines, results, held=()):
    """A program on Q x Q devices. A line is a name and its product of two, whose
    received second operand is kept where it is `held`, or its op on values."""
    body = []
    for name, op, *read in lines:
        types = ", ".join(map(kind, read))
        steps = f"spmd.steps = [{LIES}, {LIES}, {LIES}]"
        if name in held:
            steps += ", spmd.held = array<i64: 1>"
        op, marks = (f'contract "{op}"', f"{{{steps}}}") if "->" in op else (op, "")
        body.append(f"%{name} = graph.{op} {', '.join('%' + r for r in read)} {marks} : "
                    f"({types}) -> {kind(name)}")
    given = ", ".join(f'%{name}: {kind(name)} {{graph.role = "input", graph.name = "{name}", '
                      f"spmd.sharding = {LIES}}}" for name in arguments)
    made = ", ".join(f'{kind(name)} {{graph.name = "{name}", spmd.sharding = {LIES}}}'
                     for name in results)
    return "\n".join([
        f'spmd.mesh @mesh <["row" = {Q}, "col" = {Q}]>',
        f"func.func @logits({given}) -> ({made}) {{", *body,
        f"return {', '.join('%' + r for r in results)} : {', '.join(map(kind, results))}", "}"])


def compute(lines, values):
    """What the lines make, by numpy."""
    values = dict(values)
    for name, op, *read in lines:
        read = [values[r] for r in read]
        values[name] = (np.einsum(op, *read) if "->" in op
                        else {"neg": np.negative, "tanh": np.tanh, "add": np.add}[op](*read))
    return values


def received(text):
    """By function, value, and how it is cut: the parts that are received, and the
    most of them that are there at once."""
    found = {}
    for function in text.split("func.func")[1:]:
        last, parts = {}, {}
        for at, line in enumerate(function.splitlines()):
            made, _, rest = line.strip().partition(" = ")
            for value in re.findall(r"%[\w#]+", rest or line):
                last[value] = at
            if match := re.match(r"spmd\.broadcast (%[\w#]+) over @mesh (\{.*?\} dim \d+)", rest):
                parts.setdefault(match.groups(), []).append((made, at))
        name = re.match(r"[^@]*@(\w+)", function).group(1)
        for value, received in parts.items():
            most = max(sum(begin <= at <= last[part] for part, begin in received)
                       for _, at in received)
            found[(name, *value)] = (len(received), most)
    return found


#: Programs, and the number of parts that are received of what products share.
PROGRAMS = {
    # As queries, keys and values: what the later ones read else is there before.
    "forward": (["x", "wq", "wk", "wv"],
                [("q", AB, "x", "wq"), ("u", "tanh", "q"), ("wt", "neg", "wk"),
                 ("k", AB, "x", "wt"), ("v", AB, "x", "wv"), ("y", AB, "u", "wq")],
                ["y", "k", "v"], "x", Q),
    # As their gradients: what the first ones make is read after the last.
    "backward": (["x", "wq", "wk", "dy"],
                 [("dq", "tanh", "dy"), ("wa", ATB, "x", "dq"), ("wb", "neg", "wa"),
                  ("xa", ABT, "dq", "wq"), ("dk", "neg", "dq"), ("wc", ATB, "x", "dk"),
                  ("xb", ABT, "dk", "wk"), ("xc", "add", "xa", "xb")],
                 ["wb", "wc", "xc"], "x", Q),
    # As a head's: two forms of products.
    "forms": (["x", "wt", "dl"], [("xa", AB, "dl", "wt"), ("wa", ATB, "dl", "x")],
              ["xa", "wa"], "dl", Q),
    # Both operands are the same value, which is sent along both axes.
    "square": (["x", "wa"], [("wb", AB, "wa", "wa"), ("y", AB, "x", "wa")], ["wb", "y"],
               "wa", 2 * Q),
    # One after the other, as layers that share a weight.
    "chain": (["x", "wa"], [("y", AB, "x", "wa"), ("u", "tanh", "y"), ("z", AB, "u", "wa")],
              ["z"], "wa", 2 * Q),
    # What lies between would keep what the second makes, as other layers do.
    "between": (["x", "wa", "wb", "wc", "wd"],
                [("y", AB, "x", "wa"), ("u", AB, "y", "wb"), ("z", AB, "x", "wc")],
                ["u", "z"], "x", 2 * Q),
    "unrelated": (["x", "y", "wa", "wb", "wc"],
                  [("z", AB, "x", "wa"), ("u", AB, "y", "wb"), ("v", AB, "x", "wc")],
                  ["z", "u", "v"], "x", 2 * Q),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_parts_are_there_at_once(name):
    """The one that is multiplied and the one that is sent ahead."""
    arguments, lines, results, shared, parts = PROGRAMS[name]
    text = write(arguments, lines, results)
    steps = optimize(text, "--spmd-decompose-contraction")
    local = optimize(steps, *LOCAL[1:])
    found = received(local)
    at = f"%arg{arguments.index(shared)}"
    assert sum(count for (_, value, _), (count, _) in found.items() if value == at) == parts
    assert max(most for _, most in found.values()) == 2
    rng = np.random.default_rng(7)
    values = {name: rng.standard_normal((16, 32) if kind(name) == VALUE else (32, 32))
              for name in arguments}
    expected = compute(lines, values)
    for program in (steps, local):
        made, _ = interpret(program, values, entry="logits")
        for result in results:
            np.testing.assert_allclose(made[result], expected[result], rtol=1e-12, atol=1e-10)


def test_what_is_held_is_sent_once():
    """To all that say so, and again to one that does not."""
    arguments, results = ["x", "y", "wa"], ["u", "v", "z"]
    lines = [("u", ABT, "x", "wa"), ("v", ABT, "y", "wa"), ("z", ABT, "v", "wa")]
    for held, parts, most in [("uvz", Q, Q), ("uv", 2 * Q, Q), ("u", 3 * Q, 2)]:
        local = optimize(write(arguments, lines, results, held), *LOCAL)
        [(count, there)] = received(local).values()
        assert (count, there) == (parts, most), held


@pytest.mark.parametrize("form", ["llama", "gpt2"])
def test_a_model_gathers_no_operand(form):
    """Of whatever value, in forward, backward, and without gradients."""
    shape = dataclasses.replace(SHAPES[form], g=4, L=2)
    step = cleave.compile(shape.build(16), named_tokens(batch=8, length=16, vocab=shape.V),
                          mesh={"row": Q, "col": Q}, plan="summa2d", optimizer=cleave.SGD(lr=1e-3),
                          target=cleave.Target(threads=1))
    found = received(step.ir("local"))
    assert {function for function, _, _ in found} == {"train", "evaluate", "logits"}
    assert max(most for _, most in found.values()) == 2
    # A table that is looked up in and multiplied with is sent for either.
    twice = {function for (function, _, _), (count, _) in found.items() if count > Q}
    assert twice == (set() if form == "llama" else {"evaluate", "logits"})


def test_a_step_sends_once_what_products_share():
    """A layer's products read 3h + i features of each place, not 6h + i: queries, keys
    and values the same, and both halves of the gated layer. Forward and backward do."""
    b, s, h, i, layers, tokens, q = 8, 8, 32, 64, 2, 96, 2
    x, w = b * s * (3 * h + i) * layers, (3 * h * h + 3 * h * i) * layers
    counted = trained("llama", {"row": q, "col": q}, "summa2d", b)
    table, logits = tokens * h, b * s * tokens
    assert counted["broadcast"] == (q - 1) / (q * q) * (2 * (x + w) + 2 * table + logits)
