# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The table of operators of PyTorch's database that the front end refuses.

`operators_refused.json` holds for each operator whether all or some of its samples are
refused, and the messages. Write it anew, and docs/Operators.md from it, by

    PYTHONPATH=python python test/python/support/operators/operator_table.py

which traces every sample (some 15 minutes), with `--only` those of some operators, or
`--docs` for the page alone. With `--compare` the values and gradients of each are also
compared with torch's.
"""

import argparse
import collections
import json
import pathlib
import re
import warnings

FOLDER = pathlib.Path(__file__).resolve().parent
TABLE = FOLDER / "operators_refused.json"
PAGE = FOLDER.parents[3] / "docs" / "Operators.md"


def reason(message):
    """A message without the place in a test that it names, and without sizes."""
    message = re.sub(r"\S*/[\w.]+\.py:\d+(:\d+)?: ", "", message)
    message = re.sub(r"tensor<[^>]*>", "tensor<...>", message)
    message = re.sub(r"u\d+(, u\d+)*", "u...", message)
    message = re.sub(r"FakeTensor\(.*", "FakeTensor(...)", message)
    return re.sub(r"\b\d+ (places|elements)\b", r"n \1", message)[:160]


def read():
    return json.loads(TABLE.read_text())


def entries(refused, count):
    """The table of {operator: {sample: message}}; `count` is that of samples tried."""
    return {name: {"samples": "all" if len(found) == count[name] else "some",
                   "reasons": sorted({reason(m) for m in found.values()})}
            for name, found in sorted(refused.items()) if found}


def page(table, operators, left_out):
    """The page of the documentation."""
    none = [n for n, e in table.items() if e["samples"] == "all"]
    lines = [
        "# Operators of PyTorch",
        "",
        "You find here which operators of PyTorch cannot be traced, and why; all others of its database can.",
        "",
        "`operator_table.py` writes this page from `operators_refused.json`, both in `test/python/support/operators`; a test",
        "fails when the table is not true. The samples are those of PyTorch's own operator database, `op_db`:",
        "operators of f32 that have a gradient, without `linalg`, `fft`, `special`, `sparse` and complex",
        "numbers. If an operator has more than 64 samples, 64 are drawn. Traced operators have the values",
        "and gradients of PyTorch, also at 0, bounds, infinity and NaN.",
        "",
        f"Of {operators} operators, {operators - len(table)} are traced with all their samples and "
        f"{operators - len(none)} with at least one.",
        "",
        "## Refused",
        "",
        "| operator | samples | why |",
        "|---|---|---|",
    ]
    for name, entry in table.items():
        why = "; ".join(r.replace("|", "\\|").replace("<", "&lt;") for r in entry["reasons"])
        lines.append(f"| `{name}` | {entry['samples']} | {why} |")
    lines += ["", "## Not compared", "", "| operators | why |", "|---|---|"]
    groups = collections.defaultdict(list)
    for name, why in left_out.items():
        groups[why].append(f"`{name}`")
    lines += [f"| {', '.join(sorted(names))} | {why} |" for why, names in groups.items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help="write the page alone")
    parser.add_argument("--only", help="operators, by commas: the others stay as they are")
    parser.add_argument("--compare", action="store_true", help="print what differs from torch")
    args = parser.parse_args()
    import torch

    import operator_checks
    import operator_samples
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    operators = operator_samples.database()
    if not args.docs:
        refused, count, unclear, wrong = {}, {}, {}, {}
        only = args.only.split(",") if args.only else list(operators)
        for name in only:
            op = operators[name]
            members = operator_checks.accepted(operator_samples.tried(op, name))
            traced, found = operator_checks.trace_all(members)
            refused[name], count[name] = {k: str(e) for k, e in found.items()}, len(members)
            unclear |= {k: str(e) for k, e in found.items() if not e.clear}
            if args.compare and traced:
                wrong |= {k: v for k, v in operator_checks.interpreted(traced).items() if v}
        for what, found in (("unclear", unclear), ("wrong", wrong)):
            print(f"{what}: {len(found)}", *(f"  {k}: {v}" for k, v in found.items()), sep="\n")
        print(f"samples: {sum(count.values())}, refused: {sum(map(len, refused.values()))}")
        kept = {n: entry for n, entry in read().items() if n not in only}
        table = dict(sorted({**kept, **entries(refused, count)}.items()))
        TABLE.write_text(json.dumps(table, indent=1) + "\n")
    PAGE.write_text(page(read(), len(operators), operator_samples.LEFT_OUT))


if __name__ == "__main__":
    main()
