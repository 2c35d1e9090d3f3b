# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Policies of recomputation: the same bits as without, in every layout and schedule; less
memory; and the one that a memory limit asks for."""

import itertools
import re

import pytest
import torch

import cleave
from test_training_dropout import dropping
from training_support import (ALL, Case, compile_case, family, gpt2, same_bits, snapshot, tokens,
                              torch_run)

POLICIES = ("free", "selective", "full", "free,selective", "1 full; 1 none; free", "price=1e11")

#: A policy with layouts, schedules and forms of attention.
LAYOUTS = [
    {},
    dict(micro_batches=2),
    dict(mesh={"dp": 2}, plan="zero3"),
    dict(mesh={"tp": 2}, plan="megatron"),
    dict(mesh={"tp": 2}, plan="megatron-sp"),
    dict(mesh={"cp": 2}, plan="context"),
    dict(mesh={"cp": 2}, plan="ring"),
    dict(mesh={"pp": 2}, schedule="1f1b", micro_batches=4),
    dict(mesh={"pp": 2}, schedule="zb-h1", micro_batches=4),
    dict(mesh={"pp": 2}, schedule="interleaved", micro_batches=4),
    dict(mesh={"pp": 2, "tp": 2}, plan="megatron-sp", micro_batches=2),
    dict(mesh={"pp": 2, "dp": 2}, plan="zero1", micro_batches=2, schedule="gpipe"),
]
CASES = list(itertools.product(range(len(LAYOUTS)), POLICIES, (True, False)))
#: Each layout with two policies, each of them with both forms of attention.
SAMPLE = [(i, POLICIES[(i + j * 3) % len(POLICIES)], (i + j) % 2 == 0)
          for i in range(len(LAYOUTS)) for j in range(2)]


def trained(case, **settings):
    """Losses and the state after two steps, and the memory of a device."""
    step = compile_case(case, cleave.AdamW(lr=1e-3), threads=1, **settings)
    losses = [float(step(*batch)) for batch in case.batches[:2]]
    return losses, snapshot(step), step


@pytest.mark.parametrize("layout, policy, fused", CASES if ALL else SAMPLE)
def test_same_bits(layout, policy, fused):
    """Losses, weights and moments, dropout on."""
    settings = {**LAYOUTS[layout], "fused_attention": fused}
    if "cp" in settings.get("mesh", {}) and not fused:
        pytest.skip("recipes for sequences are those of the op")
    case = dropping(n_layer=4)
    losses, state, none = trained(case, recompute="none", **settings)
    other, again, step = trained(case, recompute=policy, **settings)
    assert losses == other and same_bits(state, again)
    text = step.ir("scheduled")
    assert "pipe.recomputed" in text or policy == "selective" and fused or "1e11" in policy


def saved(step):
    return sum(s["saved_bytes_per_micro_batch"] for s in step.report()["schedule"]["stages"])


def test_less_is_saved():
    """By each policy than by those before it, where attention is not one op."""
    case = Case(lambda: gpt2(n_layer=4, n_positions=64), [tokens(batch=4, length=64)],
                key="recompute-sizes")
    sizes = {policy: saved(compile_case(case, cleave.AdamW(lr=1e-3), recompute=policy,
                                        fused_attention=False))
             for policy in ("none", "free", "selective", "free,selective", "full")}
    assert sizes["none"] > sizes["free"] > sizes["free,selective"] > sizes["full"]
    assert sizes["none"] > sizes["selective"] > sizes["full"]


def test_full_saves_block_inputs():
    """Once for each block, and what is outside of blocks."""
    case = family("gpt2", batch=8, n_layer=4)
    step = compile_case(case, cleave.AdamW(lr=1e-3), recompute="full")
    groups = step.report()["plan"]["entries"]["train"]["saved_by_block"]
    inner = [group for group in groups if group["blocks"]]
    assert sum(len(group["blocks"]) for group in inner) in (3, 4)
    ids = case.batches[0][0]
    width = 32
    for group in inner:
        assert group["bytes"] == 4 * ids.numel() * width


LIMITED = {
    "gpt2": (Case(lambda: gpt2(n_layer=6, n_positions=64), [tokens(batch=8, length=64)],
                  key="recompute-limit"), dict(fused_attention=False)),
    "fused": (family("gpt2", batch=8, n_layer=6), {}),
    "llama": (family("llama", batch=8), dict(micro_batches=2, fused_attention=False)),
    "bert": (family("bert", batch=8), {}),
    "mixtral": (family("mixtral", batch=8), {}),
    "stages": (family("gpt2", batch=8, n_layer=6),
               dict(mesh={"pp": 2}, micro_batches=4, fused_attention=False)),
}


@pytest.mark.parametrize("name", LIMITED if ALL else ["gpt2", "stages"])
def test_limit(name):
    """What a device needs stays within it; a plan is never slower, as predicted, than a fixed
    policy that fits; a lower limit takes more time."""
    case, settings = LIMITED[name]

    def run(**more):
        return compile_case(case, cleave.AdamW(lr=1e-3), threads=1, **settings, **more)

    def needs(step):
        plan = step.report()["plan"]
        return max(p["arena_bytes"] + sum(p["outside"].values())
                   for p in plan.get("positions", [plan]))

    def seconds(step):
        return step.report()["schedule"]["makespan"]

    fixed = {policy: run(recompute=policy)
             for policy in ("none", "free", "selective", "free,selective", "full")}
    most, least = needs(fixed["none"]), min(map(needs, fixed.values()))
    assert run(recompute="auto").report()["recompute"]["policy"] == "outside none; 1 none"
    before = 0.0
    for tenths in range(10, -1, -1) if ALL else (10, 7, 4, 0):
        limit = least + (most - least) * tenths // 10
        step = run(memory_limit=limit)
        assert needs(step) <= limit
        fitting = [seconds(s) for s in fixed.values() if needs(s) <= limit]
        assert seconds(step) <= min(fitting) * (1 + 1e-9)
        assert seconds(step) >= before * (1 - 1e-9)
        before = seconds(step)
        decision = step.report()["recompute"]
        assert decision["bytes"] == needs(step) and decision["limit"] == limit
        assert (decision["binds"] == "nothing") == (tenths == 10 or most == least)


def test_impossible_limit():
    """The error has the least limit found; of a fixed policy, that another may need less."""
    case, settings = LIMITED["gpt2"]
    with pytest.raises(cleave.CompileError, match="no plan needs at most 1000 bytes on a device; "
                       "the smallest limit that a plan was found for is [0-9]+ bytes") as error:
        compile_case(case, cleave.AdamW(), memory_limit=1000, **settings)
    least = int(re.search("is ([0-9]+) bytes", str(error.value))[1])
    compile_case(case, cleave.AdamW(), memory_limit=least, **settings)
    with pytest.raises(cleave.CompileError, match="a device needs [0-9]+ bytes, and the memory "
                       "limit is 1000; the policy of recomputation 'auto' may need less"):
        compile_case(case, cleave.AdamW(), memory_limit=1000, recompute="full", **settings)


@pytest.mark.parametrize("name, settings", [
    ("gpt2", {}), ("llama", {}), ("bert", {}), ("qwen2", {}), ("mistral", {}), ("bloom", {}),
    ("llama", dict(mesh={"tp": 2}, plan="megatron", recompute="selective"))])
def test_attention_as_products(name, settings):
    """PyTorch's losses, where attention is not one op."""
    case = family(name)
    plain = torch_run(case, 4, lambda module: torch.optim.AdamW(module.parameters(), lr=1e-3))
    step = compile_case(case, cleave.AdamW(lr=1e-3, weight_decay=0.01), fused_attention=False,
                        **settings)
    assert "graph.attention" not in step.ir("step")
    assert [float(step(*batch)) for batch in case.batches[:4]] == pytest.approx(
        plain.losses, rel=1e-4)


def test_attention_as_products_drops_the_same():
    """Dropout of probabilities draws the numbers of the op, in rows of any length."""
    for length in (8, 64):
        case = Case(lambda: gpt2(n_positions=64, attn_pdrop=0.3),
                    [tokens(batch=4, length=length)], key=f"dropping-products-{length}")
        one, other = (compile_case(case, cleave.AdamW(lr=1e-3), fused_attention=fused)
                      for fused in (True, False))
        for _ in range(3):
            assert float(one(*case.batches[0])) == pytest.approx(float(other(*case.batches[0])),
                                                                 rel=1e-5)


def test_unknown_policy():
    with pytest.raises(cleave.CompileError, match="unknown policy 'some'"):
        compile_case(family("gpt2"), cleave.AdamW(), recompute="some")
    with pytest.raises(TypeError, match="recompute is int"):
        compile_case(family("gpt2"), cleave.AdamW(), recompute=1)
