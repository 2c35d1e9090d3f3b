# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The code blocks of the documentation, and what they are run with.

A block has a language. `python` and `sh` are run, in the order of their page and in a
folder that they share, with small models in the place of those that a page speaks of;
other languages are shown. `<!-- not run: why -->` in front of a block says why not.
"""

import dataclasses
import functools
import os
import pathlib
import re
import subprocess
import sys

import torch
import transformers

import cleave
from cleave.testing.tools import build_dir, run_tool, tool
from cleave.trace.weights import save_module, save_weights
from training_support import build

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = {"text", "mlir", "c"}


@dataclasses.dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    #: Why it is not run, or nothing.
    reason: str


def blocks(path):
    """The blocks of a page, in order."""
    found, lines = [], path.read_text().split("\n")
    start = None
    for i, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = i
            continue
        marker = re.fullmatch(r"<!-- not run: (.+) -->", lines[start - 1])
        found.append(Block(path.name, start + 1, lines[start][3:].strip(),
                           "\n".join(lines[start + 1 : i]), marker[1] if marker else ""))
        start = None
    assert start is None, f"{path}:{start}: a block that does not end"
    return found


def language_model(layers=8, batch=8):
    """A GPT-2 with the names that pages speak of, and a batch for it."""
    torch.manual_seed(0)
    model = build("GPT2LMHeadModel", "GPT2Config", n_layer=layers, n_head=4, n_embd=32,
                  vocab_size=96, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    ids = torch.randint(3, 96, (batch, 16))
    return {"model": model, "ids": ids, "example_inputs": {"input_ids": ids, "labels": ids}}


def image_model():
    """A classifier with batch normalisation, and a batch for it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
                                torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 10))
    return {"model": model, "images": torch.randn(8, 3, 8, 8), "labels": torch.arange(8),
            "loss_fn": torch.nn.functional.cross_entropy}


class Page:
    """Runs the blocks of a page in a folder of their own."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.names = {"cleave": cleave, "torch": torch}
        monkeypatch.chdir(folder)
        # What a page makes large is small here.
        small = dict(n_layer=2, n_head=4, n_embd=32, vocab_size=96, n_positions=16)
        monkeypatch.setattr(transformers, "GPT2Config",
                            functools.partial(transformers.GPT2Config, **small))
        original = torch.randint
        monkeypatch.setattr(torch, "randint", lambda *bounds_and_size, **more: original(
            *(tuple(min(n, 16) for n in given) if isinstance(given, tuple) else min(given, 96)
              for given in bounds_and_size), **more))

    def run(self, block):
        if block.language == "python":
            self.run_python(block)
        else:
            self.run_shell(block)

    def run_python(self, block):
        if re.search(r"\b(ids|example_inputs)\b(?!=)", block.text) and "ids =" not in block.text:
            self.names |= language_model()
        if re.search(r"\bimages\b", block.text) and "images =" not in block.text:
            self.names |= image_model()
        if "run1.json" in block.text:
            self.make_traces()
        text = self.with_scratch(block.text)
        text = "\n" * block.line + text
        exec(compile(text, block.page, "exec"), self.names)

    def with_scratch(self, text):
        """The folder for what is offloaded is one of the page's."""
        (self.folder / "scratch").mkdir(exist_ok=True)
        return text.replace("/scratch", str(self.folder / "scratch"))

    def run_shell(self, block):
        self.make_files(block.text)
        text = self.with_scratch(block.text)
        text = re.sub(r"cleave-compile \.\.\.", "cleave-compile gpt2.mlir --mesh pp=2", text)
        text = re.sub(r"(cleave-run \S+) \.\.\.", r"\1 --random-init --data train.bin --threads 4",
                      text)
        # The run that is shown is longer.
        text = re.sub(r"--steps \d+", "--steps 2", text.replace("\\\n", " "))
        text = re.sub(r"(?m)^((?:(?:mpirun|torchrun) .*?)?cleave-run (?!--reference|.*--steps)\S+)",
                      r"\1 --steps 2", text)
        text = text.replace("mpirun -n", "mpirun --oversubscribe -n").replace("| less", "> shown")
        # At a port that is free.
        text = text.replace("torchrun --nproc", "torchrun --standalone --nproc")
        # A compilation that is only shown still says where it writes.
        text = re.sub(r"(?m)^(cleave-compile (?!.*(-o|--emit|--explain|--plan-only|--fit|--measure-machine)\b).*?)( +#.*)?$",
                      r"\1 -o out.so", text)
        environment = os.environ | {
            "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent),
                                     str(build_dir() / "bin"), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT / "python"), "CLEAVE_PYTHON": sys.executable,
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=self.folder,
                              env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{block.page}:{block.line}: {done.stderr}\n{done.stdout}"

    def make_files(self, text):
        """The files that commands read, as far as earlier ones have not written them."""
        def missing(name):
            return name in text and not (self.folder / name).exists()

        for name in ("gpt2", "gpt", "llama", "mixtral"):
            if missing(f"{name}.mlir") or missing(f"{name}.so"):
                write_model(name)
            if missing(f"{name}.so") and f"-o {name}.so" not in text:
                run_tool([tool("cleave-compile"), f"{name}.mlir", "--mesh=dp=2,tp=2",
                          "--plan=megatron", "--threads=4", f"-o={name}.so"])
        if missing("model.so"):
            self.make_files("gpt2.mlir")
            run_tool([tool("cleave-compile"), "gpt2.mlir", "--mesh=dp=4", "-o=model.so"])
            (self.folder / "gpt2.safetensors").rename(self.folder / "model.safetensors")
        if missing("checkpoints/step-1000"):
            self.make_files("train.bin")
            run_tool([tool("cleave-run"), "./gpt.so", "--weights=gpt.safetensors",
                      "--data=train.bin", "--steps=1", "--save-every=1"])
            (self.folder / "checkpoints/step-1").rename(self.folder / "checkpoints/step-1000")
        if missing("train.bin") or "..." in text:
            tokens = torch.randint(3, 96, (16, 16)).flatten().repeat(4)
            tokens.to(torch.uint16).numpy().tofile(self.folder / "train.bin")
        if missing("valid.bin"):
            tokens = torch.randint(3, 96, (32, 16)).flatten()
            tokens.to(torch.uint16).numpy().tofile(self.folder / "valid.bin")
        if missing("models.py"):
            (self.folder / "models.py").write_text(MODEL)
        for name in ("README.md", "LICENSE"):
            if missing(name):
                (self.folder / name).write_text((ROOT / name).read_text())
        if missing("docs/Architecture.md"):
            (self.folder / "docs").mkdir()
            (self.folder / "docs/Architecture.md").write_text(
                (ROOT / "docs/Architecture.md").read_text())
        if missing("train.txt"):
            (self.folder / "train.txt").write_text((ROOT / "README.md").read_text())
        if missing("tok.json") and "save(" not in text:
            make_tokenizer(self.folder / "tok.json")
        if missing("mine.sched"):
            self.make_files("gpt2.mlir")
            run_tool([tool("cleave-compile"), "gpt2.mlir", "--mesh=pp=4", "--micro-batches=8",
                      "--emit=schedule", "-o=mine.sched"])
        if missing("batch.safetensors"):
            from safetensors.torch import save_file
            model = (self.folder / "gpt.mlir").read_text()
            shape = re.search(r'tensor<(\d+)x(\d+)xi64> \{[^}]*graph.name = "input_ids"', model)
            ids = torch.randint(3, 96, tuple(map(int, shape.groups())))
            save_file({"input_ids": ids, "labels": ids.clone(), "rng": torch.tensor([0, 1])},
                      self.folder / "batch.safetensors")

    def make_traces(self):
        """Those of a step on four positions, as `cleave-run --trace` writes them."""
        inputs = self.names["example_inputs"]
        step = cleave.compile(self.names["model"], inputs, mesh={"pp": 4}, micro_batches=8,
                              pipeline="zb-h1")
        step.save_artifact("traced.so")
        self.make_files("train.bin")
        for name in ("run1.json", "run2.json"):
            run_tool([tool("cleave-run"), "./traced.so", "--random-init", "--data=train.bin",
                      "--steps=3", f"--trace={name}"])


def write_model(name):
    """Writes a model and its weights, GPT-2 and Llama with the names of transformers."""
    if name == "mixtral":
        subprocess.run([sys.executable, "-m", "cleave.models", name, "--hidden=32", "--heads=4",
                        "--layers=8", "--seq=16", "--vocab=96", "--batch=16",
                        f"--weights={name}.safetensors", f"-o={name}.mlir"], check=True,
                       env=os.environ | {"PYTHONPATH": str(ROOT / "python")})
        return
    if name == "llama":
        # As many heads and positions as pages share over ranks.
        model = build("LlamaForCausalLM", "LlamaConfig", vocab_size=96, hidden_size=64,
                      intermediate_size=128, num_hidden_layers=8, num_attention_heads=8,
                      num_key_value_heads=8, max_position_embeddings=64)
        ids = torch.zeros(16, 64, dtype=torch.int64)
        traced = cleave.trace.trace(model, {"input_ids": ids, "labels": ids})
    else:
        own = language_model(batch=16)
        traced = cleave.trace.trace(own["model"], own["example_inputs"])
    save_module(traced, f"{name}.mlir")
    save_weights(traced, f"{name}.safetensors")


def make_tokenizer(path):
    import tokenizers

    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    letters = {letter: i for i, letter in enumerate(sorted(alphabet)[:96])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters | {"?": 96}, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(path))


#: The file that `cleave.trace` is pointed to.
MODEL = '''
import torch, transformers

def build():
    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=1000,
                                     n_positions=16, use_cache=False)
    ids = torch.randint(3, 96, (4, 16))
    return transformers.AutoModelForCausalLM.from_config(config), dict(input_ids=ids, labels=ids)
'''
