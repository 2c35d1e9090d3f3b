# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mixtures of experts: modules, and cases of training them."""

import types

import torch

import cleave
import cleave.models
import cleave.trace
from family_models import GROUPED, SMALL, build
from training_support import Case, token_batches

SWITCH = dict(vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2,
              num_heads=4, num_experts=4, expert_capacity=3, num_sparse_encoder_layers=1,
              num_sparse_decoder_layers=1, decoder_start_token_id=0, pad_token_id=0,
              dropout_rate=0.0, router_jitter_noise=0.0)


class Switch(torch.nn.Module):
    """A Switch Transformer, which needs masks, of ids and labels."""

    def __init__(self, **settings):
        super().__init__()
        self.model = build("SwitchTransformersForConditionalGeneration",
                           "SwitchTransformersConfig", **{**SWITCH, **settings})
        self.config = self.model.config

    def forward(self, input_ids, labels, use_cache=False):
        ones = torch.ones_like(input_ids)
        return self.model(input_ids=input_ids, attention_mask=ones, decoder_attention_mask=ones,
                          labels=labels, use_cache=use_cache)


def switch(batch=4, **settings):
    return Case(lambda: Switch(**settings).train(), token_batches(batch=batch),
                key=("switch", repr(settings)))


class Own(torch.nn.Module):
    """A decoder of this package with experts."""

    def __init__(self, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.model = cleave.models.switch(hidden=32, heads=4, layers=2, seq=8, vocab=96, ffn=64,
                                          experts=4, balance=0.1, **settings)
        self.config = types.SimpleNamespace()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)

    def forward(self, input_ids, labels):
        loss, logits = self.model(input_ids, labels)
        return types.SimpleNamespace(loss=loss, logits=logits)


def own(batch=4, **settings):
    return Case(lambda: Own(**settings).train(), token_batches(batch=batch),
                key=("own", repr(settings)))


_CHOICES = dict(num_experts_per_tok=2, moe_intermediate_size=16)
#: Dropless mixtures of the library: class, configuration, its settings.
LIBRARY = {
    "mixtral": ("MixtralForCausalLM", "MixtralConfig",
                dict(GROUPED, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig",
                  dict(GROUPED, **_CHOICES, head_dim=8, num_experts=6, norm_topk_prob=True)),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig",
              dict(SMALL, num_experts=8, num_experts_per_tok=3)),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config",
                    dict(SMALL, **_CHOICES, n_routed_experts=8, n_group=2, topk_group=1,
                         n_shared_experts=1, first_k_dense_replace=1, q_lora_rank=16,
                         kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
                         num_key_value_heads=4)),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig",
                dict(GROUPED, num_local_experts=4, num_experts_per_tok=2, head_dim=8,
                     sliding_window=4)),
    "glm4_moe": ("Glm4MoeForCausalLM", "Glm4MoeConfig",
                 dict(GROUPED, **_CHOICES, n_routed_experts=4, n_shared_experts=1, head_dim=8,
                      first_k_dense_replace=1)),
}


def library(name, batch=4, **settings):
    """A mixture of the transformers library that drops no token."""
    model, config, own = LIBRARY[name]
    # Its default has no f64.
    own = {"experts_implementation": "eager", **own}
    return Case(lambda: build(model, config, **{**own, **settings}).train(),
                token_batches(batch=batch), key=("library", name, repr(settings)))
