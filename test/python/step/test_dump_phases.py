# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The phases of a compilation, one after another in `cleave-opt`, give the program of `cleave-compile`.

``--dump-phases`` writes the module of each phase with the command that makes it of the one before.
Each command is run, for drawn sets of options; ``CLEAVE_TEST_ALL=1`` draws 100.
"""

import random
import re
import shlex
import subprocess

import pytest

import cleave
from cleave.testing.tools import tool
from proofs import ALL

SETS = 100 if ALL else 6
FILES = ["0-model.mlir", "1-step.mlir", "2-placed.mlir", "3-local.mlir", "4-scheduled.mlir", "5-executable.mlir"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "gpt.mlir"
    from cleave.models.__main__ import main
    main(["gpt", "--layers", "2", "--hidden", "16", "--heads", "2", "--seq", "8", "--vocab", "32", "--batch", "32",
          "-o", str(path)])
    return path


def draw(rng):
    """Flags of `cleave-compile` that go together."""
    flags = [f"--precision={rng.choice(('f32', 'bf16', 'fp16'))}", f"--micro-batches={rng.choice((1, 2, 4))}"]
    layout = rng.choice((None, ("dp=2", "zero1"), ("dp=2,tp=2", "megatron-sp,zero3"), ("pp=2", None), ("pp=2,dp=2", "zero1")))
    if layout:
        flags += [f"--mesh={layout[0]}"] + ([f"--plan={layout[1]}"] if layout[1] else [])
        if "pp" in layout[0]:
            flags.append(f"--schedule={rng.choice(('gpipe', '1f1b', 'zb-h1'))}")
        elif rng.random() < 0.5:
            flags += ["--collective-chunks=2", "--collective-chunk-bytes=1KiB"]
    optimizer = rng.choice(([], ["--optimizer=sgd", "--momentum=0.9"], ["--optimizer=lion", "--weight-decay=0.1"]))
    flags += optimizer
    if rng.random() < 0.5:
        flags.append("--max-grad-norm=0.3")
    if rng.random() < 0.3:
        flags.append("--recompute=3 full; 1 none" if rng.random() < 0.5 else "--recompute=selective")
    if rng.random() < 0.2:
        flags.append("--target=cuda")
    return flags


def rerun(folder):
    """Runs the command of each file, whose text must be that file's."""
    assert sorted(path.name for path in folder.iterdir()) == FILES
    for name in FILES[1:]:
        head, text = (folder / name).read_text().split("\n", 1)
        assert head.startswith("// cleave-opt ")
        command = shlex.split(head.removeprefix("// "))
        ran = subprocess.run([tool("cleave-opt"), *command[1:]], cwd=folder, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, (head, ran.stderr[:2000])
        if name == FILES[4]:
            # Why a policy was chosen is noted beside the choice.
            text = re.sub(r'module attributes \{pipe\.recompute_decision = "[^"]*"\} \{', "module {", text)
        assert ran.stdout == text, head


@pytest.mark.parametrize("seed", range(SETS))
def test_commands_make_the_program(model, tmp_path, seed):
    rng = random.Random(f"phases {seed}")
    for _ in range(20):
        flags = draw(rng)
        ran = subprocess.run([tool("cleave-compile"), str(model), "--plan-only", f"--dump-phases={tmp_path / 'phases'}",
                              *flags], capture_output=True, text=True, timeout=120)
        if ran.returncode == 0:
            break
        # Some sets contradict themselves.
        assert ran.returncode in (1, 2) and not (tmp_path / "phases" / FILES[1]).exists(), (flags, ran.stderr)
    else:
        pytest.fail("no set of options was accepted")
    rerun(tmp_path / "phases")


def test_long_schedule(model, tmp_path):
    """Whether its actions are written out follows from memory; the command says it."""
    ran = subprocess.run([tool("cleave-compile"), str(model), "--plan-only", f"--dump-phases={tmp_path / 'phases'}",
                          "--micro-batches=32"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    rerun(tmp_path / "phases")


def test_recomputation_that_is_chosen(model, tmp_path):
    """The command has the policy that was chosen."""
    ran = subprocess.run([tool("cleave-compile"), str(model), "--plan-only", f"--dump-phases={tmp_path / 'phases'}",
                          "--memory-limit=1GB", "--mesh=dp=2", "--plan=zero1"], capture_output=True, text=True,
                         timeout=120)
    assert ran.returncode == 0, ran.stderr
    head = (tmp_path / "phases" / "4-scheduled.mlir").read_text().split("\n", 1)[0]
    assert "recompute=" in head and "recompute=auto" not in head
    rerun(tmp_path / "phases")


def test_python_writes_them(tmp_path):
    """Each program that a process compiles has a folder of its own."""
    import torch

    folder = tmp_path / "phases"
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    for _ in range(2):
        step = cleave.compile(net, (torch.randn(2, 4), torch.randn(2, 1)), loss_fn=torch.nn.functional.mse_loss,
                              target=cleave.Target(dump_phases=folder))
        assert step is not None
    assert {path.name for path in folder.iterdir()} >= set(FILES)
    assert sorted(path.name for path in (folder / "2").iterdir()) == FILES


PHASES = ["read", "model", "step", "placed", "local", "scheduled", "executable", "program", "code", "report"]


def timed(text):
    """Of --time-phases, the names with their CPU and wall seconds, in order; passes are indented."""
    head, *rows = text.splitlines()
    assert head.split() == ["CPU", "s", "wall", "s"]
    rows = [re.fullmatch(r" *(\d+\.\d+) +(\d+\.\d+)  (.*)", row).groups() for row in rows]
    return [(name, float(cpu), float(wall)) for cpu, wall, name in rows]


def test_time_phases(model):
    """The phases are all of the time, and the passes all of that of a phase."""
    command = [tool("cleave-compile"), str(model), "--plan-only", "--mesh=pp=2,dp=2", "--micro-batches=4", "--report=/dev/null"]
    phases, passes = (timed(subprocess.run([*command, f"--time-phases={kind}"], capture_output=True, text=True,
                                           check=True).stderr) for kind in ("phases", "passes"))
    outer = [row for row in passes if not row[0].startswith(" ")]
    for rows in (phases, outer):
        assert sorted(name for name, *_ in rows) == sorted([*PHASES, "in all"]), rows
        *parts, whole = rows
        for seconds in (1, 2):
            assert sum(row[seconds] for row in parts) <= whole[seconds] + 0.001 * len(rows)
        assert sum(row[1] for row in parts) >= 0.5 * whole[1]
    inner = [row for row in passes if re.match("  [^ ]", row[0])]
    assert {"Differentiate", "Propagate", "PlanMemory"} <= {name.strip() for name, *_ in inner}
    assert sum(row[1] for row in inner) <= passes[-1][1] + 0.001 * len(inner)
    quiet = subprocess.run(command, capture_output=True, text=True, check=True)
    assert quiet.stderr == ""


def test_time_phases_in_python(capfd):
    import torch
    step = cleave.compile(torch.nn.Linear(4, 4), (torch.zeros(4, 4), torch.zeros(4, dtype=torch.int64)),
                          torch.nn.functional.cross_entropy, target=cleave.Target(threads=1, time_phases="phases"))
    assert step is not None
    names = [name for name, *_ in timed(capfd.readouterr().err)]
    assert sorted(names) == sorted([*(name for name in PHASES if name != "read"), "in all"])
