# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pairs of recipes, and models for them."""

from expert_recipes import MODELS as EXPERT_MODELS
from recipe_pairs import folded_pairs, legal_pairs, shared_pairs
from recipe_runs import MODELS
from training_support import ALL

#: Eight heads, where there are four.
HEADS = {"gpt2": ("n_head", 8), "bert": ("num_attention_heads", 8)}
PAIRS = [*legal_pairs(), *shared_pairs(), *folded_pairs()]


def models_of(pair, mesh):
    """Those that a pair is for, in turn. Mixtral goes beside all."""
    for name in EXPERT_MODELS if "expert" in pair.names else [*MODELS] + ["mixtral"] * ALL:
        # LLaMA and Mixtral have two heads of keys and values here.
        if not (name in ("llama", "mixtral") and pair.heads(mesh) > 2
                or pair.heads(mesh) > 4 and name not in HEADS):
            yield name
