# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models of which the memory of a rank is compared with its closed form (lib/ClosedForms).

Letters: h width, i inner width, a heads, g heads of keys and values, E experts, k choices of a
token, L layers, V tokens.
"""

import dataclasses

import torch
import transformers


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    family: str
    h: int = 64
    i: int = 256
    a: int = 4
    g: int = 4
    L: int = 6
    V: int = 512
    E: int = 0
    k: int = 0

    def build(self, s):
        """The model, with random weights."""
        torch.manual_seed(0)
        if self.family == "gpt2":
            return transformers.GPT2LMHeadModel(transformers.GPT2Config(
                n_embd=self.h, n_layer=self.L, n_head=self.a, n_inner=self.i,
                vocab_size=self.V, n_positions=s, bos_token_id=1, eos_token_id=2,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
        sizes = dict(hidden_size=self.h, num_hidden_layers=self.L, num_attention_heads=self.a,
                     num_key_value_heads=self.g, intermediate_size=self.i, vocab_size=self.V,
                     max_position_embeddings=s, bos_token_id=1, eos_token_id=2,
                     pad_token_id=None)
        if not self.E:
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(
            **sizes, num_local_experts=self.E, num_experts_per_tok=self.k,
            sliding_window=None, experts_implementation="eager"))


SHAPES = {
    "gpt2": Shape("gpt2"),
    "llama": Shape("llama", i=176, g=2),
    "mixtral": Shape("mixtral", i=64, g=2, L=4, E=4, k=2),
}
