# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The results of the classes of models of the transformers library: the table models.json
and the page docs/Models.md."""

import collections
import json
import pathlib

import transformers

FOLDER = pathlib.Path(__file__).resolve().parent
TABLE = FOLDER / "models.json"
PAGE = FOLDER.parents[3] / "docs" / "Models.md"
MAPPINGS = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SEQUENCE_CLASSIFICATION",
            "IMAGE_CLASSIFICATION")
#: Steps that a class is trained.
STEPS = 5

#: The results of a class, in the order of the table.
TRAINS, TRACES, REFUSED, WRONG, UNSTABLE, VALUES, NOT_BUILT, FAILED = STATUSES = (
    "trains", "traces", "refused", "wrong", "unstable", "values decide", "not built", "fails")


def classes():
    """The name, task and type of every class of the mappings, once."""
    from transformers.models.auto import modeling_auto
    found = {}
    for task in MAPPINGS:
        for kind, names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            for name in [names] if isinstance(names, str) else names:
                found.setdefault(name, (task, kind))
    return {name: found[name] for name in sorted(found)}


def read():
    return json.loads(TABLE.read_text())


def write(path, table):
    """Whole or not at all, so that a run can be stopped at any time."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")
    new.replace(path)


def entries(found):
    """The entries of the table for the findings."""
    return {name: {k: f[k] for k in ("task", "type", "status", "why") if f[k]}
            for name, f in sorted(found.items())}


def summary(table):
    """How many classes there are of each status."""
    count = collections.Counter(f["status"] for f in table.values())
    return ", ".join(f"{count[s]} {s}" for s in STATUSES if count[s])


MEANINGS = {
    TRAINS: f"{STEPS} steps of SGD agree with PyTorch's, with a padding mask where the class takes one",
    TRACES: "is traced, with a padding mask where the class takes one; its training was not tried",
    REFUSED: "an operator has no conversion, or the compiler refuses",
    WRONG: "differs from PyTorch",
    UNSTABLE: "nothing is proved: PyTorch's own 5 steps in f32 and in f64 part at every rate",
    VALUES: "Python code decides by the values of tensors what is computed",
    NOT_BUILT: "needs a library that is not there, or more than a small configuration",
    FAILED: "ends with another error, or not in time",
}


def page(table):
    """The page of the documentation."""
    lines = [
        "# Models of transformers", "",
        "You find here whether a model class of the transformers library trains with Cleave, and if not, why.",
        "",
        "`test/python/support/models/model_census.py` writes this page from `models.json` beside it. Each class of the",
        f"library's mappings ({transformers.__version__}) for causal, masked and sequence-to-sequence language",
        "models and for sequence and image classification is built small, with random weights and without",
        "dropout, and tried. Losses of steps may differ from PyTorch's by 1e-4 of their size, and the",
        "update of a tensor by 1e-3 of its norm, or of 1e-5 of the largest. If PyTorch's own steps in",
        "f32 and f64 differ so at every rate, the update may also differ by the rounding of the weights.", ""]
    count = collections.Counter(f["status"] for f in table.values())
    if len(table) < len(classes()):
        lines += [f"{len(table)} of {len(classes())} classes were tried.", ""]
    lines += [f"- {count[s]} **{s}**: {meaning}" for s, meaning in MEANINGS.items() if count[s]]
    for status in MEANINGS:
        own = {n: f for n, f in table.items() if f["status"] == status}
        if not own:
            continue
        lines += ["", f"## {status[0].upper()}{status[1:]}", ""]
        if status in (TRAINS, TRACES):
            for task in MAPPINGS:
                names = [f"`{n}`" for n, f in own.items() if f["task"] == task]
                if names:
                    lines += [f"**{task.replace('_', ' ').lower()}**: {', '.join(names)}", ""]
            lines.pop()
            continue
        lines += ["| class | why |", "|---|---|"]
        for name, f in own.items():
            why = f.get("why", "").replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| `{name}` | {why[:240]} |")
    return "\n".join(lines) + "\n"
