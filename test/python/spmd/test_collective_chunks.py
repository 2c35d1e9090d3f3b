# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Gathers and reductions in chunks that overlap with their contractions: results have the bits of
those that are whole, and the order of commands lets one chunk be sent while another is computed.

The library computes a row of a product alike in products of any number of rows from 16 on; chunks
have as many here."""

import re

import numpy as np
import pytest
import torch

import cleave
import expert_recipes  # noqa: F401 (its models)
from cleave.testing.tools import ToolError, interpret, run_tool, tool
from proofs import ALL
from recipe_runs import OPTIMIZERS, emit, random_inputs
from step_runs import model
from training_support import compile_case, family, weights

CASES = [
    ("gpt2", {"tp": 2}, "megatron", {}),
    ("llama", {"tp": 2}, "megatron-sp", {}),
    ("bert", {"dp": 2, "tp": 2}, ["megatron-sp", "zero3"], {}),
    ("llama", {"tp": 4}, "megatron-sp", {"recompute": "full"}),
    ("gpt2", {"tp": 2}, "megatron-sp", {"precision": "bf16", "micro_batches": 2}),
    ("llama", {"dp": 2, "tp": 2}, ["megatron-sp", "zero1"], {}),
    ("qwen2", {"pp": 2, "tp": 2}, "megatron-sp", {"micro_batches": 2, "schedule": "zb-h1"}),
    ("mixtral", {"tp": 2}, ["megatron-sp", "expert(tp)"], {}),
    ("llama", {"cp": 2, "tp": 2}, ["context", "megatron-sp"], {}),
]


def optimizer():
    return cleave.AdamW(lr=1e-3, weight_decay=0.1, max_grad_norm=1.0)


def sent(step, what):
    return sum(c[what] for c in step.communication())


@pytest.mark.parametrize("name, mesh, plan, settings", CASES if ALL else CASES[:3])
def test_bits_are_those_of_whole_collectives(name, mesh, plan, settings):
    """Of losses, weights and the optimizer's state; as many elements are sent, in more exchanges."""
    case = family(name, batch=8, length=16)
    steps = [compile_case(case, optimizer(), mesh=mesh, plan=plan, bucket_bytes=0,
                          collective_chunks=chunks, collective_chunk_bytes=0, check="off",
                          **settings)
             for chunks in (1, 2, 4)]
    losses = [[float(step(*batch)) for batch in case.batches[:2]] for step in steps]
    assert losses[0] == losses[1] == losses[2]
    states = [{**weights(step), **{f"state {n}": t for n, t in tensors(step)}} for step in steps]
    for other in states[1:]:
        assert states[0].keys() == other.keys()
        for key, value in states[0].items():
            assert torch.equal(value, other[key]), key
    assert len({sent(step, "elements") for step in steps}) == 1
    whole, two, four = (sent(step, "exchanges") for step in steps)
    # Chunks of one sample at least.
    assert whole < two <= four


def tensors(step):
    return [(f"{name} {slot}", value) for name, slots in step.training_state()["optimizer"].items()
            for slot, value in slots.items() if torch.is_tensor(value)]


def test_small_collectives_are_left_whole():
    """Chunks are larger than what goes into a bucket."""
    case = family("gpt2", batch=4)
    steps = [compile_case(case, optimizer(), mesh={"tp": 2}, plan="megatron", **settings)
             for settings in ({}, {"collective_chunks": 4},
                              {"collective_chunks": 4, "collective_chunk_bytes": 0})]
    for step in steps:
        step(*case.batches[0])
    assert len({sent(step, "count") for step in steps}) == 1


@pytest.mark.parametrize("seed", range(60 if ALL else 4))
def test_the_interpreter_gives_the_same_bits(seed, tmp_path):
    """Of random sizes, meshes, recipes and numbers of chunks; every value is computed from the same
    ones in the same order."""
    random = np.random.default_rng(seed)
    pick = lambda *values: values[random.integers(len(values))]
    name, recipe = pick("gpt2", "llama", "bert", "mixtral"), pick("megatron", "megatron-sp")
    dp, pp, parts = pick(1, 2), pick(1, 1, 2), pick(1, 2)
    sizes = (dp * parts * int(random.integers(1, 5)), 2 * int(random.integers(2, 6)))
    recipes = recipe + pick("", ",zero1", ",zero3") * (dp > 1)
    if name == "mixtral":
        recipes += ",expert(tp)"
    flags = [*OPTIMIZERS["sgd"], f"--mesh=pp={pp},dp={dp},tp=2".replace("pp=1,", ""),
             f"--plan={recipes}", f"--micro-batches={parts}", "--bucket-bytes=0",
             f"--recompute={pick('none', 'free', 'full', 'selective')}"]
    chunks = ["--collective-chunks=" + str(pick(2, 3, 4, 8)), "--collective-chunk-bytes=0"]
    inputs = random_inputs(emit(tmp_path, name, "step", *OPTIMIZERS["sgd"], sizes=sizes))
    whole, cut = (emit(tmp_path, name, "scheduled", *flags, *more, sizes=sizes)
                  for more in ([], chunks))
    print(name, sizes, flags[2:], chunks, cut.count("spmd.chunk ="))
    assert "spmd.chunk" not in whole
    for entry in ("train", "evaluate"):
        one, other = (interpret(program, inputs, entry=entry) for program in (whole, cut))
        for before, after in zip(one, other):
            assert before.keys() == after.keys()
            for key, value in before.items():
                assert np.array_equal(value, after[key]), (entry, key)


# The order of commands -----------------------------------------------------------------


def executable(tmp_path, family, recipe, mesh, *flags):
    """The commands of each part, as text, in their order."""
    text = run_tool([tool("cleave-compile"), str(model(family, tmp_path)), f"--mesh={mesh}",
                     f"--plan={recipe}", "--collective-chunks=2", "--collective-chunk-bytes=0",
                     "--bucket-bytes=0", "--emit=executable", "-o", "-", *flags])
    parts = [part.split("\n  }", 1)[0] for part in text.split("\n  func.func private @")[1:]]
    return {part.split("(", 1)[0]: part.split("\n") for part in parts}


def operands(line):
    return re.findall(r"%[\w#]+", line.split(" = ", 1)[1].split(" : ")[0])


def results(line):
    """Of `%a, %b = ...` and `%c:2 = ...`, without numbers of results."""
    return re.findall(r"%\w+", line.split(" = ")[0])


def readers(lines, value):
    """The lines of commands that read a value, or a view of it."""
    found = []
    for index, line in enumerate(lines):
        if " = " in line and value in [o.split("#")[0] for o in operands(line)]:
            if "exec.view" in line:
                found += readers(lines, results(line)[0])
            elif "exec.join" not in line:
                found.append(index)
    return found


def chunks_of(lines):
    """The lines of the chunks of each collective."""
    chunks = {}
    for index, line in enumerate(lines):
        if found := re.search(r"spmd.chunk = array<i64: (\d+), (\d+)>", line):
            chunks.setdefault(int(found[1]), {})[int(found[2])] = index
    return chunks


@pytest.mark.parametrize("family, recipe, mesh, flags", [
    ("gpt", "megatron", "tp=2", []), ("llama", "megatron-sp", "tp=2", []),
    ("llama", "megatron-sp", "tp=2", ["--recompute=full"]),
    ("gpt", "megatron-sp", "tp=2", ["--precision=bf16"]),
    ("llama", "megatron-sp,zero2", "dp=2,tp=2", []),
])
def test_chunks_are_sent_while_others_are_computed(family, recipe, mesh, flags, tmp_path):
    """After memory planning has ordered the commands. A gather has begun before the previous chunk is
    read, and a reduction before the last product of the next chunk."""
    seen = {"all_gather": 0, "reduce": 0}
    for lines in executable(tmp_path, family, recipe, mesh, *flags).values():
        makers = {name: index for index, line in enumerate(lines) if " = " in line
                  for name in results(line)}
        for places in chunks_of(lines).values():
            first, second = places[0], places[1]
            if "all_gather" in lines[first]:
                seen["all_gather"] += 1
                assert readers(lines, results(lines[first])[0])
                assert second < min(readers(lines, results(lines[first])[0])), lines[second]
            else:
                seen["reduce"] += 1
                maker = operands(lines[second])[0].split("#")[0]
                while "exec.view" in lines[makers[maker]]:
                    maker = operands(lines[makers[maker]])[0].split("#")[0]
                assert first < makers[maker] < second, lines[second]
    assert seen["reduce"] >= 4
    assert seen["all_gather"] >= (4 if "sp" in recipe else 0)


@pytest.mark.parametrize("flags, message", [
    (["--collective-chunks=0"], "--collective-chunks must be positive"),
    (["--collective-chunks=-2"], "--collective-chunks must be positive"),
    (["--collective-chunks=2", "--collective-chunk-bytes=-1"],
     "--collective-chunk-bytes is a size: a number of bytes"),
    (["--collective-chunk-bytes=1KiB"], "--collective-chunk-bytes needs --collective-chunks"),
])
def test_what_is_refused(flags, message, tmp_path):
    with pytest.raises(ToolError, match=message):
        run_tool([tool("cleave-compile"), str(model("gpt", tmp_path)), *flags, "-o",
                  str(tmp_path / "step.so")])


def test_one_device_has_nothing_to_cut(tmp_path):
    whole, cut = (run_tool([tool("cleave-compile"), str(model("gpt", tmp_path)),
                            "--emit=executable", *flags, "-o", "-"])
                  for flags in ([], ["--collective-chunks=4"]))
    assert whole == cut
