# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Buffers that a step writes, in `cleave-run`: trained, saved, resumed and evaluated, they
are those of PyTorch."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import cleave
from cleave.testing.tools import ToolError, build_dir, run_tool, tool
from cleave.trace import Groups, trace
from cleave.trace.weights import save_module, save_weights

BATCH, LENGTH, VOCABULARY = 8, 6, 32
LR = 0.5


class Tagger(nn.Module):
    """Tokens, two batch normalisations, a moving average written by hand, and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.first, self.norm1 = nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=0.3)
        self.second, self.norm2 = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, VOCABULARY)
        self.register_buffer("average", torch.zeros(8))

    def forward(self, ids):
        x = self.first(self.embedding(ids))
        x = torch.tanh(self.norm1(x.transpose(1, 2)).transpose(1, 2))
        if self.training:
            self.average = 0.5 * self.average + x.detach().square().mean((0, 1))
        return self.head(torch.tanh(self.norm2(self.second(x).transpose(1, 2)).transpose(1, 2)))


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def tokens(sequences=BATCH):
    """Token ids; PyTorch's labels are these ids, as those of `--label-shift 0` are."""
    generator = torch.Generator().manual_seed(4)
    return torch.randint(0, VOCABULARY, (sequences, LENGTH), generator=generator)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    for name, count in (("batch.bin", BATCH), ("data.bin", 5 * BATCH)):
        tokens(count).numpy().astype(np.uint16).tofile(name)
    return tmp_path


def build(*flags, groups=Groups(), name="m.so", module=None):
    module = module or Tagger()
    traced = trace(module, ((tokens(),), (tokens(),)), loss_of, groups=groups)
    save_module(traced, "m.mlir")
    save_weights(traced, "w.safetensors")
    run_tool([tool("cleave-compile"), "m.mlir", "-o", name, "--optimizer=sgd", "--momentum=0.9",
              "--threads=2", *flags])
    return module


def run(*flags, artifact="./m.so", processes=0):
    launch = ["mpirun", "--oversubscribe", "-n", str(processes)] if processes else []
    threads = "1" if processes else "2"
    return run_tool([*launch, tool("cleave-run"), artifact, f"--lr={LR}", "--seed=3", "--threads",
                     threads, "--label-shift=0", *map(str, flags)])


def lines(path):
    return [json.loads(line) for line in open(path)]


def torch_run(module, steps):
    """Losses of steps on one batch, then that of an evaluation; and the state."""
    module = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module(tokens()), tokens())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = copy.deepcopy(module.state_dict())
    losses.append(loss_of(module.eval()(tokens()), tokens()).item())
    return losses, state


def same(path, state, but=()):
    found = load_file(path)
    assert set(found) == set(state)
    for name, value in state.items():
        if name in but:
            continue
        assert found[name].dtype == value.dtype, name
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=2e-5,
                                   msg=lambda m: f"{name}: {m}")


MESHES = [[], ["--mesh=dp=2"], ["--mesh=dp=2", "--plan=zero3"],
          ["--mesh=pp=2", "--stages=second."]]


@pytest.mark.parametrize("flags", MESHES, ids=" ".join)
def test_training_is_that_of_pytorch(folder, flags):
    """Every step has the same sequences, in some order."""
    module = build(*flags)
    run("--weights=w.safetensors", "--data=batch.bin", "--steps=5", "--log=log", "--save-every=5",
        "--save-dir=s", "--eval-data=batch.bin", "--eval-every=5")
    losses, state = torch_run(module, 5)
    logged = lines("log")
    found = [line["loss"] for line in logged[:5]] + [logged[-1]["eval_loss"]]
    assert found == pytest.approx(losses, rel=1e-4)
    same("s/step-5/model.safetensors", state)
    assert int(load_file("s/step-5/model.safetensors")["norm1.num_batches_tracked"]) == 5


@pytest.mark.parametrize("flags", MESHES, ids=" ".join)
def test_a_resumed_run_has_the_same_bits(folder, flags):
    """And evaluations between steps write nothing."""
    build(*flags)
    common = ["--data=data.bin", "--steps=6"]
    run("--weights=w.safetensors", *common, "--save-every=6", "--save-dir=whole", "--log=whole.log")
    more = ["--save-every=3", "--save-dir=part", "--log=part.log", "--eval-data=batch.bin",
            "--eval-every=2"]
    run("--weights=w.safetensors", *common, *more, "--stop-at=3")
    run("--resume=part", *common, *more)
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, two = (open(f"{d}/step-6/{name}", "rb").read() for d in ("whole", "part"))
        assert one == two
    losses = [[line["loss"] for line in lines(f) if "loss" in line]
              for f in ("whole.log", "part.log")]
    assert losses[0] == losses[1]


@pytest.mark.skipif(not shutil.which("mpirun") or not (build_dir() / "lib/libcleave_mpi.so").exists(),
                    reason="there is no MPI")
@pytest.mark.parametrize("flags", [["--mesh=dp=2"], ["--mesh=pp=2", "--stages=second."]], ids=" ".join)
def test_processes_save_what_threads_save(folder, flags):
    build(*flags)
    common = ["--weights=w.safetensors", "--data=data.bin", "--steps=3", "--save-every=3"]
    run(*common, "--save-dir=threads")
    run(*common, "--save-dir=mpi", processes=2)
    one, two = (open(f"{d}/step-3/model.safetensors", "rb").read() for d in ("threads", "mpi"))
    assert one == two


@pytest.mark.parametrize("flags", [[], ["--mesh=pp=2", "--stages=second.", "--schedule=1f1b"]], ids=" ".join)
def test_statistics_of_micro_batches(folder, flags):
    """A step of two counts two batches, as two forward passes of PyTorch do; what is
    written by hand is written once, with the mean over both."""
    groups = Groups(2)
    module = build("--micro-batches=2", *flags, groups=groups)
    # The sequences of all micro-batches are alike, so that their order does not matter.
    tokens(1).repeat(BATCH, 1).numpy().astype(np.uint16).tofile("same.bin")
    run("--weights=w.safetensors", "--data=same.bin", "--steps=3", "--save-every=3", "--save-dir=s")
    module = module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        for part in tokens(1).repeat(BATCH, 1).chunk(2):
            (loss_of(module(part), part) / 2).backward()
        optimizer.step()
    same("s/step-3/model.safetensors", module.state_dict(), but=["average"])


def test_random_weights_begin_with_the_buffers_of_the_trace(folder):
    module = Tagger()
    with torch.no_grad():
        module.norm1.running_mean.fill_(2)
        module.norm2.num_batches_tracked.fill_(7)
    build(module=module)
    run("--random-init", "--data=batch.bin", "--steps=1", "--lr=0", "--save-every=1", "--save-dir=s")
    found = load_file("s/step-1/model.safetensors")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(found[name])
        module.train()(tokens())
    same("s/step-1/model.safetensors", module.state_dict())


def test_what_is_not_finite_is_not_saved(folder):
    """Variances of 1e40 are infinite; the loss and its gradients are finite."""
    module = build()
    with torch.no_grad():
        module.first.weight.mul_(1e20)
    build(module=module)
    arguments = ["--weights=w.safetensors", "--data=batch.bin", "--steps=2", "--save-every=1"]
    with pytest.raises(ToolError, match=r"not written: not finite: buffer 'norm1.running_var' \(8 of 8"):
        run(*arguments, "--save-dir=s")
    run(*arguments, "--save-dir=s", "--save-non-finite")
    assert load_file("s/step-2/model.safetensors")["norm1.running_var"].isinf().all()
    step = cleave.compile(module, ((tokens(),), (tokens(),)), loss_of, check="off",
                          target=cleave.Target(threads=1), optimizer=cleave.SGD(lr=LR))
    step(tokens(), tokens())
    with pytest.raises(cleave.StepError, match="not finite: buffer 'norm1.running_var'"):
        step.save("p")
    step.save("p", check_finite=False)
    step.load("p")
