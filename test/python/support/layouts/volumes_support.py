# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Counts the elements that one rank sends in a step, in the IR and when it runs.

In ring terms: of N ranks that hold n elements (the larger of operand and result),
an all-reduce sends 2 (N - 1) / N n, a gather, a scatter and an all-to-all
(N - 1) / N n, and what is passed on n.
"""

import collections
import functools
import json
import math
import re
from fractions import Fraction

import torch

import cleave
import cleave.models
from cleave.testing.tools import run_tool, tool
from cleave.trace import trace
from family_models import FAMILIES, build
from training_support import Case, compile_case, named_tokens, token_batches

#: Samples, positions, width, heads, their size, layers, experts.
B, S, H, A, D, L, E = 8, 8, 32, 8, 4, 2, 8

#: Of each model a family and its sizes; `grouped` shares keys and values.
MODELS = {
    "gpt2": ("gpt2", dict(n_head=A, n_positions=S)),
    "llama": ("llama", dict(num_attention_heads=A, num_key_value_heads=A)),
    "grouped": ("llama", dict(num_attention_heads=A, num_key_value_heads=2)),
}

#: Places of an expert for the tokens of a sample, of which each chooses two, by a capacity of 1.5.
C = 4


def with_places():
    """A mixture of the package, whose experts have places."""
    torch.manual_seed(0)
    return cleave.models.mixtral(hidden=H, heads=A, layers=L, seq=S, vocab=96, ffn=64, experts=E,
                                 choices=2, capacity=1.5, balance=0.0).train()


def key_heads(name):
    return 2 if name == "grouped" else A


def model(name):
    if name == "mixtral":
        return with_places()
    family, sizes = MODELS[name]
    kind, config, settings, _ = FAMILIES[family]
    return build(kind, config, **{**settings, **sizes}).train()


@functools.cache
def parameters(name):
    """Elements of each parameter, by name."""
    return {n: p.numel() for n, p in model(name).named_parameters()}


def sizes_of(name, *parts):
    """Elements of the parameters whose names have one of `parts`."""
    return sum(n for p, n in parameters(name).items() if any(part in p for part in parts))


@functools.cache
def traced_text(name):
    return trace(model(name), named_tokens(batch=B, length=S)).mlir


def in_ir(folder, name, mesh, plan):
    """By kind, counted in the text of the phase `local`."""
    path = folder / "model.mlir"
    path.write_text(traced_text(name))
    text = run_tool([tool("cleave-compile"), str(path), "--emit=local", f"--mesh={mesh}",
                     f"--plan={plan}", "--check-finite=off"])
    train = text[text.index("func.func @train"):]
    return elements_sent(text, train[:train.index("\n  }")])


def in_form(folder, name, mesh, plan):
    """By kind, as the closed form of the report has them."""
    path = folder / "model.mlir"
    path.write_text(traced_text(name))
    cost = json.loads(run_tool([tool("cleave-compile"), str(path), f"--mesh={mesh}",
                                f"--plan={plan}", "--plan-only", "--report=-"]))["cost"]
    assert not cost["missing"], cost["missing"]
    sent = collections.Counter()
    for row in cost["sent"]:
        sent[row["kind"]] += row["elements"]["form"]
    return {kind: n for kind, n in sent.items() if n}


def elements_sent(module, function):
    """By kind, what one rank sends in the text `function` of the text `module`."""
    sizes = {axis: int(n) for axis, n in re.findall(
        r'"(\w+)" = (\d+)', re.search(r"spmd\.mesh .*", module).group())}
    sent = collections.Counter()
    for line in function.splitlines():
        op = re.search(r"spmd\.(all_reduce|all_gather|reduce_scatter|all_to_all|permute|rotate) .*",
                       line)
        if not op:
            continue
        named = re.search(r"over @mesh \{([^}]*)\}|<@mesh, \[([^\]]*)\]>", op.group())
        axes = re.findall(r'"(\w+)"', named.group(1) or named.group(2))
        # Micro-batches follow one another on one rank.
        ranks = math.prod(sizes[axis] for axis in axes if axis != "mb")
        types = re.findall(r"tensor<((?:\d+x)*)\w+>", op.group()[op.group().rindex(" : "):])
        n = max(math.prod(int(d) for d in shape.split("x") if d) for shape in types)
        if op[1] in ("permute", "rotate"):
            sent["permute"] += n
        else:
            sent[op[1]] += Fraction((2 if op[1] == "all_reduce" else 1) * (ranks - 1) * n, ranks)
    return {kind: n for kind, n in sent.items() if n}


def at_run_time(name, mesh, plan, optimizer=None, check_finite=False, **settings):
    """By kind, counted by the runtime in one step; formulas are those without checks."""
    case = Case(functools.partial(model, name), token_batches(1, batch=B, length=S),
                key=("volumes", name))
    axes = {axis: int(n) for axis, n in (entry.split("=") for entry in mesh.split(","))}
    step = compile_case(case, optimizer or cleave.AdamW(lr=1e-3), mesh=axes,
                        plan=plan.split(",") if plan else None, check_finite=check_finite,
                        **settings)
    step(*case.batches[0])
    sent = collections.Counter()
    for entry in step.communication():
        sent[entry["kind"].replace("-", "_")] += entry["elements"]
    # What the report says is what was sent.
    told = collections.Counter()
    for entry in step.report()["communication"]["train"]["totals"]:
        told[entry["kind"]] += entry["elements"]
    assert {k.replace("rotate", "permute"): round(n) for k, n in told.items()} == {
        k: round(n) for k, n in sent.items()}
    return dict(sent)
