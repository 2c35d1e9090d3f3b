# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The elements that a rank sends in a step, against the closed forms of the techniques
(lib/ClosedForms), as the report has them.

Counted twice, by kind: in the text of the phase `local` (2, 4 and 8 ranks), and by the runtime
(2, with ``CLEAVE_TEST_ALL=1`` also 4). Numbers that are no tensor of the model are named.
"""

import math
from fractions import Fraction

import pytest

import cleave
from proofs import ALL
from volumes_support import (B, C, E, H, L, S, at_run_time, in_form, in_ir, key_heads, parameters,
                             sizes_of)

BSH = B * S * H


def share(n):
    """(N - 1) / N."""
    return Fraction(n - 1, n)


def total(name):
    return sum(parameters(name).values())


def expected(tmp_path, plan, name, mesh):
    """By kind, the elements of the closed form, and of what none speaks: the sum of the losses and
    that of their weights over ranks that have other tokens."""
    sent = in_form(tmp_path, name, mesh, plan)
    tokens = math.prod(int(n) for axis, n in (entry.split("=") for entry in mesh.split(","))
                       if axis != "tp")
    if tokens > 1:
        sent["all_reduce"] = sent.get("all_reduce", 0) + 2 * share(tokens) * 2
    return sent


#: Recipe, axis, model.
TABLE = [
    ("", "dp", "gpt2"),
    ("", "dp", "llama"),
    ("zero1", "dp", "gpt2"),
    ("zero2", "dp", "llama"),
    ("zero3", "dp", "llama"),
    ("megatron", "tp", "gpt2"),
    ("megatron", "tp", "llama"),
    ("megatron-sp", "tp", "gpt2"),
    ("ulysses", "cp", "llama"),
    ("context", "cp", "llama"),
    ("context", "cp", "grouped"),
    ("ring", "cp", "llama"),
    ("ring", "cp", "grouped"),
    ("two-ring", "cp", "llama"),
    ("two-ring", "cp", "grouped"),
    ("expert", "ep", "mixtral"),
    ("megatron,expert(tp)", "tp", "mixtral"),
]


def close(sent):
    """Sums of floats."""
    return pytest.approx({kind: float(elements) for kind, elements in sent.items()}, rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("plan, axis, name", TABLE)
def test_in_ir(tmp_path, plan, axis, name, ranks):
    sent = in_ir(tmp_path, name, f"{axis}={ranks}", plan)
    if plan == "zero3":
        # Commands share the gather of a head, whose gradients are made with its logits.
        sent["all_gather"] -= share(ranks) * sizes_of(name, "lm_head")
    assert {kind: float(n) for kind, n in sent.items()} == close(
        expected(tmp_path, plan, name, f"{axis}={ranks}"))


@pytest.mark.parametrize("ranks", [2, 4] if ALL else [2])
@pytest.mark.parametrize("plan, axis, name", TABLE)
def test_at_run_time(tmp_path, plan, axis, name, ranks):
    assert at_run_time(name, f"{axis}={ranks}", plan) == close(
        expected(tmp_path, plan, name, f"{axis}={ranks}"))


@pytest.mark.parametrize("features, sequence", [(2, 2), (4, 2), (2, 4)])
def test_heads_within_shards_in_ir(tmp_path, features, sequence):
    """Beside megatron a rank exchanges its own heads: of BSH / N elements of all N ranks, and
    nothing is gathered."""
    sent = in_ir(tmp_path, "llama", f"cp={sequence},tp={features}", "megatron,ulysses")
    assert set(sent) == {"all_reduce", "all_to_all"}
    assert sent["all_to_all"] == 8 * L * share(sequence) * Fraction(BSH, features * sequence)


def test_heads_within_shards_at_run_time():
    sent = at_run_time("llama", "cp=2,tp=2", "megatron,ulysses")
    assert sent["all_to_all"] == 8 * L * share(2) * Fraction(BSH, 4)
    assert set(sent) == {"all_reduce", "all_to_all"}


def test_experts_over_two_axes(tmp_path):
    """Slots are exchanged between the ranks of the samples, by each for its own experts."""
    sent = in_ir(tmp_path, "mixtral", "dp=2,tp=4", "megatron,expert(tp),expert(dp)")
    assert sent["all_to_all"] == 4 * L * share(2) * Fraction(B, 2) * Fraction(E, 4) * C * H


@pytest.mark.parametrize("outer, inner", [(2, 2), (4, 2), (2, 4)])
@pytest.mark.parametrize("name", ["llama", "grouped"])
@pytest.mark.parametrize("recipe", ["ring", "two-ring", "context"])
def test_two_levels_in_ir(tmp_path, recipe, name, outer, inner):
    """A sequence over two axes, whichever is the major one of the mesh."""
    if inner > key_heads(name):
        pytest.skip("each of the inner ranks has a head of keys")
    for mesh in (f"node={outer},cp={inner}", f"cp={inner},node={outer}"):
        plan = f"ulysses,{recipe}(node)"
        sent = {kind: float(n) for kind, n in in_ir(tmp_path, name, mesh, plan).items()}
        assert sent == close(expected(tmp_path, plan, name, mesh))


@pytest.mark.parametrize("recipe", ["ring", "two-ring", "context"])
def test_two_levels_at_run_time(tmp_path, recipe):
    mesh, plan = "node=2,cp=2", f"ulysses,{recipe}(node)"
    assert at_run_time("grouped", mesh, plan) == close(expected(tmp_path, plan, "grouped", mesh))


@pytest.mark.parametrize("ranks", [2, 4])
def test_micro_batches_are_summed_before(ranks):
    """Gradients are sent once in a step, however many micro-batches it has, and
    with two of them five numbers of the loss."""
    sent = at_run_time("gpt2", f"dp={ranks}", "", micro_batches=2)
    assert sent == dict(all_reduce=2 * share(ranks) * (total("gpt2") + 5))


def test_the_norm_of_gradients_is_one_number():
    """Of gradients in parts, the sums of squares are added up: one number more."""
    optimizer = cleave.AdamW(lr=1e-3, max_grad_norm=1.0)
    plain = at_run_time("llama", "dp=2", "zero1")
    clipped = at_run_time("llama", "dp=2", "zero1", optimizer)
    assert clipped["all_reduce"] == plain["all_reduce"] + 1


def test_the_check_of_gradients_is_one_number():
    """Of gradients in parts, over each set of axes."""
    plain = at_run_time("llama", "dp=2", "zero1")
    checked = at_run_time("llama", "dp=2", "zero1", check_finite=True)
    assert checked == {**plain, "all_reduce": plain["all_reduce"] + 1}
    assert at_run_time("llama", "dp=2", "", check_finite=True) == at_run_time("llama", "dp=2", "")


def test_zero_over_two_axes(tmp_path):
    """Parameters rest in parts over one axis, state over both: gradients are scattered
    over `fsdp`, and what is left over `dp`; updated parts are gathered over `dp`."""
    sent = in_ir(tmp_path, "llama", "dp=2,fsdp=2", "dp(fsdp),zero3(fsdp),zero1")
    unread = sizes_of("llama", "embed_tokens")
    whole = total("llama")
    assert sent["reduce_scatter"] == Fraction(whole, 2) + Fraction(whole, 4)
    assert sent["all_gather"] == Fraction(2 * whole - unread, 2) + Fraction(whole, 4)
