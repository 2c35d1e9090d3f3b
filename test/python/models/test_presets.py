# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Presets of `cleave.models`: their parameters are as many as the transformers library's models
have, and as published."""

import pathlib
import re

import pytest
import torch

transformers = pytest.importorskip("transformers")

import cleave.models  # noqa: E402
import cleave.models.__main__  # noqa: E402
from cleave.models import FAMILIES, blocks_of_layer, size_of  # noqa: E402
from cleave.models.presets import PRESETS  # noqa: E402

transformers.logging.set_verbosity_error()

PAGE = pathlib.Path(__file__).parents[3] / "docs/Presets.md"


def judge(family, s, layers):
    """The library's model of a size, with so many layers."""
    common = dict(hidden_size=s.hidden, num_hidden_layers=layers, vocab_size=s.vocab)
    attention = dict(common, num_attention_heads=s.heads, num_key_value_heads=s.kv_heads,
                     intermediate_size=s.ffn)
    own = {
        "gpt": ("GPT2LMHeadModel", "GPT2Config", dict(
            n_embd=s.hidden, n_layer=layers, n_head=s.heads, vocab_size=s.vocab,
            n_positions=s.seq)),
        "llama": ("LlamaForCausalLM", "LlamaConfig", attention),
        "mixtral": ("MixtralForCausalLM", "MixtralConfig", dict(
            attention, num_local_experts=s.experts)),
        "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", dict(
            attention, head_dim=s.head_width, num_experts=s.experts, moe_intermediate_size=s.ffn)),
        "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", dict(
            attention, first_k_dense_replace=s.dense, n_routed_experts=s.experts,
            moe_intermediate_size=s.expert_ffn)),
        "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", dict(
            attention, head_dim=s.head_width, num_local_experts=s.experts)),
        "gemma": ("GemmaForCausalLM", "GemmaConfig", dict(attention, head_dim=s.head_width)),
        "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", dict(attention, head_dim=s.head_width)),
        "mamba2": ("Mamba2ForCausalLM", "Mamba2Config", dict(
            common, num_heads=2 * s.hidden // (s.head_width or 1), head_dim=s.head_width,
            n_groups=s.state_groups, tie_word_embeddings=s.tied is not False)),
    }
    model, config, settings = own[family]
    return getattr(transformers, model)(getattr(transformers, config)(**settings))


def count(build, size, blocks, leading):
    """The parameters of a model whose layers are alike, of two models with few of them."""
    def of(layers):
        with torch.device("meta"):
            return sum(p.numel() for p in build(leading + layers * blocks).parameters())

    one, two = of(1), of(2)
    return one + ((size.layers - leading) // blocks - 1) * (two - one)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters(name):
    preset = PRESETS[name]
    size = size_of(preset.family, preset.size)
    layers = size, *blocks_of_layer(preset.family, size)
    assert count(lambda n: FAMILIES[preset.family](**{**preset.size, "layers": n}),
                 *layers) == preset.parameters
    assert count(lambda n: judge(preset.family, size, n), *layers) == preset.parameters


#: Presets of which the parameters of a token are published without the table of tokens.
WITHOUT_TABLE = ("gpt-oss-20b", "gpt-oss-120b")


@pytest.mark.parametrize("name", PRESETS)
def test_published_figures(name):
    """The counts are those published, which some sources cut and some round: 2 % covers both."""
    preset = PRESETS[name]
    figures = [float(number) * dict(M=1e6, B=1e9, T=1e12)[unit]
               for number, unit in re.findall(r"([\d.]+)([MBT])", preset.published)]
    size = size_of(preset.family, preset.size)
    with torch.device("meta"):
        _, leading = blocks_of_layer(preset.family, size)
        few = FAMILIES[preset.family](**{**preset.size, "layers": leading + 2})
    sparse = sum(p.numel() for n, p in few.blocks.named_parameters()
                 if n.rpartition(".")[2].removesuffix("_bias") in ("gate", "up", "down")) // 2
    left = sparse * (size.layers - leading) // size.experts * (size.experts - (size.choices or 1))
    used = preset.parameters - left
    if name in WITHOUT_TABLE:
        used -= few.tokens.weight.numel()
    assert len(figures) == (2 if left else 1)
    for found, figure in zip((preset.parameters, used), figures):
        assert abs(found / figure - 1) < 0.02


def test_page_lists_every_preset():
    text = PAGE.read_text()
    for name, preset in PRESETS.items():
        assert f"| `{name}` | `{preset.family}` | {preset.parameters:,} | {preset.published} | " \
            f"{preset.source} |" in text
    assert all(f"`{family}`" in text for family in FAMILIES)


def test_command(tmp_path, capsys):
    path = tmp_path / "m.mlir"
    assert cleave.models.__main__.main(
        ["--preset", "gpt2", "--seq", "8", "--no-logits", "-o", str(path)]) == 0
    # Fewer learned positions.
    assert f"parameters of {124439808 - (1024 - 8) * 768:,} elements" in capsys.readouterr().out
    text = path.read_text()
    assert "blocks.11." in text and "blocks.12." not in text


REFUSED = {
    "no preset is named 'gpt-2t'; there are gpt2, ": ["--preset", "gpt-2t"],
    "the preset 'gpt2' is of the family gpt, not llama": ["llama", "--preset", "gpt2"],
    "a family or --preset is needed": [],
    "choices (9) must not exceed experts (8)": ["gpt_oss", "--choices", "9"],
    "hidden (10) must be a multiple of heads (12)": ["llama", "--hidden", "10"],
    "experts (8) must be a multiple of groups (3)": ["deepseek_v3", "--groups", "3"],
}
FAILED = {
    "layers (13) must be a multiple of 2": ["gemma2", "--layers", "13"],
    "dense (3) must be below layers (3)": ["deepseek_v3", "--layers", "3"],
    "choices (5) must not exceed the experts of 1 of 2 groups of 8": [
        "deepseek_v3", "--groups", "2", "--choices", "5"],
    "2 * hidden (1536) must be a multiple of head_width * state_groups (448)": [
        "mamba2", "--state-groups", "7"],
    "15 channels of a head have positions": ["llama", "--head-width", "15"],
}


@pytest.mark.parametrize("message", [*REFUSED, *FAILED])
def test_mistakes(message, tmp_path, capsys):
    arguments = [*(REFUSED.get(message) or FAILED.get(message, [])), "-o", str(tmp_path / "m")]
    if message in REFUSED:
        with pytest.raises(SystemExit) as stopped:
            cleave.models.__main__.main(arguments)
        assert stopped.value.code == 2
    else:
        assert cleave.models.__main__.main(arguments) == 1
    assert message in capsys.readouterr().err
