# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Sizes of published models, by name."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Preset:
    """The family of a published model, its size, and what is published of its parameters."""

    family: str
    #: Arguments of `Size` that differ from the family's defaults.
    size: dict
    #: All parameters of the family's model of this size; a tied one counts once.
    parameters: int
    #: The parameters, and those that a token uses, as the source rounds them.
    published: str
    #: Where size and published figures are from.
    source: str


_MEGATRON = "arXiv 2205.05198, table 3; 1T also arXiv 2104.04473, table 1"
_GPT2 = "config.json and model card of openai-community"
_LLAMA = "arXiv 2302.13971, table 2; config.json"
_LLAMA2 = "arXiv 2307.09288; config.json of meta-llama"
_LLAMA3 = "arXiv 2407.21783, table 3"
_QWEN3 = "arXiv 2505.09388, table 2; config.json of Qwen"
_GPT_OSS = "arXiv 2508.10925, table 1; config.json of openai"
_GEMMA = "arXiv 2403.08295, table 1; config.json of google"
_GEMMA2 = "arXiv 2408.00118, table 1; config.json of google"
_MAMBA2 = "arXiv 2405.21060; config.json of state-spaces"


def _gpt(hidden, heads, layers, parameters, published, source=_MEGATRON, vocab=51200, seq=2048):
    return Preset("gpt", dict(hidden=hidden, heads=heads, layers=layers, vocab=vocab, seq=seq),
                  parameters, published, source)


def _llama(hidden, heads, layers, ffn, parameters, published, source, **more):
    return Preset("llama", dict(hidden=hidden, heads=heads, layers=layers, ffn=ffn,
                                **{"vocab": 32000, "seq": 2048, **more}),
                  parameters, published, source)


def _mixtral(hidden, heads, layers, ffn, seq, parameters, published, source):
    return Preset("mixtral", dict(hidden=hidden, heads=heads, kv_heads=8, layers=layers, ffn=ffn,
                                  seq=seq, vocab=32000, experts=8, choices=2, rope_base=1e6),
                  parameters, published, source)


def _qwen3(hidden, heads, layers, ffn, parameters, published):
    return Preset("qwen3_moe", dict(hidden=hidden, heads=heads, kv_heads=4, head_width=128,
                                    layers=layers, ffn=ffn, vocab=151936, seq=4096, experts=128,
                                    choices=8), parameters, published, _QWEN3)


def _gpt_oss(layers, experts, parameters, published):
    return Preset("gpt_oss", dict(hidden=2880, heads=64, kv_heads=8, head_width=64, layers=layers,
                                  ffn=2880, vocab=201088, seq=4096, experts=experts, choices=4),
                  parameters, published, _GPT_OSS)


def _gemma(family, hidden, heads, kv_heads, layers, ffn, parameters, published, **more):
    return Preset(family, dict(hidden=hidden, heads=heads, kv_heads=kv_heads, layers=layers,
                               ffn=ffn, vocab=256000, seq=8192, **{"head_width": 256, **more}),
                  parameters, published, _GEMMA2 if family == "gemma2" else _GEMMA)


def _mamba2(hidden, layers, parameters, published, source=_MAMBA2, vocab=50288, seq=2048, **more):
    return Preset("mamba2", dict(hidden=hidden, layers=layers, vocab=vocab, seq=seq, **more),
                  parameters, published, source)


PRESETS = {
    "gpt2": _gpt(768, 12, 12, 124_439_808, "124M", _GPT2, 50257, 1024),
    "gpt2-xl": _gpt(1600, 25, 48, 1_557_611_200, "1558M", _GPT2, 50257, 1024),
    "gpt-22b": _gpt(6144, 64, 48, 22_074_273_792, "22B"),
    "gpt-175b": _gpt(12288, 96, 96, 174_615_846_912, "175B"),
    "gpt-530b": _gpt(20480, 128, 105, 529_600_819_200, "530B"),
    "gpt-1t": _gpt(25600, 160, 128, 1_008_038_758_400, "1T"),
    "llama-7b": _llama(4096, 32, 32, 11008, 6_738_415_616, "6.7B", _LLAMA),
    "llama-13b": _llama(5120, 40, 40, 13824, 13_015_864_320, "13.0B", _LLAMA),
    "llama-65b": _llama(8192, 64, 80, 22016, 65_285_660_672, "65.2B", _LLAMA),
    "llama-70b": _llama(8192, 64, 80, 28672, 68_976_648_192, "70B", _LLAMA2, kv_heads=8,
                        seq=4096),
    "llama-3-8b": _llama(4096, 32, 32, 14336, 8_030_261_248, "8B", _LLAMA3, kv_heads=8, seq=8192,
                         vocab=128256, rope_base=500000.0),
    "llama-3-70b": _llama(8192, 64, 80, 28672, 70_553_706_496, "70B", _LLAMA3, kv_heads=8,
                          seq=8192, vocab=128256, rope_base=500000.0),
    "llama-3-405b": _llama(16384, 128, 126, 53248, 405_853_388_800, "405B", _LLAMA3, kv_heads=8,
                           seq=8192, vocab=128256, rope_base=500000.0),
    "mixtral-8x7b": _mixtral(4096, 32, 32, 14336, 8192, 46_702_792_704, "47B, 13B of a token",
                             "arXiv 2401.04088, table 1; config.json of mistralai"),
    "mixtral-8x22b": _mixtral(6144, 48, 56, 16384, 8192, 140_620_634_112, "141B, 39B of a token",
                              "config.json of mistralai"),
    "qwen3-30b-a3b": _qwen3(2048, 32, 48, 768, 30_532_122_624, "30.5B, 3.3B of a token"),
    "qwen3-235b-a22b": _qwen3(4096, 64, 94, 1536, 235_093_634_560, "235B, 22B of a token"),
    "deepseek-v3": Preset("deepseek_v3", dict(
        hidden=7168, heads=128, head_width=128, value_width=128, rope_width=64, query_rank=1536,
        latent_rank=512, layers=61, dense=3, ffn=18432, vocab=129280, seq=4096, experts=256,
        expert_ffn=2048, choices=8, shared=1, groups=8, chosen_groups=4), 671_026_404_352,
        "671B, 37B of a token", "arXiv 2412.19437, section 4.2; config.json of deepseek-ai"),
    "gpt-oss-20b": _gpt_oss(24, 32, 20_914_757_184, "20.9B, 3.6B of a token"),
    "gpt-oss-120b": _gpt_oss(36, 128, 116_829_156_672, "116.8B, 5.1B of a token"),
    "gemma-2b": _gemma("gemma", 2048, 8, 1, 18, 16384, 2_506_172_416, "2.5B"),
    "gemma-7b": _gemma("gemma", 3072, 16, 16, 28, 24576, 8_537_680_896, "8.5B"),
    "gemma2-2b": _gemma("gemma2", 2304, 8, 4, 26, 9216, 2_614_341_888, "2.6B"),
    "gemma2-9b": _gemma("gemma2", 3584, 16, 8, 42, 14336, 9_241_705_984, "9.2B"),
    "gemma2-27b": _gemma("gemma2", 4608, 32, 16, 46, 36864, 27_227_128_320, "27.2B",
                         head_width=128, score_width=144),
    "mamba2-130m": _mamba2(768, 24, 128_989_632, "130M"),
    "mamba2-2.7b": _mamba2(2560, 64, 2_702_599_680, "2.7B"),
    "mamba-codestral-7b": _mamba2(
        4096, 64, 7_285_403_648, "7.3B", "config.json of mistralai", 32768, 4096, tied=False,
        state_groups=8),
}


def sizes(name: str) -> dict:
    """The arguments of a preset's family; an unknown name is a ValueError that lists them."""
    if name not in PRESETS:
        raise ValueError(f"no preset is named '{name}'; there are {', '.join(PRESETS)}")
    return dict(PRESETS[name].size)
