"""Writes python/cleave/compiler/groups.py, the groups of options of `cleave.compile`, from the compiler's table.

usage: python scripts/write_groups.py > python/cleave/compiler/groups.py
"""

import json
import re
import textwrap

from cleave import _cleave

HEAD = '''# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The groups of options that `cleave.compile` takes.

Written by scripts/write_groups.py from the table of options (lib/Pipelines/Options); edit that.
None leaves an option at its default. Sizes are bytes, or text with a unit: "80GB" (10^9 bytes
each), "24GiB" (2^30). `cleave.compile` checks the options, by the rules of the table: what is out
of range, contradicts another option, or would have no effect raises `cleave.OptionError` (a
`ValueError`), and a value of another type TypeError.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal, Mapping, Sequence

from .fields import OptionGroup, check_names

if TYPE_CHECKING:
    from ..training.loss_scale import LossScale
'''

#: The types of options that Python does not take as the command line does.
TYPES = {
    "schedule": "str | os.PathLike[str]",
    "stages": "str | Sequence[str]",
    "modules": "int | str | Sequence[str]",
    "measured_costs": "str | os.PathLike[str]",
    "machine": "str | os.PathLike[str]",
    "offload": "str | Sequence[str]",
    "update_delay": "int | str | Mapping[str, int | str]",
    "prune": "str | float",
    "loss_scale": "LossScale | float | str",
    "expert_buffer": "float | str",
}

#: The texts of options in Python beside their help.
NOTES = {
    "schedule": "An order written by hand is given as its text, a line for each position (`Step.schedule` returns such "
                "a text), or as the path of its file",
    "stages": "As a list of names, or a text with commas",
    "modules": "A list of names is in the form of `stages`",
    "offload": "As a list, or a text with commas. After an error of the file within a step, only the last checkpoint "
               "remains",
    "update_delay": "A dict has numbers by patterns of parameters' names, of which the last that matches counts, and "
                    "\"*\" for all others, as {\"*\": 1, \"embed*\": 0}; \"reduce\": \"next\" is one of its entries",
    "loss_scale": "A `cleave.LossScale` has the settings of one that moves",
    "precision": "None: what the model asks for, by 16-bit parameters or regions of `torch.autocast`, with a remark; "
                 "else f32",
    "max_staleness": "An asynchronous schedule makes as many updates in a call as there are micro-batches",
    "post_validation": "`Loss.updated_again` counts what was repeated",
}

#: Options of Python alone, by class: (name, type, what it is).
MORE = {
    "Numerics": [(
        "batch_statistics", 'Literal["batch", "micro-batch", "rank"]',
        "The samples that share the statistics of batch normalisation. batch, the default: all, also those of other "
        "ranks (as SyncBatchNorm); refused with several micro-batches, because each would need the later ones. "
        "micro-batch: those of a micro-batch, on all ranks; running statistics are updated in the order of "
        "micro-batches, as gradient accumulation in PyTorch does. rank: those of a micro-batch on one rank; running "
        "statistics are those of the first rank, as DistributedDataParallel keeps them. With the last two the loss "
        "differs from that of the whole batch. Other buffers that the model writes get one new value in a step, that of "
        "the whole batch"), (
        "balance_loss", 'Literal["model", "sequence", "micro-batch", "rank", "global"]',
        "The tokens over which the loss that balances experts is taken: an expert's share of the choices times its mean "
        "probability, summed over experts; the loss is the mean over such parts of the batch. model, the default: as "
        "the model's code has it. sequence: each sample (Megatron's seq_aux_loss). micro-batch: those of a micro-batch, "
        "on all ranks, as gradient accumulation in PyTorch does. rank: those of a micro-batch on one rank (Megatron's "
        "aux_loss). global: the whole batch (Megatron's global_aux_loss), as models of transformers have it themselves; it "
        "needs one micro-batch. It is of `cleave.moe.balance_loss`, of the mixtures of `cleave.models`, and of models of "
        "transformers with output_router_logits=True; with others it is an error"), (
        "expert_counts", "bool",
        "Whether a step counts how often each expert is chosen, for `Loss.expert_counts`: in experts of transformers, in "
        "the mixtures of `cleave.models`, and where a model calls `cleave.moe.count_choices`")],
    "Precision": [(
        "precision_policy", "Sequence[tuple[str, str]]",
        "Ops that are computed otherwise than `precision` has it: pairs of a pattern and \"f32\" or \"16bit\". A "
        "pattern is of paths of modules and what is in them, (\"layers.*.gate\", \"f32\"), or of names of ops, "
        "(\"softmax\", \"16bit\"); of several that match, the last one counts")],
    "Memory": [(
        "offload_dir", "str | os.PathLike[str]",
        "The folder of the files of `offload`, which have no names and end with the step; by default the one for "
        "temporary files")],
}

#: Groups of Python alone: (class, plain option, options).
OTHERS = [
    ("Launch", "ranks", [
        ("ranks", 'Literal["auto", "processes", "threads"]',
         "Where the devices of the mesh are. processes: each is a process that `mpirun`, `torchrun` or `srun` has "
         "started with this script; their number must be that of the devices. All of them make the same calls with the "
         "same arguments and whole batches, and get the same results. threads: all are threads of this process. auto, "
         "the default: processes if several were started, else threads"),
        ("ranks_per_device", "int", "With `target` cuda, the ranks of a machine that share a GPU; 1 by default"),
        ("patience", "int",
         "The seconds that ranks which are processes wait for each other before all of them end and say for whom; for "
         "one that writes files, ten times as long. By default the variable CLEAVE_PATIENCE, or 300. It is of the whole "
         "process: of the first step")]),
    ("Shapes", "lengths", [
        ("lengths", "Sequence[int | tuple[int, int]]",
         "The lengths of sequences for which programs are compiled, such as [128, 256, 512], or pairs (samples, "
         "length). A batch is padded at its end to the smallest that fits; the step trains as it would without padding. "
         "That is so of models that leave padded positions out (by an attention mask, or because attention is causal) "
         "and ignore their labels: eager PyTorch must have the same loss and gradients for the example with and without "
         "padding, or the model is refused; `check=\"off\"` trusts it. The first program is compiled at once, the "
         "others in another thread; a step that needs one of them waits"),
        ("length_dims", "Mapping[str, int | Sequence[int]]",
         "The dimensions of inputs that have the length, as {\"input_ids\": 1}; by default those of the size that the "
         "second dimension of all inputs with two dimensions has"),
        ("pad_values", "Mapping[str, float]",
         "The values that inputs are padded with, by name; by default the value that the loss ignores for labels "
         "(usually -100), and 0 for others")]),
]

#: The subject of a class, and a plain value in its place.
TITLES = {
    "Numerics": ("What is checked and in which order is summed in a step", None),
    "Precision": ("The types of numbers", '"bf16"'),
    "Pipeline": ("The stages of a pipeline, and the order of their work", '"1f1b"'),
    "Communication": ("How collectives are merged, and cut", None),
    "Memory": ("What is held in memory", '"16GiB"'),
    "Lossy": ("What changes the mathematics of a step", None),
    "Interlock": ("Interlocking backpropagation (arXiv 2010.04116)", "2"),
    "Target": ("The device that runs a step", '"cuda"'),
    "Launch": ("Where ranks run", '"threads"'),
    "Shapes": ("Batches of several lengths", "[128, 256]"),
}

KINDS = {"flag": "bool", "integer": "int", "number": "float", "size": "int | str", "text": "str"}


def type_of(row):
    if row["kind"] == "choice":
        return f"Literal[{', '.join(json.dumps(choice) for choice in row['choices'])}]"
    return TYPES.get(row["argument"], KINDS[row["kind"]])


def bounds_of(row):
    """Sentences on what a value must be."""
    if row["kind"] == "flag":
        return f". True or False; {row['default']} by default"
    bounds = [f"{word} {row[bound]:g}" for word, bound in (("at least", "least"), ("above", "above"), ("at most", "most"))
              if bound in row]
    unit = "Bytes, or a text with a unit" if row["kind"] == "size" else ""
    text = (unit + ", " if unit and bounds else unit) + " and ".join(bounds)
    return f". {text[0].upper()}{text[1:]}" if text else ""


def says(row):
    text = re.sub(r"\{(.*?)\}", lambda m: f"`{m.group(1).replace('-', '_')}`", row["help"]).rstrip(".")
    note = NOTES.get(row["argument"])
    return text[0].upper() + text[1:] + bounds_of(row) + (f". {note}" if note else "")


def write(name, plain, fields):
    """A class; `fields` are (name, type, text)."""
    title, example = TITLES[name]
    argument = name.lower()
    given = f" `{argument}={example}` is short for `{argument}=cleave.{name}({example})`." if plain else ""
    lines = ["", "", "@check_names", "@dataclasses.dataclass(frozen=True, repr=False)", f"class {name}(OptionGroup):"]
    head = f'"""{title}.{given}'
    lines += textwrap.wrap(head, 96, initial_indent="    ", subsequent_indent="    ")
    lines += ["", "    Attributes:"]
    for field, _, text in fields:
        lines += textwrap.wrap(f"{field}: {text}.", 96, initial_indent=" " * 8, subsequent_indent=" " * 12,
                               break_long_words=False, break_on_hyphens=False)
    lines += ['    """', ""]
    first = [field for field in fields if field[0] == plain] if plain else []
    for field, kind, _ in first:
        lines += textwrap.wrap(f"{field}: {kind} | None = None", 96, initial_indent="    ", subsequent_indent=" " * 8)
    lines.append("    _: dataclasses.KW_ONLY")
    for field, kind, _ in fields:
        if not first or field != plain:
            lines += textwrap.wrap(f"{field}: {kind} | None = None", 96, initial_indent="    ",
                                   subsequent_indent=" " * 8)
    return lines


def text():
    """The whole file."""
    lines, rows = [HEAD.rstrip("\n")], json.loads(_cleave.option_table())
    names, arguments = [], {}
    for name in dict.fromkeys(row["class"] for row in rows if row["class"]):
        own = [row for row in rows if row["class"] == name]
        fields = [(row["key"], type_of(row), says(row)) for row in own if row["argument"] == row["key"]]
        plain = next((row["key"] for row in own if row["plain"]), None)
        lines += write(name, plain, fields + MORE.get(name, []))
        names.append(name)
        arguments[name] = plain
    for name, plain, fields in OTHERS:
        lines += write(name, plain, fields)
        arguments[name] = plain
    lines += ["", "", "#: The argument of `cleave.compile` that takes each group, and the option that a plain value in its",
              "#: place is.", "GROUPS: dict[str, tuple[Any, str | None]] = {"]
    for name, plain in arguments.items():
        lines.append(f"    {json.dumps(name.lower())}: ({name}, {json.dumps(plain) if plain else None}),")
    lines.append("}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(text(), end="")
