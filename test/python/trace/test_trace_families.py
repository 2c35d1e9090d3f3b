# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models of the transformers library, from configs with random weights."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from trace_support import check, count  # noqa: E402

transformers.logging.set_verbosity_error()

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
             vocab_size=96, max_position_embeddings=32)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
GROUPED = dict(SMALL, num_key_value_heads=2)


def token_inputs(ignored=True):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 96, (2, 8), generator=generator)
    labels = torch.randint(3, 96, (2, 8), generator=generator)
    if ignored:
        labels[0, 5:] = -100
    return dict(input_ids=ids, labels=labels)


def build(model, config, **settings):
    """A model with weights large enough that every part of it matters."""
    torch.manual_seed(0)
    module = getattr(transformers, model)(getattr(transformers, config)(**settings))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return module


#: Name: class, configuration, its settings, ops expected in @loss.
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config",
             dict(n_embd=32, n_layer=2, n_head=4, vocab_size=96, n_positions=32, resid_pdrop=0.0,
                  embd_pdrop=0.0, attn_pdrop=0.0),
             dict(attention=2, layer_norm=5, gelu=2, tanh=0)),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED,
              dict(attention=2, rms_norm=5, rope=4, silu=2, broadcast=0)),
    "bert": ("BertForMaskedLM", "BertConfig", dict(SMALL, **NO_DROPOUT),
             dict(attention=2, layer_norm=6, gelu=3)),
    "opt": ("OPTForCausalLM", "OPTConfig",
            dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
                 vocab_size=96, max_position_embeddings=32, word_embed_proj_dim=32, dropout=0.0),
            dict(attention=2, layer_norm=5, relu=2)),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL,
                 dict(attention=2, layer_norm=5, rope=4, gelu=2)),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED,
              dict(attention=2, rms_norm=5, rope=4, silu=2)),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", dict(GROUPED, head_dim=8),
              dict(attention=2, rms_norm=5, rope=4, gelu=2)),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", dict(SMALL, **NO_DROPOUT),
                dict(attention=2, layer_norm=6, gelu=3)),
    "mistral": ("MistralForCausalLM", "MistralConfig", dict(GROUPED, sliding_window=3),
                dict(attention=2, rms_norm=5, rope=4)),
    "phi": ("PhiForCausalLM", "PhiConfig", dict(SMALL, resid_pdrop=0.0),
            dict(attention=2, layer_norm=3, rope=4, gelu=2)),
    "gpt_neo": ("GPTNeoForCausalLM", "GPTNeoConfig",
                dict(hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
                     window_size=3, vocab_size=96, max_position_embeddings=32, resid_dropout=0.0,
                     embed_dropout=0.0, attention_dropout=0.0),
                dict(attention=2, layer_norm=5, gelu=2)),
    "gptj": ("GPTJForCausalLM", "GPTJConfig",
             dict(n_embd=32, n_layer=2, n_head=4, rotary_dim=4, vocab_size=96, n_positions=32,
                  resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
             dict(attention=2, layer_norm=3, gelu=2)),
    "bloom": ("BloomForCausalLM", "BloomConfig",
              dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=96),
              dict(attention=2, layer_norm=6)),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED, dict(attention=2, rope=4)),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", dict(GROUPED, head_dim=8),
              dict(attention=2, rms_norm=9, rope=4)),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig",
                dict(GROUPED, num_local_experts=4, num_experts_per_tok=2, sliding_window=None,
                     experts_implementation="eager"),
                dict(attention=2, rms_norm=5, rope=4, silu=2, top_k=2, scatter_add=2, gather=3)),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", dict(SMALL, embedding_size=32, **NO_DROPOUT),
                dict(attention=2)),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig",
                   dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=96,
                        max_position_embeddings=32, dropout=0.0, attention_dropout=0.0),
                   dict(attention=2)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_language_model(family):
    model, config, settings, ops = FAMILIES[family]
    traced = check(build(model, config, **settings), token_inputs())
    found = {op: count(traced.mlir, op) for op in ops}
    assert found == ops
    # Causal and window masks are not materialised, nor positions looked up.
    assert " mask %" not in traced.mlir and "graph.compare le" not in traced.mlir


def test_image_classification():
    module = build("ViTForImageClassification", "ViTConfig", hidden_size=32, num_hidden_layers=2,
                   num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
                   num_labels=10)
    inputs = dict(pixel_values=torch.randn(2, 3, 16, 16), labels=torch.tensor([3, 9]))
    traced = check(module, inputs)
    assert count(traced.mlir, "patches") == 1 and count(traced.mlir, "attention") == 2


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_padding_is_an_input(family, attention):
    model, config, settings, _ = FAMILIES[family]
    module = build(model, config, **settings, attn_implementation=attention)
    inputs = token_inputs()
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[0, 6:] = 0
    inputs["labels"][0, 5:] = -100
    inputs["attention_mask"] = mask
    traced = check(module, inputs, logits=False)
    assert count(traced.mlir, "attention") == 2
    # Eager models add a finite number: a row without any other key is weighed all the same.
    finite = attention == "eager"
    assert (" causal" in traced.mlir) == (family != "bert" and not finite)
    assert (" bias %" if finite else " mask %") in traced.mlir
    assert "attention_mask" in traced.input_names


def test_packed_documents_become_segments():
    model, config, settings, _ = FAMILIES["llama"]
    inputs = token_inputs()
    inputs["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 4, 5]])
    traced = check(build(model, config, **settings), inputs)
    assert " segments %" in traced.mlir


def test_weights_that_are_tied_are_one_argument():
    model, config, settings, _ = FAMILIES["gpt2"]
    module = build(model, config, **settings)
    traced = check(module, token_inputs(), logits=False)
    first = traced.parameters[0]
    assert first.name == "transformer.wte.weight" and first.aliases == ("lm_head.weight",)
    names = [n for t in traced.parameters for n in (t.name, *t.aliases)]
    assert sorted(names) == sorted(n for n, _ in module.named_parameters(remove_duplicate=False))
    assert 'graph.aliases = ["lm_head.weight"]' in traced.mlir


def test_dropout_draws_with_numbers_of_its_own():
    model, config, settings, _ = FAMILIES["gpt2"]
    settings = {k: v for k, v in settings.items() if not k.endswith("pdrop")}
    import re

    import cleave.trace
    from trace_support import entry_text, verify
    traced = cleave.trace.trace(build(model, config, **settings), token_inputs())
    verify(traced)
    loss = entry_text(traced.mlir)
    ids = re.findall(r"\bid = (\d+)", loss) + re.findall(r"dropout_id = (\d+)", loss)
    assert len(ids) == len(set(ids)) == 7
    assert 'graph.role = "rng"' in loss
    assert "rng" not in entry_text(traced.mlir, "logits")


def test_meta_device_allocates_nothing():
    from transformers import GPT2Config, GPT2LMHeadModel

    import cleave.trace
    from trace_support import verify
    with torch.device("meta"):
        module = GPT2LMHeadModel(GPT2Config(n_layer=2))
    ids = torch.empty((1, 64), dtype=torch.int64, device="meta")
    traced = cleave.trace.trace(module, dict(input_ids=ids, labels=ids))
    verify(traced)
    assert all(t.tensor.is_meta for t in traced.tensors)
    assert count(traced.mlir, "attention") == 2 and " mask %" not in traced.mlir
