# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Masks and biases of attention whose sequence is sharded, against one device.

In f64 by the interpreter, to 1e-10: loss, gradients (those of biases too), updated
parameters.
"""

import numpy as np
import pytest

from cleave.testing.tools import interpret, run_tool, tool
from recipe_runs import agree
from native_layouts import agree_natively
from training_support import ALL
from volumes_support import elements_sent

B, HEADS, GROUPS, D, H = 2, 4, 2, 4, 6

#: Shapes of masks and biases of b samples, a heads, s queries, k keys.
FORMS = {
    "keys": lambda b, a, s, k: (b, 1, 1, k),
    "pairs": lambda b, a, s, k: (b, 1, s, k),
    "heads": lambda b, a, s, k: (b, a, s, k),
    "shared": lambda b, a, s, k: (s, k),
    "table": lambda b, a, s, k: (a, s, k),
    "slopes": lambda b, a, s, k: (1, a, 1, k),
    "queries": lambda b, a, s, k: (b, 1, s, 1),
    "scalar": lambda b, a, s, k: (a, 1, 1),
}


class Model:
    """One attention between products, with a mask and a bias of the given forms: of an
    input where it has samples, else of a parameter. `keys`: tokens of another sequence,
    to which it attends."""

    def __init__(self, length=8, mask=None, bias=None, attributes=(), keys=None, segments=False,
                 hidden=False, type="f64"):
        self.length, self.keys, self.hidden = length, keys or length, hidden
        self.values, self.arguments, self.body = {}, [], []
        self.element = type
        self.rng = np.random.default_rng(length + self.keys)
        sizes = B, HEADS, length, self.keys
        x = self.argument("x", (B, length, H))
        y = self.argument("y", (B, keys, H)) if keys else x
        target = self.argument("target", (B, length, HEADS, D))
        q = self.heads(x, "q", HEADS)
        k, v = self.heads(y, "k", GROUPS), self.heads(y, "v", GROUPS)
        extras, types = "", [self.type(q), self.type(k), self.type(v)]
        for word, form in (("bias", bias), ("mask", mask)):
            if form:
                value, shape = self.extra(word, FORMS[form](*sizes))
                extras += f" {word} {value}"
                types.append(shape)
        if segments:
            value = self.argument("documents", (B, length), "i64")
            extras, types = f"{extras} segments {value}", [*types, self.type(value)]
        if any("dropout" in a for a in attributes):
            value = self.argument("rng", (2,), "i64", role="rng")
            extras, types = f"{extras} rng {value}", [*types, self.type(value)]
        attributes = ", ".join(("scale = 0.5 : f64", *attributes))
        out = self.tensor((B, HEADS, length, D))
        lse = self.tensor((B, HEADS, length, 2) if bias else (B, HEADS, length))
        self.body.append(f"%o, %lse = graph.attention {q}, {k}, {v}{extras} {{{attributes}}} : "
                         f"({', '.join(types)}) -> ({out}, {lse})")
        merged = self.tensor((B, length, HEADS, D))
        self.body += [
            f"%m = graph.transpose %o {{permutation = array<i64: 0, 2, 1, 3>}} : "
            f"({out}) -> {merged}",
            f"%p = graph.mul %m, {target} : ({merged}, {merged}) -> {merged}",
            f"%loss = graph.reduce sum %p {{dims = array<i64: 0, 1, 2, 3>}} : "
            f"({merged}) -> {self.tensor(())}"]

    def tensor(self, shape, dtype=None):
        return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype or self.element}>"

    def type(self, value):
        return self.types[value]

    types = property(lambda self: self.__dict__.setdefault("_types", {}))

    def argument(self, name, shape, dtype=None, role=None):
        role = role or "input"
        batch = ", graph.batch_dim = 0 : i64" if role == "input" else ""
        self.types[f"%{name}"] = self.tensor(shape, dtype)
        self.arguments.append(f'%{name}: {self.tensor(shape, dtype)} '
                              f'{{graph.name = "{name}", graph.role = "{role}"{batch}}}')
        if dtype == "i1":
            value = self.rng.random(shape) < 0.6
            if self.hidden:
                value[0] = value[0] & False
        elif dtype == "i64":
            value = np.array([5, 3]) if role == "rng" else np.sort(self.rng.integers(0, 3, shape))
        else:
            value = self.rng.standard_normal(shape).astype(self.element.replace("f", "float"))
        self.values[name] = value
        return f"%{name}"

    def heads(self, x, name, count):
        """`x` times a weight, as heads."""
        weight = self.argument(f"w{name}", (H, count, D), role="parameter")
        length = int(self.type(x).split("x")[1])
        shape = self.types[f"%{name}"] = self.tensor((B, count, length, D))
        self.body.append(f'%{name} = graph.contract "bsh,had->basd" {x}, {weight} : '
                         f"({self.type(x)}, {self.type(weight)}) -> {shape}")
        return f"%{name}"

    def extra(self, word, shape):
        dtype = "i1" if word == "mask" else None
        if shape[0] != B or len(shape) < 4:
            if word == "bias":
                return self.argument(word, shape, role="parameter"), self.tensor(shape)
            # A constant of the model.
            value = self.argument(word, shape, dtype, role="buffer")
            return value, self.tensor(shape, dtype)
        given = tuple(n for n in shape if n > 1)
        value = self.argument(word, given, dtype)
        self.body.append(f"%{word}_seen = graph.reshape {value} : ({self.tensor(given, dtype)}) -> "
                         f"{self.tensor(shape, dtype)}")
        return f"%{word}_seen", self.tensor(shape, dtype)

    @property
    def text(self):
        arguments, body = ",\n    ".join(self.arguments), "\n  ".join(self.body)
        return (f"func.func @loss(\n    {arguments})\n"
                f"    -> ({self.tensor(())} {{graph.name = \"loss\"}}) {{\n"
                f"  {body}\n  return %loss : {self.tensor(())}\n}}\n")


def emit(folder, model, phase, *flags):
    path = folder / "model.mlir"
    path.write_text(model.text)
    return run_tool([tool("cleave-compile"), str(path), f"--emit={phase}", "--optimizer=sgd",
                     "--check-finite=off", *flags])


def check(folder, model, mesh, recipe, *flags):
    inputs = {**model.values, "lr": np.array(0.1), "step": np.array(3)}
    step = emit(folder, model, "step")
    expected = interpret(step, inputs, entry="train")
    local = emit(folder, model, "local", f"--mesh={mesh}", f"--plan={recipe}", *flags)
    for found, value in zip(interpret(local, inputs, entry="train"), expected):
        agree(found, value)
    agree_natively(folder / "model.mlir", ["--optimizer=sgd", "--check-finite=off"],
                   [f"--mesh={mesh}", f"--plan={recipe}", *flags], step, inputs, expected[0])
    return local


CAUSAL = ("causal",)
WINDOW = ("causal", "window = 3 : i64")
DROPOUT = ("causal", "dropout = 0.25 : f64", "dropout_id = 3 : i64")

#: Masks and biases, with attributes of the attention.
EXTRAS = [
    (dict(mask="keys"), ()),
    (dict(mask="keys"), CAUSAL),
    (dict(mask="pairs"), ()),
    (dict(mask="heads"), WINDOW),
    (dict(mask="shared"), DROPOUT),
    (dict(mask="queries"), ()),
    (dict(bias="table"), ()),
    (dict(bias="table"), CAUSAL),
    (dict(bias="shared"), DROPOUT),
    (dict(bias="slopes"), CAUSAL),
    (dict(bias="keys"), ()),
    (dict(bias="pairs"), WINDOW),
    (dict(bias="heads"), ()),
    (dict(bias="queries"), CAUSAL),
    (dict(bias="scalar"), ()),
    (dict(mask="keys", bias="table"), CAUSAL),
    (dict(mask="pairs", bias="slopes"), DROPOUT),
    (dict(mask="keys", segments=True), ()),
    (dict(bias="table", segments=True), CAUSAL),
    (dict(mask="keys", hidden=True), ()),
    (dict(mask="pairs", bias="table", hidden=True), CAUSAL),
    (dict(mask="keys", keys=12), ()),
    (dict(bias="table", keys=12), ()),
]


@pytest.mark.parametrize("recipe", ["context", "ring", "two-ring"])
@pytest.mark.parametrize("extras, attributes", EXTRAS, ids=str)
def test_steps_equal_one_device(tmp_path, extras, attributes, recipe):
    index = EXTRAS.index((extras, attributes))
    for ranks in [2, 4] if ALL else [[2, 4][index % 2]]:
        check(tmp_path, Model(attributes=attributes, **extras), f"cp={ranks}", recipe)


@pytest.mark.parametrize("recipe", ["context", "ring", "two-ring"])
def test_two_levels(tmp_path, recipe):
    """Heads over one axis, positions over another."""
    for extras, attributes in EXTRAS if ALL else EXTRAS[len(recipe) % 4::4]:
        check(tmp_path, Model(attributes=attributes, **extras), "node=2,cp=2",
              f"ulysses,{recipe}(node)")


@pytest.mark.parametrize("recipe", ["context", "ring", "two-ring"])
def test_random_shapes(tmp_path, recipe):
    """Any mask beside any bias, of random lengths; `context` needs none that is divisible."""
    forms = list(FORMS)
    for seed in range(40 if ALL else 4):
        rng = np.random.default_rng([seed, len(recipe)])
        ranks = int(rng.integers(2, 5))
        length, keys = (int(n) * (1 if recipe == "context" else ranks) for n in
                        rng.integers([ranks, ranks] if recipe == "context" else [1, 1], 5))
        attributes = [(), CAUSAL, DROPOUT, ("window = 2 : i64",)][rng.integers(4)]
        extras = {word: rng.choice([None, *forms]) for word in ("mask", "bias")}
        model = Model(length, attributes=attributes, **extras,
                      keys=keys if rng.random() < 0.4 else None)
        check(tmp_path, model, f"cp={ranks}", recipe)


@pytest.mark.parametrize("recipe", ["ring", "two-ring"])
@pytest.mark.parametrize("extras, numbers", [
    # Of each sample a row of keys, or of each head, forward; the latter has a gradient.
    (dict(mask="keys"), (B, 0)), (dict(bias="slopes"), (HEADS, HEADS)),
    (dict(mask="pairs"), (0, 0)), (dict(bias="table"), (0, 0))], ids=str)
def test_what_is_passed_around(tmp_path, extras, numbers, recipe):
    """One value for each key, and its gradient: (N - 1) chunks each, and those of values
    twice by `ring`, whose backward computes the scores again."""
    ranks, sent = 4, []
    for model in (Model(16), Model(16, **extras)):
        text = emit(tmp_path, model, "local", f"--mesh=cp={ranks}", f"--plan={recipe}")
        train = text[text.index("func.func @train"):]
        sent.append(elements_sent(text, train[:train.index("\n  }")]))
    values, gradients = numbers
    chunks = values * (2 if recipe == "ring" else 1) + gradients
    assert sent[1]["permute"] - sent[0]["permute"] == chunks * (ranks - 1) * 16 // ranks
    assert "all_to_all" not in sent[1]
