# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Scheduled programs against the whole one, by the interpreter."""

import json
import re

import expert_recipes  # noqa: F401 (it adds models)
from cleave.testing.tools import interpret
from recipe_runs import (BATCH, LENGTH, MAKERS, OPTIMIZERS, agree, agree_natively, emit,
                         whole_run)
from shaped_models import EncoderDecoder, Skips

MAKERS["t5"] = EncoderDecoder
MAKERS["skips"] = Skips


def check_scheduled(tmp_path_factory, name, mesh, recipes, optimizer, micro_batches,
                    sizes=(BATCH, LENGTH), flags=()):
    folder = tmp_path_factory.getbasetemp()
    inputs, results, gradients = whole_run(name, optimizer, folder, sizes)
    layout = [f"--mesh={mesh}", f"--plan={recipes}", f"--micro-batches={micro_batches}", *flags]
    program = emit(folder, name, "scheduled", *OPTIMIZERS[optimizer], *layout, sizes=sizes)
    own_results, own_gradients = interpret(program, inputs, entry="train")
    agree(own_results, results)
    agree(own_gradients, gradients)
    agree_natively(folder, name, optimizer, *layout, sizes=sizes)
    return program


def schedule_report(folder, *flags, sizes=(BATCH, LENGTH)):
    """The section `schedule` of the report of a GPT-2."""
    path = folder / "report.json"
    emit(folder, "gpt2", "schedule", *flags, f"--report={path}", sizes=sizes)
    return json.loads(path.read_text())["schedule"]


def part_of(program, name):
    """The body of a part of @train."""
    return re.search(rf"func.func private @train\.{name}\((.*?)\n  }}", program, re.S).group(1)
