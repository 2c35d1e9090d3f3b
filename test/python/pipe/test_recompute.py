# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Policies of recomputation: the same bits as without, in every layout and schedule; less
memory; and the one that a memory limit asks for."""

import itertools
import re

import pytest
import torch
import torch.utils.checkpoint

import cleave
from cleave.compiler.entrance import grouped
from dropout_models import dropping
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
    dict(mesh={"pp": 2, "tp": 2}, plan="megatron-sp", micro_batches=4, schedule="zb-v"),
    dict(mesh={"pp": 2, "dp": 2}, plan="zero1", micro_batches=2, schedule="gpipe"),
]
CASES = list(itertools.product(range(len(LAYOUTS)), POLICIES, (True, False)))
#: Each layout with a policy, each of these with both forms of attention.
SAMPLE = [(i, POLICIES[i % len(POLICIES)], i < len(POLICIES)) for i in range(len(LAYOUTS))]


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


def test_same_bits_in_few_bits():
    """Of bf16 and of fp8, whose scales follow what forward computed."""
    for precision in ("bf16", "fp8"):
        case = dropping(n_layer=2)
        losses, state, none = trained(case, recompute="none", precision=precision)
        other, again, step = trained(case, recompute="full", precision=precision)
        assert losses == other and same_bits(state, again)
        assert saved(step) < 0.7 * saved(none)


def saved(step):
    return sum(s["saved_bytes_per_micro_batch"] for s in step.report()["schedule"]["stages"])


def test_less_is_saved():
    """By each policy than by those before it, where attention is not one op."""
    case = Case(lambda: gpt2(n_layer=2, n_positions=64), [tokens(batch=4, length=64)],
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


def test_blocks_that_stages_cut():
    """Three layers in two stages, which cut the second one."""
    case = family("gpt2", batch=8, n_layer=3)
    none, full = (compile_case(case, cleave.AdamW(lr=1e-3), mesh={"pp": 2}, micro_batches=2,
                               recompute=policy) for policy in ("none", "full"))
    assert saved(full) < 0.6 * saved(none)


LIMITED = {
    "gpt2": (Case(lambda: gpt2(n_layer=4, n_positions=64), [tokens(batch=8, length=64)],
                  key="recompute-limit"), dict(fused_attention=False)),
    "fused": (family("gpt2", batch=8, n_layer=6), {}),
    "llama": (family("llama", batch=8), dict(micro_batches=2, fused_attention=False)),
    "bert": (family("bert", batch=8), {}),
    "mixtral": (family("mixtral", batch=8), {}),
    "stages": (family("gpt2", batch=8, n_layer=6),
               dict(mesh={"pp": 2}, micro_batches=4, fused_attention=False)),
}


@pytest.mark.parametrize("name", LIMITED if ALL else ["gpt2"])
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
    for tenths in range(10, -1, -1) if ALL else (10, 4, 0):
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
    with pytest.raises(cleave.CompileError, match=r"no plan needs at most .*\(1000 bytes\) on a device; "
                       r"the smallest limit that a plan was found for is .*\([0-9]+ bytes\)") as error:
        compile_case(case, cleave.AdamW(), memory_limit=1000, **settings)
    least = int(re.search(r"is [^(]*\(([0-9]+) bytes", str(error.value))[1])
    compile_case(case, cleave.AdamW(), memory_limit=least, **settings)
    with pytest.raises(cleave.CompileError, match=r"a device needs .* bytes\), and the memory "
                       r"limit is .*\(1000 bytes\); the policy of recomputation 'auto' may need less"):
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


def in_regions(case, reentrant=False):
    """The case with each of its layers in torch.utils.checkpoint."""
    def build():
        model = case.build().train()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return model
    return Case(build, case.batches, key=f"{case.key}-regions-{reentrant}")


@pytest.mark.parametrize("layout", range(0, len(LAYOUTS), 1 if ALL else 3))
def test_regions_have_the_same_bits(layout):
    """Of losses, weights and moments, dropout on, where each layer is a checkpoint region."""
    settings = LAYOUTS[layout]
    case = dropping(n_layer=4)
    losses, state, _ = trained(case, recompute="none", **settings)
    other, again, step = trained(in_regions(case, reentrant=layout % 2 == 1), **settings)
    assert losses == other and same_bits(state, again)
    recomputed = re.search(r"pipe.recomputed = \[(.*?)\]", step.ir("scheduled"))[1]
    assert re.search('op = "graph.(linear|contract)"', recomputed)


def test_regions_save_what_full_blocks_do():
    """By each policy than by those before it. Without regions, the default is `free`."""
    case = Case(lambda: gpt2(n_layer=2, n_positions=64), [tokens(batch=4, length=64)],
                key="recompute-sizes")
    regions = in_regions(case)

    def size(case, **settings):
        return saved(compile_case(case, cleave.AdamW(lr=1e-3), **settings))

    assert size(regions, recompute="regions") == size(case, recompute="full")
    assert size(regions, recompute="free") == size(case) == size(case, recompute="free")
    assert size(case, recompute="regions") == size(case, recompute="none")
    assert size(regions) < size(case) < size(regions, recompute="none")


class Uneven(torch.nn.Module):
    """Regions of different code, one in another; the middle layer is in none."""

    def __init__(self, run):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(5))
        self.run = run

    def forward(self, x, y):
        def inner(x):
            return torch.nn.functional.dropout(torch.tanh(self.layers[1](x)), 0.3)

        def outer(x):
            return x + self.run(inner, torch.relu(self.layers[0](x)))

        def last(x, scale):
            return torch.sin(self.layers[4](torch.nn.functional.gelu(self.layers[3](x)))) * scale

        x = torch.tanh(self.layers[2](self.run(outer, x)))
        return (self.run(last, x, x.sum(1, keepdim=True)) - y).square().mean()


@pytest.mark.parametrize("settings", [{}, dict(micro_batches=2), dict(mesh={"dp": 2})])
def test_regions_of_any_code(settings):
    def plain(function, *args):
        return function(*args)

    def checkpointed(function, *args):
        return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)

    batch = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(1)).unbind()
    found = {}
    for name, run, recompute in (("none", plain, "none"), ("free", plain, "free"),
                                 ("regions", checkpointed, None)):
        torch.manual_seed(0)
        step = cleave.compile(Uneven(run), batch, optimizer=cleave.AdamW(lr=1e-2), check="on",
                              **grouped(recompute=recompute, threads=1, **settings))
        found[name] = [float(step(*batch)) for _ in range(3)], snapshot(step), saved(step)
    for losses, state, _ in found.values():
        assert losses == found["none"][0] and same_bits(state, found["none"][1])
    assert found["regions"][2] < found["free"][2] < found["none"][2]


def test_unknown_policy():
    with pytest.raises(cleave.CompileError, match="unknown policy 'some'"):
        compile_case(family("gpt2"), cleave.AdamW(), recompute="some")
    with pytest.raises(TypeError, match="recompute is a text, not 1"):
        compile_case(family("gpt2"), cleave.AdamW(), recompute=1)


def test_rates_of_a_machine(tmp_path):
    """Predicted times follow the rates, which are a text or a file."""
    path = tmp_path / "rates"
    path.write_text("# half\nflops=5e10\nmemory=1e10\n")
    steps = [compile_case(family("gpt2"), cleave.AdamW(), machine=machine)
             for machine in (None, "flops=5e10,memory=1e10", path)]
    times = [step.report()["schedule"]["makespan"] for step in steps]
    assert times[1] == times[2] == pytest.approx(2 * times[0])
    with pytest.raises(cleave.CompileError, match="horses"):
        compile_case(family("gpt2"), cleave.AdamW(), machine="horses=1")
    with pytest.raises(cleave.CompileError, match="is neither rates, as .* nor a file with them"):
        compile_case(family("gpt2"), cleave.AdamW(), machine=str(tmp_path / "none"))
    with pytest.raises(TypeError, match="machine is a text, not 1"):
        compile_case(family("gpt2"), cleave.AdamW(), machine=1)
    with pytest.raises(ValueError, match="machine is empty"):
        compile_case(family("gpt2"), cleave.AdamW(), machine="")
