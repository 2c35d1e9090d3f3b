"""Writes docs/Options.md, the page of the options of a step, from the compiler's table.

usage: python scripts/write_options.py > docs/Options.md
"""

import json
import re

from cleave import _cleave

HEAD = """# Options of a step

You find here every option of a step with its values, its default and its effect, in Python and on the command line.

Each option by its name in Python and its flag of `cleave-compile`. The table is the compiler's own
(`lib/Pipelines/Options/`): every entrance accepts and refuses by it, for the same reason, and this page is written from
it (`scripts/write_options.py`). Sizes take a unit, as `80GB` (10^9 bytes each) or `24GiB` (2^30); without one they are
bytes, but MiB where the flag says so. In Python options are fields of groups, as `cleave.Precision`, which are arguments
of `cleave.compile`; `schedule` has what `schedule_file` has, a `LossScale` what begins with `loss_scale_`; `check_cost`, `cpu`
and `vector_bits` are of the tools alone. Settings of update rules are in [Optimizers](Optimizers.md); flags of the tools
themselves are listed by `--help`. Names of earlier versions are accepted with a warning until the next one.
"""

def default(row):
    """The value without the option, as a person writes it; empty if its help says what holds."""
    value = row["default"]
    if row["kind"] == "flag":
        return "on" if value else "off"
    if value in ("", "default") or "least" in row and value < row["least"]:
        return ""
    if row["kind"] == "size":
        return "" if not value else f"{value >> 20} MiB" if value % (1 << 20) == 0 else f"{value} bytes"
    return f"`{value}`" if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def cell(text):
    return text.replace("|", "\\|")


def page():
    lines, group = [HEAD], None
    rows = json.loads(_cleave.option_table())
    for row in rows:
        if not row["flag"]:
            continue
        if row["group"] != group:
            group = row["group"]
            lines += [f"## {group}", ""]
            if row["class"]:
                plain = [f"`{own['key']}`" for own in rows if own["class"] == row["class"] and own["plain"]]
                lines += [f"In Python: `cleave.{row['class']}`, the argument `{row['class'].lower()}=`"
                          + (f", which takes {plain[0]} alone too." if plain else "."), ""]
            lines += ["| option | values | default | |", "|---|---|---|---|"]
        values = row["form"] if row["kind"] != "flag" else "on\\|off"
        unit = {1024: " (KiB)", 1 << 20: " (MiB)"}.get(row["unit"], "")
        former = "".join(f"; formerly `--{own['name']}`" for own in row["former"])
        text = re.sub(r"\{(.*?)\}", lambda m: f"`{m.group(1).replace('-', '_')}`", row["help"])
        lines.append(f"| `{row['key']}`, `--{row['flag']}`{unit}{former} | {cell(values) if row['kind'] != 'flag' else values} "
                     f"| {cell(default(row))} | {cell(text)} |")
        last = [own for own in rows if own["group"] == group and own["flag"]][-1]
        if row is last:
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    print(page(), end="")
