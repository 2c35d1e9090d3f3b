# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The elements that a rank sends in a step, against the formulas of the techniques.

Letters: N ranks, b samples, s positions, h width, a heads of size d, g of keys, L
layers, V tokens, E experts; P is the number of parameters. Counted twice: in the
text of the phase `local` (N of 2, 4 and 8), and by the runtime (N of 2, with
``CLEAVE_TEST_ALL=1`` also 4). What
is no tensor of the model is named: `numbers` are the sum of the losses and that of
their weights, which are reduced over the ranks that split tokens.
"""

from fractions import Fraction

import pytest

import cleave
from proofs import ALL
from volumes_support import (A, B, D, E, H, L, S, at_run_time, in_ir, key_heads, parameters,
                             sizes_of)

BSH = B * S * H

#: Experts of a token.
K = 2


def share(n):
    """(N - 1) / N."""
    return Fraction(n - 1, n)


def total(name):
    return sum(parameters(name).values())


def data(name, n):
    """Gradients are averaged once: 2 (N - 1) / N P."""
    return dict(all_reduce=2 * share(n) * (total(name) + 2))


def zero(name, n):
    """Gradients into parts, and parameters gathered: 2 P (N - 1) / N."""
    return dict(reduce_scatter=share(n) * total(name), all_gather=share(n) * total(name),
                all_reduce=2 * share(n) * 2)


def zero3(name, n):
    """Parameters are gathered in forward and in backward, but for those that
    backward does not read (the table that tokens look up): 3 P (N - 1) / N less
    these."""
    unread = sizes_of(name, "embed_tokens")
    return dict(reduce_scatter=share(n) * total(name),
                all_gather=share(n) * (2 * total(name) - unread), all_reduce=2 * share(n) * 2)


def zero3_run(name, n):
    """The head's gradients are made with its logits: it is gathered once."""
    sent = zero3(name, n)
    sent["all_gather"] -= share(n) * sizes_of(name, "lm_head")
    return sent


def megatron(name, n):
    """Four sums of bsh in a layer; the rows looked up and the input gradient of the
    head, bsh each; of the loss three numbers of each row."""
    return dict(all_reduce=2 * share(n) * (4 * L * BSH + 2 * BSH + 3 * B * S))


def megatron_sp(name, n):
    """A layer gathers 4 bsh and scatters 4, and gathers again the inputs of its two
    first products: 10 (N - 1) / N bsh. The rows looked up are scattered, and their
    gradient gathered; the head's input is gathered, and its gradient scattered.
    Norms, and biases after a scatter, see other tokens on each rank: their gradients
    are summed. So is that of positions, of which each rank updates its part: the
    table, of S rows of H, and AdamW's two moments of it are gathered."""
    tables, moments = 1, 2
    norms = sizes_of(name, "ln_", "c_proj.bias")
    return dict(all_gather=share(n) * (6 * L + 2) * BSH
                + (tables + moments) * share(n) * S * H,
                reduce_scatter=share(n) * (4 * L + 2) * BSH,
                all_reduce=2 * share(n) * (3 * B * S + norms))


def ulysses(name, n):
    """Queries, keys, values and the output of a layer, of bsh / N on a rank, go from
    positions to heads or back, and so do their gradients: 8 all-to-alls. What backward
    reads along heads, as forward computed it, is kept so: the output, and the log-sums
    of rows."""
    return dict(all_to_all=L * share(n) * 8 * Fraction(BSH, n), **data(name, n))


def context(name, n):
    """Keys and values are gathered forward and again in backward, and their gradients
    scattered: 6 (N - 1) chunks of a rank's keys."""
    chunk = B * key_heads(name) * (S // n) * D
    return dict(all_gather=4 * (n - 1) * chunk * L, reduce_scatter=2 * (n - 1) * chunk * L,
                **data(name, n))


def ring(name, n):
    """Keys and values go around forward and backward, and their gradients once:
    6 (N - 1) chunks, 18 of four ranks."""
    return dict(permute=6 * (n - 1) * B * key_heads(name) * (S // n) * D * L, **data(name, n))


def expert(name, n):
    """What experts get and give, forward and backward, is E C h of each of a rank's
    b / N sequences, C = s places each; the rest is data parallelism."""
    experts = sizes_of(name, "experts")
    return dict(all_to_all=4 * L * share(n) * Fraction(B, n) * E * S * H,
                all_reduce=2 * share(n) * (total(name) - experts + 2))


def folded_expert(name, n):
    """As megatron: what experts give is summed as is what an MLP gives, and so are the
    gradients of what they got; the gradients of the K weights of each token are sums over
    experts, too."""
    sent = megatron(name, n)
    return dict(all_reduce=sent["all_reduce"] + 2 * share(n) * L * K * B * S)


#: Recipe, axis, model, formula.
TABLE = [
    ("", "dp", "gpt2", data),
    ("", "dp", "llama", data),
    ("zero1", "dp", "gpt2", zero),
    ("zero2", "dp", "llama", zero),
    ("zero3", "dp", "llama", zero3),
    ("megatron", "tp", "gpt2", megatron),
    ("megatron", "tp", "llama", megatron),
    ("megatron-sp", "tp", "gpt2", megatron_sp),
    ("ulysses", "cp", "llama", ulysses),
    ("context", "cp", "llama", context),
    ("context", "cp", "grouped", context),
    ("ring", "cp", "llama", ring),
    ("ring", "cp", "grouped", ring),
    ("two-ring", "cp", "llama", ring),
    ("two-ring", "cp", "grouped", ring),
    ("expert", "ep", "mixtral", expert),
    ("megatron,expert(tp)", "tp", "mixtral", folded_expert),
]


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("plan, axis, name, formula", TABLE)
def test_in_ir(tmp_path, plan, axis, name, formula, ranks):
    assert in_ir(tmp_path, name, f"{axis}={ranks}", plan) == formula(name, ranks)


@pytest.mark.parametrize("ranks", [2, 4] if ALL else [2])
@pytest.mark.parametrize("plan, axis, name, formula", TABLE)
def test_at_run_time(plan, axis, name, formula, ranks):
    formula = zero3_run if formula is zero3 else formula
    assert at_run_time(name, f"{axis}={ranks}", plan) == formula(name, ranks)


def two_levels(recipe, name, outer, inner):
    """Inside of attention, heads over `inner` ranks and positions over `outer` groups of
    them. All-to-alls within a group: a rank's queries, keys, values and outputs, and the
    gradients of all four. Between groups `outer` positions exchange the keys and values of
    a rank's heads."""
    ranks = outer * inner
    queries, keys = (B * heads * D * Fraction(S, ranks) for heads in (A, key_heads(name)))
    between = (outer - 1) * B * Fraction(key_heads(name), inner) * Fraction(S, outer) * D * L
    sent = dict(all_to_all=L * share(inner) * 4 * (queries + keys), **data(name, ranks))
    if recipe == "context":
        return dict(all_gather=4 * between, reduce_scatter=2 * between, **sent)
    return dict(permute=6 * between, **sent)


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
    assert sent["all_to_all"] == 4 * L * share(2) * Fraction(B, 2) * Fraction(E, 4) * S * H


@pytest.mark.parametrize("outer, inner", [(2, 2), (4, 2), (2, 4)])
@pytest.mark.parametrize("name", ["llama", "grouped"])
@pytest.mark.parametrize("recipe", ["ring", "two-ring", "context"])
def test_two_levels_in_ir(tmp_path, recipe, name, outer, inner):
    """A sequence over two axes, whichever is the major one of the mesh."""
    if inner > key_heads(name):
        pytest.skip("each of the inner ranks has a head of keys")
    for mesh in (f"node={outer},cp={inner}", f"cp={inner},node={outer}"):
        assert in_ir(tmp_path, name, mesh, f"ulysses,{recipe}(node)") == two_levels(
            recipe, name, outer, inner)


@pytest.mark.parametrize("recipe", ["ring", "two-ring", "context"])
def test_two_levels_at_run_time(recipe):
    sent = at_run_time("grouped", "node=2,cp=2", f"ulysses,{recipe}(node)")
    assert sent == two_levels(recipe, "grouped", 2, 2)


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
