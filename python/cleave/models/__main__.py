# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The command `python -m cleave.models`, which writes a transformer as a Cleave module."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap

import torch

from . import FAMILIES, blocks_of_layer, example_inputs, size_of
from .presets import PRESETS, sizes
from .size import Size

_EPILOG = """examples:
  python -m cleave.models gpt --hidden 768 --heads 12 --layers 12 --seq 1024 \\
      --vocab 50257 -o gpt.mlir
  python -m cleave.models --preset llama-70b --seq 8192 -o llama.mlir

A preset has the sizes of a published model (docs/Presets.md); an option given beside it counts
instead. Presets:
{presets}

Without --weights none are allocated, and a few layers are traced for all of them.

exit status: 0, 1 for an error, 2 for a mistake in the arguments."""

_MIXTURES = "switch, mixtral, qwen3_moe, deepseek_v3, gpt_oss"
#: Options of one number each: the argument of `Size`, its type, and the help.
_NUMBERS = (
    ("hidden", int, "width (default: 768)"),
    ("heads", int, "query heads (default: 12)"),
    ("kv_heads", int, "key-value heads (default: as many as query heads)"),
    ("head_width", int, "channels of a head (default: hidden / heads; mamba2: 64); deepseek_v3: "
     "those without positions"),
    ("layers", int, "blocks; t5: of the encoder, and of the decoder (default: 12)"),
    ("ffn", int, "width of the feed-forward part, or of each expert (default: 4 * hidden, or with "
     "a gate 8/3 * hidden, up to a multiple of 256)"),
    ("seq", int, "positions (default: 1024)"),
    ("vocab", int, "tokens, or classes of vit (default: 50257; vit: 1000)"),
    ("dropout", float, "probability (default: 0.0)"),
    ("rope_base", float, "base of rotary positions (default: 10000; qwen3_moe 1e6, gpt_oss 1.5e5)"),
    ("rope_factor", float, "factor of YaRN, which stretches rotary positions; 1: none (default: "
     "1; gpt_oss 32)"),
    ("window", int, "gemma2, gpt_oss: keys that a query of every second block sees (default: "
     "gemma2 4096, gpt_oss 128)"),
    ("score_width", int, "gemma2: scores are divided by its square root (default: head width)"),
    ("experts", int, f"{_MIXTURES}: experts (default: 8)"),
    ("every", int, "switch, mixtral, qwen3_moe: blocks of which the last one has experts (default: "
     "1)"),
    ("choices", int, f"{_MIXTURES}: experts of a token (default: 2; switch: 1)"),
    ("capacity", float, f"{_MIXTURES}: places of an expert, in units of its equal share; 0: enough "
     "for all (default: 0; switch: 1.25)"),
    ("balance", float, f"{_MIXTURES}: weight of the loss that balances experts (default: switch, "
     "mixtral 0.01, qwen3_moe 0.001, deepseek_v3 0.0001, gpt_oss 0)"),
    ("dense", int, "deepseek_v3: leading blocks without experts (default: 3)"),
    ("expert_ffn", int, "deepseek_v3: width of an expert (default: such that those of a token are "
     "as wide as --ffn)"),
    ("shared", int, "deepseek_v3: experts that compute every token (default: 1)"),
    ("groups", int, "deepseek_v3: groups of experts (default: 1)"),
    ("chosen_groups", int, "deepseek_v3: groups in which a token chooses (default: 1)"),
    ("expert_scale", float, "deepseek_v3: factor of the experts' weights (default: 2.5)"),
    ("correction_rate", float, "deepseek_v3: by how much a step changes the correction of an "
     "expert's scores (default: 0; the paper's: 0.001)"),
    ("query_rank", int, "deepseek_v3: latent width of queries (default: 12 * head width)"),
    ("latent_rank", int, "deepseek_v3: latent width of keys and values (default: 4 * head width)"),
    ("rope_width", int, "deepseek_v3: channels of a head with positions (default: half the head "
     "width)"),
    ("value_width", int, "deepseek_v3: channels of a value (default: head width)"),
    ("state", int, "mamba2: channels of a state (default: 128)"),
    ("state_groups", int, "mamba2: groups of heads that read and write alike (default: 1)"),
    ("chunk", int, "mamba2: positions of a chunk of the scan (default: 256)"),
    ("taps", int, "mamba2: taps of the convolution (default: 4)"),
    ("image", int, "vit: side of an image (default: 224)"),
    ("patch", int, "vit: side of a patch (default: 16)"),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cleave.models", epilog=_EPILOG.format(presets=_listed()),
        description="Writes a transformer of any size as a Cleave module.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("family", nargs="?", choices=sorted(FAMILIES), help="the model, unless a preset names it")
    add("-o", "--output", metavar="FILE.mlir", required=True, help="the module to write; `-` is "
        "standard output")
    add("--preset", metavar="NAME", help="the sizes of a published model, listed below")
    add("--batch", type=int, default=1, help="samples of a step (default: %(default)s)")
    for name, kind, text in _NUMBERS:
        add("--" + name.replace("_", "-"), type=kind, help=text,
            metavar="N" if kind is int else "X")
    add("--tied", action=argparse.BooleanOptionalAction, help="whether the head's weight is the "
        "table of tokens (default: gpt, switch, gemma, gemma2, mamba2, t5 tied, others not)")
    add("--noisy", action="store_true", default=None, help="switch, mixtral, qwen3_moe: route with "
        "noise in training")
    add("--no-logits", action="store_true", help="leave out the entry @logits, whose memory a "
        "program that only trains does not need")
    add("--weights", metavar="FILE.safetensors", help="write initial weights too")
    add("--seed", type=int, default=0, help="of the initial weights (default: %(default)s)")
    options = parser.parse_args(arguments)
    given = {name: value for name in (*(row[0] for row in _NUMBERS), "tied", "noisy")
             if (value := getattr(options, name)) is not None}
    try:
        settings = sizes(options.preset) if options.preset is not None else {}
        family = PRESETS[options.preset].family if settings else options.family
        if family is None:
            raise ValueError("a family or --preset is needed")
        if options.family not in (None, family):
            raise ValueError(f"the preset '{options.preset}' is of the family {family}, not "
                             f"{options.family}")
        options.family = family
        settings = {"vocab": 1000 if family == "vit" else 50257, **settings, **given}
        size = size_of(family, settings)
    except ValueError as error:
        parser.error(str(error))
    if options.batch < 1:
        parser.error("--batch must be at least 1")
    if not 0 <= options.seed < 2**63:
        parser.error("--seed must be at least 0 and below 2^63")
    if options.weights == "-":
        parser.error("--weights is a file: standard output has the module, with -o -")
    if options.weights and os.path.realpath(options.weights) == os.path.realpath(options.output):
        parser.error(f"'{options.output}' cannot be both the module and its weights")
    return write(options, settings, size)


def _listed() -> str:
    """The names of presets, by lines."""
    return textwrap.fill(", ".join(PRESETS), 96, initial_indent="  ", subsequent_indent="  ",
                         break_on_hyphens=False)


def write(options: argparse.Namespace, settings: dict, size: Size) -> int:
    from ..trace import TraceError, UnsupportedError, trace
    from ..trace.repeat import TRACED, Repeated
    from ..trace.weights import check_writable, save_module, save_weights

    device = "cpu" if options.weights else "meta"
    try:
        if options.output != "-":
            check_writable(options.output)
        if options.weights:
            check_writable(options.weights)
        torch.manual_seed(options.seed)
        # Weights are those of all layers; without them, a few layers are traced for all.
        blocks, leading = blocks_of_layer(options.family, size)
        whole = (size.layers - leading) // blocks
        layers = whole if options.weights else min(whole, TRACED)
        try:
            with torch.device(device):
                module = FAMILIES[options.family](**{
                    **settings, "layers": size.layers if layers == whole
                    else leading + layers * blocks})
        except RuntimeError as error:
            # The sizes are above the limits of tensors, or of this machine's memory.
            raise ValueError(f"a model of this size cannot be built: {error}") from error
        repeated = [Repeated(name, whole) for name in module.LAYERS] if layers < whole else []
        traced = trace(module, example_inputs(options.family, options.batch, size, device),
                       logits=not options.no_logits, repeated=repeated)
        if options.weights:
            save_weights(traced, options.weights)
        save_module(traced, options.output)
    except (TraceError, UnsupportedError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    count = sum(t.tensor.numel() for t in traced.parameters)
    print(f"{options.output}: {len(traced.parameters)} parameters of {count:,} elements; inputs "
          + ", ".join(f"{n} {list(s)}" for n, (s, _) in traced.input_types.items()),
          file=sys.stderr if options.output == "-" else sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
