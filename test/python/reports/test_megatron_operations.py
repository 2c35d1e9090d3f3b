# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Plans of published mixtures have their parameters, and the operations that Megatron-Core counts
(`num_floating_point_operations`, megatron/training/training.py)."""

import pytest

from cleave.models import blocks_of_layer, size_of
from cleave.models.__main__ import main as write_model
from cleave.models.presets import PRESETS
from cost_forms import cost

TOKENS = 4096
#: Parameters in all, and of a token, as published.
PUBLISHED = {"qwen3-235b-a22b": (235.1e9, 22e9), "deepseek-v3": (671e9, 37e9)}


def shape(name):
    preset = PRESETS[name]
    return size_of(preset.family, preset.size)


def megatron(m, counted=1.0):
    """Operations of a step for one token: 2 of each multiply-add, 3 matmuls of each weight, and the
    half of scores that a causal mask leaves. `counted`: 1 for all of a weight, 0 for none."""
    h, a, s, layers = m.hidden, m.heads, TOKENS, m.layers
    if m.latent_rank:
        # Norms of both ranks count as one more column.
        key = m.head_width + m.rope_width
        weights = m.query_rank * (h + a * key + 1) + h * m.rope_width + a * m.value_width * h \
            + m.latent_rank * (h + a * (m.head_width + m.value_width) + 1)
        scores = s * a * (key + m.value_width) / 2
    else:
        weights = 2 * h * h * (1 + m.kv_heads / a) * (a * m.head_width / h)
        scores = s * a * m.head_width
    dense = m.dense or 0
    shared = m.shared if m.latent_rank else 0
    experts = m.expert_ffn or m.ffn
    inner = 3 * h * (m.ffn * dense + experts * (m.choices + shared) * (layers - dense))
    return 6 * (counted * (layers * weights + inner + h * m.vocab) + layers * scores)


def beside_megatron(m):
    """Operations for one token that Megatron's count leaves out: routers, and the scores that backward
    computes again. Cleave counts values as wide as queries."""
    key = m.head_width + (m.rope_width or 0)
    values = m.value_width or key
    scores = TOKENS * m.heads * key + 3 * TOKENS * m.heads * (key - values)
    return 6 * m.hidden * m.experts * (m.layers - (m.dense or 0)) + m.layers * scores


def planned(name, layers, folder):
    path = folder / f"{name}-{layers}.mlir"
    assert write_model(["--preset", name, "--layers", str(layers), "--seq", str(TOKENS), "--batch",
                        "1", "--balance", "0", "--no-logits", "-o", str(path)]) == 0
    found = cost(path, "dp=1", "")
    return found["operations"]["plan"] / TOKENS, found["parameter_bytes"]["plan"] / 4


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_operations(tmp_path, name):
    """Of two plans of few layers, which differ by one layer, those of all layers follow."""
    m = shape(name)
    _, leading = blocks_of_layer(PRESETS[name].family, m)
    one, two = (planned(name, leading + n, tmp_path) for n in (1, 2))
    operations, parameters = (a + (m.layers - leading - 1) * (b - a) for a, b in zip(one, two))
    whole, used = PUBLISHED[name]
    # A plan's arena aligns each tensor.
    assert parameters == pytest.approx(PRESETS[name].parameters, rel=1e-5)
    assert parameters == pytest.approx(whole, rel=1e-3)
    # Each weight of a token takes 6 operations, and the table of tokens none.
    weights = (megatron(m) - megatron(m, counted=0)) / 6 + m.hidden * m.vocab
    assert weights == pytest.approx(used, rel=0.02)
    assert operations == pytest.approx(megatron(m) + beside_megatron(m), rel=5e-3)
    assert megatron(m) < operations < 1.06 * megatron(m)
