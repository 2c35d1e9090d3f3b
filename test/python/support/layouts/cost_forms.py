# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Plans of models at real sizes beside their closed forms, and those that exceed them."""

import json
import os

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool

#: Of each model the arguments of `python -m cleave.models`, 32 samples each.
MODELS = {
    "gpt-124m": "gpt --vocab 50304",
    "gpt-1.3b": "gpt --hidden 2048 --heads 16 --layers 24 --seq 2048 --vocab 50304",
    "llama-1b": "llama --hidden 2048 --heads 32 --kv-heads 8 --layers 16 --seq 2048 "
                "--vocab 128256 --ffn 8192",
    "llama-7b": "llama --hidden 4096 --heads 32 --layers 32 --seq 2048 --vocab 32000 --ffn 11008",
}

#: Mesh and plan of each layout.
LAYOUTS = [
    ("dp=8", ""), ("dp=8", "zero1"), ("dp=8", "zero2"), ("dp=8", "zero3"),
    ("tp=4", "megatron"), ("tp=4", "megatron-sp"),
    ("dp=4,tp=4", "megatron"), ("dp=4,tp=4", "megatron-sp"),
    ("dp=4,tp=4", "megatron,zero1"), ("dp=4,tp=4", "megatron,zero2"),
    ("dp=4,tp=4", "megatron,zero3"), ("dp=4,tp=4", "megatron-sp,zero1"),
    ("dp=4,tp=4", "megatron-sp,zero2"), ("dp=4,tp=4", "megatron-sp,zero3"),
    ("pp=4", ""), ("pp=2,dp=4", ""), ("pp=2,dp=4", "zero1"),
    ("pp=2,tp=4", "megatron"), ("pp=2,tp=4", "megatron-sp"),
    ("pp=2,dp=2,tp=4", "megatron-sp,zero1"),
    ("cp=4", "context"), ("cp=4", "ring"), ("cp=4", "ulysses"),
    ("dp=2,cp=4", "context,zero1"), ("dp=2,cp=4", "ring,zero3"), ("dp=2,cp=4", "ulysses,zero2"),
    ("cp=2,tp=4", "context,megatron"), ("cp=2,tp=4", "ring,megatron"),
    ("cp=2,tp=4", "ulysses,megatron"), ("dp=2,cp=2,tp=4", "ring,megatron-sp,zero1"),
]


def case_name(case):
    model, mesh, plan, *flags = case
    return " ".join([model, mesh, plan or "-", *(flag.removeprefix("--") for flag in flags)])


def write(folder, name):
    """The file of a model, which is written once."""
    path = os.path.join(folder, f"{name}.mlir")
    if not os.path.exists(path):
        assert write_model([*MODELS[name].split(), "--batch", "32", "--no-logits",
                            "-o", path]) == 0
    return path


def cost(path, mesh, plan, *flags):
    """The key `cost` of the report of a plan."""
    report = run_tool([tool("cleave-compile"), str(path), f"--mesh={mesh}", f"--plan={plan}",
                       "--plan-only", "--report=-", *flags])
    return json.loads(report)["cost"]


def exceeding(found):
    """The rows of a cost that exceed their forms: kinds with axes, and what is not sent."""
    rows = {f"{row['kind']} {row['axes'].replace(chr(34), '').replace(' ', '')}"
            for row in found["sent"] if row["exceeds"]}
    return rows | {key for key in ("operations", "parameter_bytes", "state_bytes")
                   if (found[key]["ratio"] or 0) > 1.02}


def has(case, *words):
    return any(word in case[2].split(",") for word in words)


def zero(case):
    return "zero" in case[2]


#: Rows that exceed their forms, in which cases, and why. A row leaves this table with its cause.
KNOWN = [
    ("all_reduce cp", lambda c: c[0].startswith("gpt") and has(c, "ring"),
     "rows of the table of positions in zig-zag order are looked up over ranks"),
    ("all_reduce dp", lambda c: c[0].startswith("gpt") and has(c, "ring") and zero(c),
     "rows of the table of positions in zig-zag order are looked up over ranks"),
    ("all_reduce cp,tp", lambda c: has(c, "megatron-sp") and "cp=" in c[1] and zero(c),
     "gradients of norms are summed over cp and tp at once, and whole, which the form has apart"),
    ("all_reduce cp", lambda c: "cp=" in c[1] and zero(c),
     "whole gradients are summed over cp before they are scattered over dp, not shards after"),
    ("all_gather cp", lambda c: c[0].startswith("gpt") and has(c, "ulysses") and has(c, "zero2"),
     "the table of positions is gathered for each micro-batch"),
    *((row, lambda c: has(c, "megatron-sp"),
       "the table of tokens is gathered, and its gradient scattered, for each micro-batch, also "
       "where the rows of its tokens are fewer") for row in ("reduce_scatter tp", "all_gather tp")),
    *((row, lambda c: c[0] == "gpt-124m" and has(c, "ulysses") and has(c, "megatron"),
       "12 heads are not divisible by 8 ranks, and are padded")
      for row in ("operations", "all_gather tp:(1)2,tp:(2)2", "permute cp,tp",
                  "permute cp,tp:(1)2,tp:(2)2")),
]


def known(case):
    """The rows that may exceed their form, with the reason."""
    found = {}
    for row, where, reason in KNOWN:
        if where(case):
            found.setdefault(row, reason)
    return found


def cases(models, precisions, micro_batches):
    for model in models:
        for mesh, plan in LAYOUTS:
            for precision in precisions:
                for count in micro_batches:
                    if count > 1 or "pp=" not in mesh:
                        flags = [f"--micro-batches={count}"] if count > 1 else []
                        yield (model, mesh, plan, f"--precision={precision}", *flags)


CASES = list(cases(MODELS, ("f32", "bf16"), (1, 4)))

#: Each layout once, with precisions and micro-batches in turn, of the smaller models.
SAMPLE = [("llama-1b" if index % 3 else "gpt-124m", mesh, plan,
           "--precision=bf16" if index % 2 else "--precision=f32",
           *(["--micro-batches=4"] if index % 4 > 1 or "pp=" in mesh else []))
          for index, (mesh, plan) in enumerate(LAYOUTS)]
