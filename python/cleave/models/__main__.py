# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The command `python -m cleave.models`, which writes a transformer as a Cleave module."""

from __future__ import annotations

import argparse
import os
import sys

import torch

from . import FAMILIES, blocks_of_layer, example_inputs
from .size import Size

_EPILOG = """example:
  python -m cleave.models gpt --hidden 768 --heads 12 --layers 12 --seq 1024 \\
      --vocab 50257 -o gpt.mlir

Without --weights none are allocated, and a few layers are traced for all of them.

exit status: 0, 1 for an error, 2 for a mistake in the arguments."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cleave.models", epilog=_EPILOG,
        description="Writes a transformer of any size as a Cleave module.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("family", choices=sorted(FAMILIES))
    add("-o", "--output", metavar="FILE.mlir", required=True, help="the module to write; `-` is "
        "standard output")
    add("--batch", type=int, default=1, help="samples of a step (default: %(default)s)")
    add("--hidden", type=int, default=768, help="width (default: %(default)s)")
    add("--heads", type=int, default=12, help="query heads (default: %(default)s)")
    add("--kv-heads", type=int, help="key-value heads (default: as many as query heads)")
    add("--layers", type=int, default=12, help="blocks; t5: of the encoder, and of the decoder "
        "(default: %(default)s)")
    add("--ffn", type=int, help="width of the feed-forward part (default: 4 * hidden; llama, "
        "mixtral: 8/3 * hidden, up to a multiple of 256)")
    add("--seq", type=int, default=1024, help="positions (default: %(default)s)")
    add("--vocab", type=int, help="tokens, or classes of vit (default: 50257; vit: 1000)")
    add("--dropout", type=float, default=0.0, help="probability (default: %(default)s)")
    add("--experts", type=int, default=8, help="switch, mixtral: experts (default: %(default)s)")
    add("--every", type=int, default=1, help="switch, mixtral: blocks of which the last one has "
        "experts (default: %(default)s)")
    add("--choices", type=int, help="switch, mixtral: experts of a token (default: switch 1, "
        "mixtral 2)")
    add("--capacity", type=float, help="switch, mixtral: places of an expert, in units of its "
        "equal share; 0: enough for all (default: switch 1.25, mixtral 0)")
    add("--noisy", action="store_true", help="switch, mixtral: route with noise in training")
    add("--image", type=int, default=224, help="vit: side of an image (default: %(default)s)")
    add("--patch", type=int, default=16, help="vit: side of a patch (default: %(default)s)")
    add("--no-logits", action="store_true", help="leave out the entry @logits, whose memory a "
        "program that only trains does not need")
    add("--weights", metavar="FILE.safetensors", help="write initial weights too")
    add("--seed", type=int, default=0, help="of the initial weights (default: %(default)s)")
    options = parser.parse_args(arguments)
    vocab = options.vocab
    if vocab is None:
        vocab = 1000 if options.family == "vit" else 50257
    settings = dict(hidden=options.hidden, heads=options.heads, layers=options.layers,
                    seq=options.seq, vocab=vocab, kv_heads=options.kv_heads, ffn=options.ffn,
                    dropout=options.dropout, experts=options.experts, every=options.every,
                    choices=options.choices, capacity=options.capacity, noisy=options.noisy,
                    image=options.image, patch=options.patch)
    try:
        size = Size(**settings)
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
        blocks = blocks_of_layer(options.family, size)
        whole = options.layers // blocks
        layers = whole if options.weights else min(whole, TRACED)
        try:
            with torch.device(device):
                module = FAMILIES[options.family](**{**settings, "layers": layers * blocks})
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
