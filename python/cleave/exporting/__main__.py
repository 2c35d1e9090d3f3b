# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The command `python -m cleave.export`, which writes weights that `cleave-run` has trained in a
smaller form, and says what that costs on evaluation data."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Iterator, Mapping

import torch

from ..runtime.native import Runs, TensorFacts
from ..runtime.program import Program
from ..runtime.results import StepError
from ..runtime.state import logical_shape
from ..trace.weights import check_writable
from . import KINDS, export_model

if TYPE_CHECKING:
    from .. import _cleave, _runtime

#: The inputs of a batch, and the number of its rows that count.
Batch = tuple[dict[str, torch.Tensor], int]

_EPILOG = """example:
  python -m cleave.export gpt.mlir --weights checkpoints/step-1000 --kind int8 \\
      --artifact gpt.so --eval-data valid.bin -o gpt.int8.safetensors

The module says which parameters are weights of contractions. The losses of --eval-data are those
of the artifact, by the rules of cleave-run --eval-data; without --artifact, the module is compiled
for this process, on the CPU and in f32. With --artifact they include what it was compiled with,
such as --quantize or --precision.

exit status: 0, 1 for an error, 2 for a mistake in the arguments. A file is written whole or not at
all."""

#: The values of `cleave-run --token-dtype`.
_TOKENS = ("u8", "u16", "u32", "i32", "i64")


class ExportError(Exception):
    """An error whose text is printed after `error: `."""


class _Artifact:
    """A file that `cleave-compile` wrote, for a `Program`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def session(self, *, timing: bool, processes: _cleave.Processes | None,
                like: object) -> _runtime.Session:
        from .. import _runtime

        return _runtime.open(self.path, timing=timing)


class _OfProgram:
    """A program without a module of PyTorch, as `export_model` takes it."""

    processes = None

    def __init__(self, program: Program[Runs], weights: dict[str, list[int]]) -> None:
        self.program, self._weights = program, weights

    def _own(self) -> Iterator[tuple[str, TensorFacts]]:
        for name, facts in self.program.tensors.items():
            if facts["role"] in ("parameter", "buffer"):
                yield name, facts

    def state(self) -> dict[str, torch.Tensor]:
        known: dict[str, torch.Tensor] = {}
        for name, facts in self._own():
            value = self.program.tensor(name).reshape(logical_shape(facts))
            known.update({other: value for other in (name, *facts["aliases"])})
        return known

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self.program.set_all({name: state[name] for name, _ in self._own()})

    def weights(self) -> dict[str, list[int]]:
        return self._weights

    def _call(self, entry: str, batch: Batch, outputs: list[str]) -> dict[str, torch.Tensor]:
        values, _ = batch
        result = self.program.session.call(
            entry, [self.program.data(name, value) for name, value in values.items()], {},
            [name for name in outputs if name in self.program.tensors], None)
        if isinstance(result, str):
            raise StepError(f"evaluation: {result}")
        return {name: self.program.typed(name, value) for name, value in result[0].items()}

    def evaluate(self, batch: Batch) -> tuple[float, float]:
        found = self._call("evaluate", batch, ["loss", "loss_weight"])
        return float(found["loss"]), float(found.get("loss_weight", 1.0))

    def logits(self, batch: Batch) -> torch.Tensor | None:
        if "logits" not in self.program.session.entries():
            return None
        return self._call("logits", batch, ["logits"])["logits"][: batch[1]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cleave.export", epilog=_EPILOG,
        description="Writes trained weights in a smaller form, as a file of safetensors, and "
                    "reports what it costs.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("module", metavar="MODEL.mlir", help="the module that was compiled, as text")
    add("--weights", metavar="PATH", action="append", required=True,
        help="the weights: a checkpoint of cleave-run, a safetensors file, an index of several "
             "(.json), or a folder with either; a later one replaces what an earlier one gives")
    add("--kind", choices=KINDS, required=True,
        help="int8: weights of contractions as codes of 8 bits; sparse: those with zeros without "
             "them; bf16: all floats in 16 bits")
    add("-o", "--output", metavar="FILE.safetensors", required=True, help="the file to write")
    add("--artifact", metavar="MODEL.so", help="the program that evaluates, of cleave-compile "
        "(default: the module, compiled for one CPU in f32)")
    add("--eval-data", metavar="FILE",
        help="tokens to evaluate on: .bin, .npy, or text with --tokenizer")
    add("--eval-batches", metavar="N", type=int, default=0,
        help="batches of an evaluation (default: 0, all)")
    add("--tokenizer", metavar="FILE", default="", help="tokenizer for text (tokenizers JSON)")
    add("--token-dtype", choices=_TOKENS, default="u16",
        help="integers in .bin files (default: %(default)s)")
    add("--label-shift", type=int, choices=(0, 1),
        help="1: labels are the next tokens; 0: the tokens themselves, for a model that shifts "
             "them, which is the default where the loss is seen to do so")
    options = parser.parse_args(arguments)
    if options.output == "-":
        parser.error("-o is the name of a file: a report is printed")
    if options.eval_batches < 0:
        parser.error("--eval-batches must be at least 0")
    if not options.eval_data:
        for flag, unset in (("eval_batches", 0), ("tokenizer", ""), ("label_shift", None)):
            if getattr(options, flag) != unset:
                parser.error(f"--{flag.replace('_', '-')} needs --eval-data, which is missing")
    try:
        run(options)
    except (ExportError, StepError, OSError, ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    check_writable(options.output)
    inputs = [options.module, *options.weights, *filter(None, [options.artifact])]
    for path in inputs:
        if not os.path.exists(path):
            raise ExportError(f"{path}: no such file")
        if os.path.realpath(path) == os.path.realpath(options.output):
            raise ExportError(f"'{path}' cannot be both read and written")
    program, weights = _open(options)
    for path in options.weights:
        program.session.load_weights(path)
    data = _batches(options, program) if options.eval_data else None
    print(export_model(_OfProgram(program, weights), options.kind, options.output, data))


def _open(options: argparse.Namespace) -> tuple[Program[Runs], dict[str, list[int]]]:
    """The program that evaluates, and the weights of contractions."""
    from .. import _cleave
    from ..training.optim import SGD

    try:
        with open(options.module, encoding="utf-8") as file:
            text = file.read()
    except UnicodeDecodeError:
        raise ExportError(f"{options.module}: is not the text of a module") from None
    try:
        compiled: Runs
        if options.artifact:
            compiled = _Artifact(options.artifact)
        else:
            compiled = _cleave.compile(text, json.dumps({"optimizer": SGD(lr=0.0).options()}))
        weights = _cleave.contraction_weights(text)
    except _cleave.CompileError as error:
        raise ExportError(f"{options.module}: {error}") from None
    program: Program[Runs] = Program(None, compiled, [])
    program.open()
    for name, dims in weights.items():
        facts = program.tensors.get(name)
        if facts is None or facts["role"] != "parameter" or len(logical_shape(facts)) <= max(dims):
            raise ExportError(f"{options.artifact}: is not compiled from {options.module}: it has "
                              f"no such parameter '{name}'")
    return program, weights


def _batches(options: argparse.Namespace, program: Program[Runs]) -> list[Batch]:
    """The batches of the evaluation of `cleave-run`: sequences in order, of which the last
    batch is filled up with ignored labels, or left out where there are none."""
    from .. import _runtime

    source = options.artifact or options.module
    if "evaluate" not in program.session.entries():
        raise ExportError(f"{source}: the program cannot evaluate; leave out --eval-data")
    tokens = _runtime.open_tokens(options.eval_data, options.tokenizer, options.token_dtype)
    fed = [t for t in program.inputs if t["dtype"] in ("i64", "i32")]
    if not 1 <= len(fed) <= 2 or len(fed) < len(program.inputs) or any(
            len(t["shape"]) != 2 or t["shape"] != fed[0]["shape"] for t in fed):
        raise ExportError(f"{source}: only token ids and labels [batch, sequence] have data; the "
                          "program has inputs " + ", ".join(
                              f"'{t['name']}' {t['dtype']} {t['shape']}" for t in program.inputs)
                          + ": evaluate it by cleave.export in Python")
    batch, length = fed[0]["shape"]
    shift = options.label_shift
    if shift is None and len(fed) == 2:
        if not _shifts_labels(program, *fed):
            raise ExportError(f"{source}: the loss does not shift its labels, as far as can be "
                              "seen. Give --label-shift 1 for labels that are the next tokens, or "
                              "--label-shift 0 for the tokens themselves")
    shift = shift or 0
    count = max(0, (len(tokens) - shift) // length)
    if count == 0:
        raise ExportError(f"{options.eval_data}: {len(tokens)} tokens do not fill one sequence of "
                          f"{length + shift}")
    ignored = fed[1].get("ignore_index") if len(fed) == 2 else None
    if ignored is None or "loss_weight" not in program.tensors:
        if count < batch:
            raise ExportError(f"{options.eval_data}: {count} sequences do not fill a batch of {batch}")
        if count % batch:
            print(f"{options.eval_data}: the last {count % batch} sequences do not fill a batch and "
                  "are not used")
        count -= count % batch
    if options.eval_batches:
        count = min(count, options.eval_batches * batch)
    result = []
    for first in range(0, count, batch):
        rows = min(batch, count - first)
        read = torch.from_numpy(tokens.read(first * length, rows * length + shift))
        # A row is repeated to fill the batch.
        rest = [batch - rows, -1]
        ids = read[: rows * length].reshape(rows, length)
        values = {fed[0]["name"]: torch.cat([ids, ids[-1:].expand(rest)])}
        if len(fed) == 2:
            labels = read[shift:].reshape(rows, length)
            filled = torch.full((batch - rows, length), 0 if ignored is None else ignored)
            values[fed[1]["name"]] = torch.cat([labels, filled])
        result.append((values, rows))
    return result


def _shifts_labels(program: Program[Runs], ids: TensorFacts, labels: TensorFacts) -> bool:
    """Whether the loss of a program leaves out the first label of a sequence, and not the second,
    as `cleave-run` sees it."""
    batch, length = ids["shape"]
    if length < 2:
        return False
    own, ignored = labels.get("bound") or 2, labels.get("ignore_index")
    tokens = torch.arange(batch * length).reshape(batch, length) * 7
    model = _OfProgram(program, {})

    def label(values: torch.Tensor) -> torch.Tensor:
        values = values % own
        return values if ignored is None else torch.where(values == ignored, (values + 1) % own, values)

    def evaluated(values: torch.Tensor) -> tuple[float, float]:
        own_ids = tokens % (ids.get("bound") or 2)
        return model.evaluate(({ids["name"]: own_ids, labels["name"]: values}, batch))

    plain = label(tokens)
    if ignored is not None and "loss_weight" in program.tensors:
        counted = torch.full_like(plain, ignored)
        counted[:, :2] = plain[:, :2]
        weight = evaluated(counted)[1]
        if weight in (batch, 2 * batch):
            return weight == batch
    losses = []
    for changed in (None, 0, 1):
        values = plain.clone()
        if changed is not None:
            values[:, changed] = label(plain[:, changed] + 1)
        losses.append(evaluated(values)[0])
    return losses[0] == losses[1] and losses[0] != losses[2]


if __name__ == "__main__":
    sys.exit(main())
