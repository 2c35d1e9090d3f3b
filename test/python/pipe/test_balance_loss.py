# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The tokens over which the loss that balances experts is taken: `balance_loss`.

The judge is eager PyTorch, in which the model's own function computes the loss of each part of
the batch from the router logits of this part.
"""

import copy

import pytest
import torch

import cleave
from cleave import moe
from expert_models import Own
from family_models import build
from proofs import ALL
from training_support import assert_close, tokens

BATCH, WEIGHT = 4, 0.5

#: Models with the loss over all layers.
SMALL = dict(vocab_size=96, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, num_experts_per_tok=2,
             max_position_embeddings=32, attention_dropout=0.0)
FAMILY = {
    "mixtral": ("MixtralForCausalLM", "MixtralConfig",
                dict(num_local_experts=4, sliding_window=None)),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig",
                  dict(num_experts=6, moe_intermediate_size=16, head_dim=8)),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", dict(num_experts=4)),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig",
                dict(num_local_experts=4, head_dim=8, rope_parameters=dict(
                    rope_type="default", rope_theta=1e4))),
}
NAMES = list(FAMILY)


def made(name, **changes):
    model, config, settings = FAMILY[name]
    return build(model, config, **{**SMALL, **settings, "output_router_logits": True,
                                   "router_aux_loss_coef": WEIGHT, **changes}).train()


def own_loss(module, batch, parts):
    """The loss of a model of transformers, balanced over `parts` parts of the batch."""
    out = module(**batch, use_cache=False)
    file = __import__(type(module).__module__, fromlist=["load_balancing_loss_func"])
    mask = batch.get("attention_mask")
    size = BATCH // parts
    balance = 0
    for part in range(parts):
        logits = tuple(layer.view(BATCH, -1, layer.shape[-1])[part * size:(part + 1) * size]
                       .flatten(0, 1) for layer in out.router_logits)
        own = None if mask is None else mask[part * size:(part + 1) * size]
        balance = balance + file.load_balancing_loss_func(
            logits, module.num_experts, module.num_experts_per_tok, own) / parts
    return out.loss + WEIGHT * (balance - out.aux_loss)


def batches(mask=False):
    for seed in (1, 2, 3):
        ids, labels = tokens(batch=BATCH, seed=seed, ignored=3)
        batch = dict(input_ids=ids, labels=labels)
        if mask:
            ones = torch.ones_like(ids)
            ones[1, 5:] = 0
            labels[1, 5:] = -100
            batch["attention_mask"] = ones
        yield batch


def trained(module, loss, mask=False):
    """Three steps of PyTorch: losses, parameters, and AdamW's means."""
    module = copy.deepcopy(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-3, weight_decay=0.1)
    losses = []
    for batch in batches(mask):
        optimizer.zero_grad()
        value = loss(module, batch)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    names = {p: n for n, p in module.named_parameters()}
    state = {(names[p], k): v for p, slots in optimizer.state.items()
             for k, v in slots.items() if k != "step"}
    return losses, {n: p.detach() for n, p in module.named_parameters()}, state


def agrees(module, loss, how, mask=False, **settings):
    expected = trained(module, loss, mask)
    batch = next(batches(mask))
    step = cleave.compile(copy.deepcopy(module), batch, check="off",
                          optimizer=cleave.AdamW(lr=1e-2, eps=1e-3, weight_decay=0.1),
                          numerics=cleave.Numerics(balance_loss=how), **settings)
    losses = [float(step(**batch)) for batch in batches(mask)]
    assert_close(losses, expected[0], rtol=1e-5)
    weights, state = step.state_dict(), step.training_state()["optimizer"]
    for name, value in expected[1].items():
        assert_close(weights[name], value, rtol=1e-3, atol=2e-5, err_msg=name)
    for (name, slot), value in expected[2].items():
        assert_close(state[name][slot].reshape(value.shape), value, rtol=1e-3,
                     atol=1e-5 * float(value.abs().max()) + 1e-9, err_msg=f"{slot} of {name}")
    return step


#: How, parts of the batch, and what is compiled.
LAYOUTS = [
    ("sequence", BATCH, dict(micro_batches=2)),
    ("sequence", BATCH, dict(mesh={"pp": 2}, micro_batches=2)),
    ("sequence", BATCH, dict(mesh={"dp": 2}, plan="zero2", micro_batches=2)),
    ("micro-batch", 2, dict(micro_batches=2)),
    ("micro-batch", 2, dict(mesh={"dp": 2}, micro_batches=2)),
    ("micro-batch", 2, dict(mesh={"pp": 2, "tp": 2}, plan="megatron-sp", micro_batches=2)),
    ("micro-batch", 2, dict(mesh={"cp": 2}, plan="context", micro_batches=2)),
    ("micro-batch", 2, dict(mesh={"ep": 2}, plan="expert", micro_batches=2)),
    ("rank", 4, dict(mesh={"dp": 2}, micro_batches=2)),
    ("rank", 2, dict(mesh={"ep": 2}, plan="expert")),
    ("rank", 4, dict(mesh={"pp": 2, "dp": 2}, plan="zero1", micro_batches=2)),
    ("global", 1, dict(mesh={"dp": 2})),
]


#: Of which a few by default.
CHOSEN = LAYOUTS if ALL else [LAYOUTS[i] for i in (5, 8)]


@pytest.mark.parametrize("how, parts, settings", CHOSEN, ids=lambda v: str(v).replace(" ", ""))
def test_three_steps_equal_eager(how, parts, settings):
    number = LAYOUTS.index((how, parts, settings))
    for name in NAMES if ALL else [NAMES[number % len(NAMES)]]:
        agrees(made(name), lambda m, b: own_loss(m, b, parts), how, **settings)


@pytest.mark.parametrize("how, parts", [("sequence", BATCH), ("micro-batch", 2)][:None if ALL else 1])
def test_masked_tokens_do_not_count(how, parts):
    agrees(made("mixtral"), lambda m, b: own_loss(m, b, parts), how, mask=True, micro_batches=2)


def test_parts_matter():
    """The tests above can fail: losses of other parts are others."""
    module, batch = made("mixtral"), next(batches())
    losses = [float(own_loss(module, batch, parts).detach()) for parts in (1, 2, 4)]
    assert min(abs(a - b) for a, b in zip(losses, losses[1:] + losses[:1])) > 1e-4


@pytest.mark.parametrize("how, parts", [("micro-batch", 2), ("global", 1), ("model", BATCH),
                                        ("sequence", BATCH)][:None if ALL else 1])
def test_models_of_the_package(how, parts):
    """Whose own parts are sequences."""
    def loss(module, batch):
        with moe.balanced_over(parts):
            return module(**batch).loss

    micro_batches = 1 if how == "global" else 2
    agrees(Own(choices=2, capacity=0.75).train(), loss, how, micro_batches=micro_batches)


def test_no_loss_that_is_known():
    batch = next(batches())
    for module in (made("mixtral", output_router_logits=False), build(
            "GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=1, n_head=2, vocab_size=96)):
        with pytest.raises(cleave.trace.TraceError, match="computes none that is known: call "
                                                          "cleave.moe.balance_loss, or give"):
            cleave.compile(module, batch, numerics=cleave.Numerics(balance_loss="sequence"))


def test_a_loss_of_another_meaning(monkeypatch):
    """A function of the same name that computes something else."""
    import transformers.models.mixtral.modeling_mixtral as file

    own = file.load_balancing_loss_func

    def load_balancing_loss_func(gate_logits, num_experts=None, top_k=2, attention_mask=None):
        return 2 * own(gate_logits, num_experts, top_k, attention_mask)

    monkeypatch.setattr(file, "load_balancing_loss_func", load_balancing_loss_func)
    with pytest.raises(cleave.trace.TraceError, match="computed as the model defines it alone"):
        cleave.compile(made("mixtral"), next(batches()),
                       numerics=cleave.Numerics(balance_loss="sequence"))
    assert file.load_balancing_loss_func is load_balancing_loss_func


@pytest.mark.parametrize("value, more, words", [
    ("batch", {}, "it must be 'model', 'sequence', 'micro-batch', 'rank' or 'global'"),
    (2, {}, "balance_loss is 2; it must be"),
])
def test_other_values(value, more, words):
    with pytest.raises(ValueError, match=words):
        cleave.compile(made("mixtral"), next(batches()),
                       numerics=cleave.Numerics(balance_loss=value, **more))


def test_not_with_what_contradicts_it():
    with pytest.raises(ValueError, match="it must be 'sequence'"):
        cleave.compile(made("mixtral"), next(batches()),
                       numerics=cleave.Numerics(balance_loss="micro-batch", deterministic=4))
    with pytest.raises(ValueError, match="asynchronous schedule updates after each micro-batch"):
        cleave.compile(made("mixtral"), next(batches()), mesh={"pp": 2}, micro_batches=2,
                       pipeline="pipedream", numerics=cleave.Numerics(balance_loss="global"))


def test_the_whole_batch_in_grains_says_what_to_do():
    """A loss over the whole batch is not one of parts, and the error says how it becomes one."""
    with pytest.raises(cleave.CompileError, match="couples samples .*balance_loss=.sequence"):
        cleave.compile(made("mixtral"), next(batches()), check="off",
                       numerics=cleave.Numerics(deterministic=4))
    step = cleave.compile(made("mixtral"), next(batches()), check="off",
                          numerics=cleave.Numerics(deterministic=4, balance_loss="sequence"))
    expected = own_loss(made("mixtral"), next(batches()), BATCH)
    assert_close(float(step(**next(batches()))), float(expected.detach()), rtol=1e-5)
