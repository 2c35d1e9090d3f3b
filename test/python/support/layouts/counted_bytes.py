# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Bytes that rank 0 sends in a step by its closed form, in its plan, and counted by the runtime."""

import collections
import functools

import cleave
from training_support import Case, compile_case, token_batches
from volumes_support import B, S, model


def trained(name, mesh, plan, **settings):
    """A step of a small model on ranks that are threads, which was called twice: the counters are
    those of the second call."""
    case = Case(functools.partial(model, name), token_batches(1, batch=B, length=S),
                key=("volumes", name))
    axes = {axis: int(n) for axis, n in (entry.split("=") for entry in mesh.split(","))}
    step = compile_case(case, cleave.AdamW(lr=1e-3), mesh=axes,
                        plan=plan.split(",") if plan else None, **settings)
    for _ in range(2):
        step(*case.batches[0])
    return step


def axes_of(text):
    """The axes of a row of a report, as the runtime names them."""
    return text.replace('"', "").replace(" ", "")


def counted(step):
    """By kind and axes, the tensors, elements and bytes that rank 0 sent."""
    found = collections.defaultdict(lambda: [0, 0, 0])
    for entry in step.communication():
        if entry["kind"] == "receive":
            continue
        own = found[entry["kind"].replace("-", "_"), axes_of(entry["axes"])]
        for index, key in enumerate(("count", "elements", "bytes")):
            own[index] += entry[key]
    return {key: tuple(map(round, numbers)) for key, numbers in found.items() if any(numbers)}


def planned(step):
    """The same by the report; in a pipeline rank 0 is at position 0."""
    found = collections.defaultdict(lambda: [0, 0, 0])
    train = step.report()["communication"]["train"]
    for entry in train.get("positions", [train])[0]["totals"]:
        kind = entry["kind"].replace("rotate", "permute")
        own = found[kind, axes_of(entry["axes"])]
        for index, key in enumerate(("count", "elements", "bytes")):
            own[index] += entry[key]
    return {key: tuple(map(round, numbers)) for key, numbers in found.items() if any(numbers)}


def sums(step):
    """Bytes of all kinds: by the closed form, in the plan, and counted."""
    cost = step.report()["cost"]
    assert not cost["missing"], cost["missing"]
    form = sum(row["bytes"]["form"] for row in cost["sent"])
    return (round(form), sum(entry[2] for entry in planned(step).values()),
            sum(entry[2] for entry in counted(step).values()))


#: Rows of the table in docs/Parallelism.md: model, mesh, plan, options, and the formula of the
#: elements.
TABLE = [
    ("gpt2", "dp=2", "", {}, "2 (N-1)/N P"),
    ("gpt2", "dp=2", "zero1", {"precision": "bf16"}, "2 (N-1)/N P, gathers in 16 bits"),
    ("llama", "dp=2", "zero2", {"micro_batches": 4}, "(m+1) (N-1)/N P"),
    ("llama", "dp=2", "zero3", {}, "(N-1)/N (3 P - 2 V h)"),
    ("llama", "tp=2", "megatron", {}, "2 (N-1)/N ((4 L + 2) b s h + 3 b s)"),
    ("llama", "tp=2", "megatron-sp", {}, "(N-1)/N ((10 L + 4) b s h + 6 b s + 2 (2 L + 1) h)"),
    ("llama", "dp=2,tp=2", "megatron,zero1", {"precision": "bf16"},
     "of `megatron` with b/2 samples, and of `zero1` with P/2 parameters"),
    ("grouped", "cp=2", "context", {}, "6 L (N-1) b g d s/N + 2 (N-1)/N P"),
    ("grouped", "cp=2", "ring", {}, "6 L (N-1) b g d s/N + 2 (N-1)/N P"),
    ("grouped", "cp=2", "two-ring", {}, "6 L (N-1) b g d s/N + 2 (N-1)/N P"),
    ("llama", "cp=2", "ulysses", {}, "8 L (N-1)/N b s h/N + 2 (N-1)/N P"),
    ("llama", "node=2,cp=2", "ulysses,ring(node)", {},
     "8 L (U-1)/U b s h/(R U) + 6 L (R-1) b h/U s/R + 2 (N-1)/N P"),
]


def row(name, mesh, plan, settings, formula):
    """A row of the table, of a step that is run."""
    options = " ".join(f"--{key.replace('_', '-')}={value}" for key, value in settings.items())
    numbers = " | ".join(f"{number:,}" for number in sums(trained(name, mesh, plan, **settings)))
    flags = f"`--mesh={mesh} --plan={plan}{' ' + options if options else ''}`"
    return f"| {name} | {flags.replace(' --plan=`', '`')} | {formula} | {numbers} |"
