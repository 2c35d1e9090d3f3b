# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models of the transformers library, by family, from configs with random weights."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

transformers.logging.set_verbosity_error()

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
             vocab_size=96, max_position_embeddings=32)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
GROUPED = dict(SMALL, num_key_value_heads=2)


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
                dict(attention=2, rms_norm=5, rope=4, silu=2, top_k=2, scatter_add=0, gather=1,
                     grouped_linear=4)),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", dict(SMALL, embedding_size=32, **NO_DROPOUT),
                dict(attention=2)),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig",
                   dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=96,
                        max_position_embeddings=32, dropout=0.0, attention_dropout=0.0),
                   dict(attention=2)),
}
