# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Products in steps (`summa2d`, `summa25d`): values, what is sent, and what is held.

That training is the same is tested in test_recipes.py, test_recipe_pairs.py and
test_training_devices.py.
"""

import re

import numpy as np
import pytest
import torch
import transformers

import cleave
from cleave.testing.tools import ToolError, interpret, optimize
from cleave.compiler.entrance import grouped
from family_models import build
from recipe_runs import random_inputs
from summa_runs import LOCAL, trained
from training_support import assert_close, gpt2, tokens

#: Samples, features in, features out.
B, K, N = 16, 24, 32
SIZES = {"b": B, "i": K, "o": N}

#: What each form multiplies, and the axis over which each result lies.
FORMS = {"AB": "bi,io->bo", "ABt": "bo,io->bi", "AtB": "bi,bo->io"}
MESHES = {"[2,2,1]": (1, 2), "[2,2,2]": (2, 2), "[4,4,1]": (1, 4), "[4,4,4]": (4, 4)}


def product(equation, depth, q):
    """A product whose operands and result lie in blocks, as a program."""
    samples = '{"depth", "row"}' if depth > 1 else '{"row"}'

    def lies(letters):
        dims = [samples if letter == "b" else '{"col"}' if "b" in letters or letter == "o"
                else '{"row"}' for letter in letters]
        return f"#spmd.sharding<@mesh, [{', '.join(dims)}]>"

    lhs, rhs, out = re.fullmatch(r"(\w+),(\w+)->(\w+)", equation).groups()
    types = {t: f"tensor<{'x'.join(str(SIZES[c]) for c in t)}xf64>" for t in (lhs, rhs, out)}
    return f"""
spmd.mesh @mesh <["depth" = {depth}, "row" = {q}, "col" = {q}]>
func.func @logits(
    %a: {types[lhs]} {{graph.role = "input", graph.name = "a", spmd.sharding = {lies(lhs)}}},
    %b: {types[rhs]} {{graph.role = "input", graph.name = "b", spmd.sharding = {lies(rhs)}}})
    -> ({types[out]} {{graph.name = "c", spmd.sharding = {lies(out)}}}) {{
  %c = graph.contract "{equation}" %a, %b
      {{spmd.steps = [{lies(lhs)}, {lies(rhs)}, {lies(out)}]}}
      : ({types[lhs]}, {types[rhs]}) -> {types[out]}
  return %c : {types[out]}
}}
"""


def operands(equation, seed=3):
    rng = np.random.default_rng(seed)
    lhs, rhs = equation.split("->")[0].split(",")
    return {name: rng.standard_normal([SIZES[c] for c in letters])
            for name, letters in zip("ab", (lhs, rhs))}


#: Heads whose logits an entry returns: untied ones, and ones that are scaled, so that
#: the loss needs all classes; of a vocabulary that divides, and of one that does not.
HEADS = {
    "untied": lambda vocab: gpt2(tie_word_embeddings=False, vocab_size=vocab),
    "tied": lambda vocab: gpt2(vocab_size=vocab),
    "scaled": lambda vocab: cohere(vocab, tie_word_embeddings=True),
    "scaled-untied": lambda vocab: cohere(vocab, tie_word_embeddings=False),
}


def cohere(vocab, **settings):
    return build("CohereForCausalLM", "CohereConfig", hidden_size=32, intermediate_size=64,
                 num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
                 vocab_size=vocab, max_position_embeddings=32, logit_scale=0.25, pad_token_id=0,
                 bos_token_id=1, eos_token_id=2, **settings).train()


@pytest.mark.parametrize("plan, mesh", [("summa2d", {"row": 2, "col": 2}),
                                        ("summa25d", {"depth": 2, "row": 2, "col": 2})])
@pytest.mark.parametrize("head, vocab", [("untied", 211), ("tied", 211), ("scaled", 96),
                                         ("scaled", 211), ("scaled-untied", 211)])
def test_heads_give_their_logits(head, vocab, plan, mesh):
    """Natively beside one device, and by the interpreter beside the step."""
    ids, labels = tokens(batch=8, vocab=vocab)
    steps = []
    for settings in ({}, dict(mesh=mesh, plan=plan)):
        torch.manual_seed(0)
        steps.append(cleave.compile(HEADS[head](vocab), dict(input_ids=ids, labels=labels),
                                    optimizer=cleave.SGD(lr=0.1), **grouped(**settings)))
    one, many = steps
    whole, local = many.ir("step"), many.ir("local")
    inputs = random_inputs(whole)
    for entry in ("logits", "evaluate", "train"):
        found, expected = (interpret(text, inputs, entry=entry)[0] for text in (local, whole))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            # Constants of a head that is decomposed are rounded to f32.
            assert_close(found[name].ravel(), value.ravel(), rtol=1e-6, atol=1e-7)
    assert_close(many.logits(ids), one.logits(ids), rtol=1e-4, atol=1e-5)
    for _ in range(2):
        assert_close(float(many(ids, labels)), float(one(ids, labels)), rtol=1e-5)
    assert_close(many.logits(ids), one.logits(ids), rtol=1e-4, atol=1e-5)


def elements(text):
    return int(np.prod([int(n) for n in re.search(r"tensor<((?:\d+x)+)", text).group(1)
                        .split("x")[:-1]]))


def sent(text, parts):
    """The elements that a device sends in each kind of collective: (N - 1) / N of a part of N."""
    result = {}
    for kind, part in re.findall(r"spmd\.(broadcast|reduce|all_\w+|permute)\b.*? : (tensor\S+)",
                                 text):
        factor = 2 if kind == "all_reduce" else 1
        result[kind] = result.get(kind, 0) + factor * (parts - 1) / parts * elements(part)
    return result


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", MESHES)
def test_steps_give_the_product(form, shape):
    depth, q = MESHES[shape]
    text, inputs = product(FORMS[form], depth, q), operands(FORMS[form])
    expected = np.einsum(FORMS[form], inputs["a"], inputs["b"])
    # Also before it is split: steps are a program of one device.
    steps = optimize(text, "--spmd-decompose-contraction")
    assert len(re.findall(r"graph\.contract", steps)) == q
    for program in (steps, optimize(text, *LOCAL)):
        found, _ = interpret(program, inputs, entry="logits")
        np.testing.assert_allclose(found["c"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", MESHES)
def test_steps_send_their_formulas(shape):
    """Each device sends (q - 1) of its blocks: of values bsh / d q^2, of the weight
    hk / q^2; the weight's gradient is summed over depth once more."""
    depth, q = MESHES[shape]
    x, w = B * K / (depth * q * q), K * N / (q * q)
    counted = {form: sent(optimize(product(FORMS[form], depth, q), *LOCAL), q) for form in FORMS}
    assert counted["AB"] == {"broadcast": (q - 1) * (x + w)}
    assert counted["ABt"] == {"broadcast": (q - 1) * w, "reduce": (q - 1) * x}
    gradient = {"broadcast": (q - 1) * x, "reduce": (q - 1) * w}
    if depth > 1:
        # Counted as if among q, and in fact among depth.
        gradient["all_reduce"] = 2 * (q - 1) / q * w
    assert counted["AtB"] == gradient


@pytest.mark.parametrize("form", FORMS)
def test_no_operand_is_gathered(form):
    """What a device works on is never more than a block of each."""
    depth, q = 2, 2
    text = optimize(product(FORMS[form], depth, q), *LOCAL)
    blocks = {B * K // (depth * q * q), B * N // (depth * q * q), K * N // (q * q)}
    held = {elements(t) for t in re.findall(r"tensor<(?:\d+x)+f64>", re.sub(
        r"spmd\.global_types? = (\[.*?\]|tensor<\S+>)", "", text))}
    assert held <= blocks


def test_depth_sums_are_needed():
    """Without the sum over depth a weight's gradient is refused, and wrong."""
    text = optimize(product(FORMS["AtB"], 2, 2), *LOCAL)
    lines = text.splitlines()
    [at] = [i for i, line in enumerate(lines) if "spmd.all_reduce" in line]
    result, operand = re.match(r"\s*(%\S+) = spmd.all_reduce sum (%\S+)", lines[at]).groups()
    broken = "\n".join(line.replace(result + " ", operand + " ") for i, line in enumerate(lines)
                       if i != at)
    with pytest.raises(ToolError, match="is partial"):
        optimize(broken, "--spmd-verify")
    with pytest.raises(ToolError, match="ranks disagree"):
        interpret(broken, operands(FORMS["AtB"]), entry="logits")


@pytest.mark.parametrize("depth, q", [(1, 2), (2, 2)])
def test_a_step_sends_its_formula(depth, q):
    """Every product of GPT-2, forward and backward, its table, and its logits; of
    norms and the loss, numbers of a row. Nothing is gathered. The head's two
    gradients read the same gradient of the logits, and one the same table as the
    logits: these are sent once. Gradients of the head and of the lookup are added
    before they are summed over ranks."""
    b, s, h, layers, tokens = 8, 8, 32, 2, 96
    mesh = {"depth": depth, "row": q, "col": q} if depth > 1 else {"row": q, "col": q}
    counted = trained("gpt2", mesh, "summa25d" if depth > 1 else "summa2d", b)
    x, w = 7 * b * s * h * layers / depth, 12 * h * h * layers
    logits, table = b * s * tokens / depth, tokens * h
    forward = x + w + table + table  # Head, and lookup.
    backward = w + x + logits
    assert counted["broadcast"] == (q - 1) / (q * q) * (forward + backward)
    assert counted["reduce"] == (q - 1) / (q * q) * (x + w + logits + table)
    assert set(counted) == {"broadcast", "reduce", "all-reduce"}
    # Two numbers of a row for each norm, forward and backward, and three for the
    # loss; gradients of vectors and positions; over depth, of all parameters.
    rows = (4 * (2 * layers + 1) + 3) * b * s / (depth * q)
    vectors = (layers * (6 + 3 + 4) + 2 + s) * h / q
    devices = depth * q
    expected = (2 * (q - 1) / q * rows + 2 * (devices - 1) / devices * vectors
                + 2 * (depth - 1) / depth * (w + table) / (q * q))
    # And some single numbers: losses, counts.
    assert expected <= counted["all-reduce"] <= expected + 16


def test_evaluation_after_training_in_a_pipeline():
    """The head of the second stage reads blocks of the embedding, which training gathers in
    the first one: both hold it, and both update it."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=4, n_embd=32, vocab_size=96, n_positions=16, attn_pdrop=0,
        resid_pdrop=0, embd_pdrop=0, use_cache=False))
    ids = torch.randint(96, (8, 8))
    found = []
    for settings in ({}, {"mesh": {"pp": 2, "row": 2, "col": 2}, "plan": "summa2d",
                          "micro_batches": 4}):
        step = cleave.compile(model, dict(input_ids=ids, labels=ids), optimizer=cleave.SGD(lr=0.5),
                              **grouped(**settings))
        for _ in range(3):
            step(ids, ids)
        found.append((float(step.evaluate(ids, ids)), step.logits(ids).clone()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-5)
