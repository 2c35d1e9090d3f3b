# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The command `python -m cleave.trace`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import warnings

import torch

from . import Groups, TraceError, UnsupportedError, trace
from .locations import describe
from .weights import check_writable, save_module, save_weights

_HELP = """Traces a PyTorch model into a Cleave module.

SOURCE is FILE.py:FUNCTION or MODULE:FUNCTION. The function takes no arguments
and returns (module, example_inputs) or (module, example_inputs, loss_fn):
a torch.nn.Module, one example of each tensor of a training step (a tuple, or a
dict by name), and, if the model returns logits, loss_fn(output, *targets).
"""

_EPILOG = """example:
  python -m cleave.trace models.py:build -o gpt2.mlir

writes gpt2.mlir (the entries @loss and @logits) and gpt2.safetensors
(parameters and buffers; not for a module on the meta device).

exit status: 0, 1 for an error in the model or a file, 2 for a mistake in the
arguments. A file is written whole or not at all."""


class CommandError(Exception):
    """An error whose text is printed after `error: `, such as a missing file."""


def load(source: str):
    """Returns the function that `source` names. Raises CommandError if it cannot be loaded."""
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name:
        raise CommandError(f"'{source}' is not FILE.py:FUNCTION or MODULE:FUNCTION")
    try:
        if place.endswith(".py"):
            if not os.path.isfile(place):
                raise CommandError(f"no file '{place}'")
            sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
            title = os.path.splitext(os.path.basename(place))[0]
            spec = importlib.util.spec_from_file_location(title, place)
            module = importlib.util.module_from_spec(spec)
            sys.modules[title] = module
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(place)
    except CommandError:
        raise
    except (Exception, SystemExit) as error:
        raise CommandError(f"cannot load {place}: {_describe(error, place)}") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise CommandError(f"{place} has no function '{name}'")
    return function


def _describe(error: BaseException, place: str) -> str:
    return describe(error, os.path.abspath(place) if place.endswith(".py") else None)


def call(function, source: str):
    """Calls `function`; returns (module, example_inputs, loss_fn or None). Raises CommandError if
    it fails or returns something else."""
    try:
        result = function()
    except (Exception, SystemExit) as error:
        place = source.rpartition(":")[0]
        raise CommandError(f"{source} failed: {_describe(error, place)}") from None
    if not isinstance(result, tuple) or len(result) not in (2, 3) \
            or not isinstance(result[0], torch.nn.Module):
        raise CommandError(f"{source} must return (module, example_inputs) or (module, "
                           "example_inputs, loss_fn)")
    return (*result, None)[:3]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cleave.trace", description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("source", metavar="SOURCE", help="where the model is built")
    parser.add_argument("-o", "--output", metavar="FILE.mlir", required=True,
                        help="the module to write; `-` is standard output, with --weights or "
                             "--no-weights")
    parser.add_argument("--weights", metavar="FILE.safetensors",
                        help="the tensors to write (default: beside the module, with the "
                             "extension .safetensors)")
    parser.add_argument("--micro-batches", metavar="N", type=int, default=1,
                        help="batch normalisation has separate statistics in each of N "
                             "micro-batches (default: 1, the whole batch)")
    parser.add_argument("--no-weights", action="store_true", help="write only the module")
    options = parser.parse_args(arguments)
    if not options.output or options.weights == "":
        parser.error("the name of a file is empty")
    if options.weights and options.no_weights:
        parser.error("--weights and --no-weights exclude each other")
    if options.weights == "-" or options.output == "-" and not (options.weights or
                                                                 options.no_weights):
        parser.error("standard output takes the module alone: with -o - give --weights FILE, or "
                     "--no-weights")
    if options.micro_batches < 1:
        parser.error("--micro-batches must be at least 1")
    if ":" not in options.source:
        parser.error(f"SOURCE '{options.source}' must be FILE.py:FUNCTION or MODULE:FUNCTION")
    weights = options.weights or os.path.splitext(options.output)[0] + ".safetensors"
    if not options.no_weights and os.path.realpath(weights) == os.path.realpath(options.output):
        parser.error(f"'{options.output}' cannot be both the module and its weights")
    try:
        # Paths are checked before the trace, which may take long.
        if options.output != "-":
            check_writable(options.output)
        if not options.no_weights:
            check_writable(weights)
        run(options, weights)
    except (CommandError, TraceError, UnsupportedError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace, weights: str) -> None:
    module, inputs, loss_fn = call(load(options.source), options.source)
    with warnings.catch_warnings(record=True) as caught:
        traced = trace(module, inputs, loss_fn, groups=Groups(options.micro_batches))
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    on_meta = any(t.tensor.is_meta for t in traced.tensors)
    if on_meta and options.weights:
        raise CommandError("the module is on the meta device: there are no weights to write")
    with_weights = not (options.no_weights or on_meta)
    if with_weights:
        save_weights(traced, weights)
    save_module(traced, options.output)
    count = sum(t.tensor.numel() for t in traced.parameters)
    lines = [f"{options.output}: entries {', '.join(traced.entries)}; {len(traced.parameters)} "
             f"parameters of {count:,} elements; inputs " +
             ", ".join(f"{n} {list(s)}" for n, (s, _) in traced.input_types.items())]
    lines += [f"the model asks for 16 bits, and is traced in f32: compile it with "
              f"--precision {precision}" for precision in traced.precisions]
    if with_weights:
        lines.append(f"{weights}: {len(traced.tensors)} tensors")
    elif on_meta:
        lines.append("the module is on the meta device: no weights were written")
    print("\n".join(lines), file=sys.stderr if options.output == "-" else sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
