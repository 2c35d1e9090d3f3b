# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Traces in the cache: whatever a trace reads is part of their key, and what is read from the cache
is what was traced."""

import decimal
import io
import json
import os
import pathlib
import platform
import random
import subprocess
import sys
import time

import numpy
import pytest
import torch

import cleave
from cleave.compiler import kept_traces
from cleave.compiler.trace_inputs import Unknown, trace_key
from cleave.models import FAMILIES, Size, example_inputs
from cleave.trace import trace
from damaged_entries import damages
from proofs import ALL
from written_modules import loaded

NET = """
import functools
import math
import torch
import torch.nn.functional as F

SCALE = 2.0
TABLE = {"a": [1, 2]}
SETTINGS = type("Settings", (), {"width": 3})()

def helper(x, power=2):
    return x ** power * SCALE

class Base(torch.nn.Module):
    def part(self, x):
        return x + TABLE["a"][0]

class Net(Base):
    factor = 1.5

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(6, 6)
        self.b = torch.nn.Linear(6, 6)
        self.drop = torch.nn.Dropout(0.1)
        self.options = {"k": 3, "list": [1.0]}
        self.register_buffer("shift", torch.ones(6))
        inner = 0.5
        self.closed = lambda x: x * inner

    def forward(self, x, y):
        h = self.drop(F.gelu(self.a(x))) + self.shift
        h = self.closed(helper(self.part(self.b(h)))) * self.factor
        h = h * SETTINGS.width * self.options["k"] * math.pi
        return (h - y).square().mean()

def loss(output, y, weight=1.0):
    return output * weight
"""


@pytest.fixture(autouse=True)
def known_files(monkeypatch):
    """Files that other tests of this process loaded and removed, and pytest's own start, are none."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.isabs(file) and not os.path.exists(file):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", pytest.__file__, raising=False)


@pytest.fixture
def net(tmp_path, monkeypatch):
    return loaded(tmp_path / "own_traced.py", NET, monkeypatch)


def examples():
    return torch.zeros(4, 6), torch.zeros(4, 6)


def set_in(owner, **values):
    return lambda mp: [mp.setattr(owner, k, v) for k, v in values.items()]


def _relu(x):
    return x.clamp(min=0)


def _hook(module, args):
    return args


def _class_with(model, **members):
    model.__class__ = type("Other", (type(model),), members)


#: What a program may do between two starts: (model, its file, monkeypatch).
CHANGES = {
    "a number": lambda m, f, mp: m.options.update(k=4),
    "a number in a list": lambda m, f, mp: m.options["list"].append(2.0),
    "the type of a number": lambda m, f, mp: m.options.update(k=3.0),
    "a global": lambda m, f, mp: mp.setattr(f, "SCALE", 3.0),
    "what a global holds": lambda m, f, mp: mp.setitem(f.TABLE, "a", [2]),
    "an object's attribute": lambda m, f, mp: mp.setattr(f.SETTINGS, "width", 4),
    "an attribute of a class": lambda m, f, mp: mp.setattr(f.Net, "factor", 2.0),
    "a default": lambda m, f, mp: mp.setattr(f.helper, "__defaults__", (3,)),
    "a closure": lambda m, f, mp: setattr(m.closed.__closure__[0], "cell_contents", 0.25),
    "a function": lambda m, f, mp: mp.setattr(f, "helper", _relu),
    "a method of a base": lambda m, f, mp: mp.setattr(f.Base, "part", lambda self, x: x),
    "a method of an instance": lambda m, f, mp: setattr(m, "part", _relu),
    "a derived class": lambda m, f, mp: _class_with(m, part=lambda self, x: x * 2),
    "a buffer's value": lambda m, f, mp: m.shift.fill_(2.0),
    "a buffer's type": lambda m, f, mp: setattr(m, "shift", m.shift.double()),
    "a new buffer": lambda m, f, mp: m.register_buffer("more", torch.ones(1)),
    "a parameter's type": lambda m, f, mp: m.b.bfloat16(),
    "a parameter's shape": lambda m, f, mp: setattr(m, "b", torch.nn.Linear(6, 6, bias=False)),
    "frozen": lambda m, f, mp: m.b.requires_grad_(False),
    "tied": lambda m, f, mp: setattr(m.b, "weight", m.a.weight),
    "shared memory": lambda m, f, mp: setattr(m.b.weight, "data", m.a.weight.data),
    "strides": lambda m, f, mp: setattr(m.b.weight, "data", m.b.weight.data.t()),
    "dropout": lambda m, f, mp: setattr(m.drop, "p", 0.2),
    "the mode": lambda m, f, mp: m.eval(),
    "the mode of a part": lambda m, f, mp: m.drop.eval(),
    "a hook": lambda m, f, mp: m.a.register_forward_pre_hook(_hook),
    "another module": lambda m, f, mp: setattr(m, "drop", torch.nn.Identity()),
    "the order of modules": lambda m, f, mp: m._modules.move_to_end("a") if hasattr(
        m._modules, "move_to_end") else m._modules.update(a=m._modules.pop("a")),
    "torch.nn.functional": lambda m, f, mp: mp.setattr(torch.nn.functional, "gelu", _relu),
    "one function of torch for another": lambda m, f, mp: mp.setattr(
        torch.nn.functional, "gelu", torch.nn.functional.silu),
    "a method of torch": lambda m, f, mp: mp.setattr(torch.nn.Linear, "forward", lambda s, x: x),
    "a method of a tensor": lambda m, f, mp: mp.setattr(torch.Tensor, "square", _relu, raising=False),
    "a number of torch": lambda m, f, mp: mp.setattr(torch.nn.GELU, "extra", 3, raising=False),
    "math": lambda m, f, mp: mp.setattr("math.sqrt", lambda x: x),
    "the environment": lambda m, f, mp: mp.setenv("ANY_VARIABLE", "1"),
    "the folder": lambda m, f, mp: mp.chdir("/"),
    "a converter": lambda m, f, mp: mp.setattr("cleave.trace.decompose.decomposed", lambda p: p),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_makes_another_key(change, net, monkeypatch):
    model = net.Net()
    before = trace_key(model, examples(), None)
    assert trace_key(model, examples(), None) == before
    # The values of parameters are not read.
    with torch.no_grad():
        model.a.weight.add_(1)
    assert trace_key(model, examples(), None) == before
    with monkeypatch.context() as patch:
        CHANGES[change](model, net, patch)
        try:
            after = trace_key(model, examples(), None)
        except Unknown:
            after = None
    assert after != before


def _modes():
    yield "autocast", torch.autocast("cpu", torch.bfloat16)
    yield "no gradients", torch.no_grad()
    yield "a device", torch.device("meta")
    yield "one kernel of attention", torch.nn.attention.sdpa_kernel(
        torch.nn.attention.SDPBackend.MATH)


@pytest.mark.parametrize("mode", [name for name, _ in _modes()])
def test_a_mode_makes_another_key(mode, net):
    model, inputs = net.Net(), examples()
    with dict(_modes())[mode]:
        pass  # What it loads, it loads once.
    before = trace_key(model, inputs, None)
    with dict(_modes())[mode]:
        try:
            assert trace_key(model, inputs, None) != before
        except Unknown:
            pass
    assert trace_key(model, inputs, None) == before


def test_default_type_makes_another_key(net):
    model, inputs = net.Net(), examples()
    before = trace_key(model, inputs, None)
    torch.set_default_dtype(torch.float64)
    try:
        assert trace_key(model, inputs, None) != before
    finally:
        torch.set_default_dtype(torch.float32)


def test_inputs_and_loss(net):
    """Their forms count, and not their values."""
    model, (x, y) = net.Net(), examples()
    before = trace_key(model, (x, y), None)
    assert trace_key(model, (x + 1, y), None) == before
    others = [((x[:2], y[:2]), None), ((x, y.double()), None), ((x, x), None), ((x.t(), y), None),
              ({"x": x, "y": y}, None), ({"y": y, "x": x}, None), ((x, y), net.loss),
              ((x, y), lambda output, y: output)]
    assert len({tuple(trace_key(model, inputs, loss)) for inputs, loss in others} | {tuple(before)}) \
        == len(others) + 1


def test_a_line_makes_another_key(tmp_path, monkeypatch):
    keys = set()
    texts = [NET, NET + "\n", NET.replace("math.pi", "math.e"), NET.replace("* self.factor", "")]
    for text in texts:
        module = loaded(tmp_path / "own_traced.py", text, monkeypatch)
        keys.add(tuple(trace_key(module.Net(), examples(), None)))
    assert len(keys) == len(texts)


@pytest.mark.parametrize("line", [
    "import time; x = x * time.time()", "x = x * float(open('/proc/uptime').read().split()[0])",
    "x = x * globals()['SCALE']", "import own_helper; x = x * own_helper.A",
    "x = torch.ops.aten.relu(x)", "x = x * eval('SCALE')", "x = x * self.file.fileno()",
    "from os.path import getsize as f; x = x * f('/')", "import os; x = x * os.path.getsize('/')",
    "import platform; x = x * len(platform.node())", "x = x * len(type(self).__subclasses__())",
    "from time import perf_counter as f; x = x * f()"])
def test_what_is_not_in_the_key_is_traced(line, tmp_path, monkeypatch):
    text = NET.replace("        h = self.drop(", f"        {line}\n        h = self.drop(")
    model = loaded(tmp_path / "own_traced.py", text, monkeypatch).Net()
    with open(tmp_path / "own_traced.py") as file:
        if "file" in line:
            model.file = file
        with pytest.raises(Unknown):
            trace_key(model, examples(), None)


#: Readers that code may know by another name.
READERS = {"a clock": time.perf_counter, "the process": os.getpid, "a file": pathlib.Path.read_text,
           "a class": pathlib.Path, "numbers": numpy.load, "a size": os.path.getsize, "a module": platform,
           "a decimal context": decimal.getcontext, "a bound method": io.StringIO("1").readline}


@pytest.mark.parametrize("place", ["global", "attribute", "closure"])
@pytest.mark.parametrize("kind", READERS)
def test_readers_are_known_by_any_name(kind, place, tmp_path, monkeypatch):
    """A clock is one as `from time import perf_counter as now`, and as an attribute or in a closure."""
    module = loaded(tmp_path / "own_traced.py", NET.replace("x * self.factor", "x * SCALE * self.factor"), monkeypatch)
    model = module.Net()
    if place == "global":
        monkeypatch.setattr(module, "SCALE", READERS[kind])
    elif place == "attribute":
        model.reader = READERS[kind]
    else:
        model.closed.__closure__[0].cell_contents = READERS[kind]
    with pytest.raises(Unknown):
        trace_key(model, examples(), None)


def test_tables_of_installed_packages(net, monkeypatch):
    """A program may have put its own code into them."""
    import packaging.version

    model, tables = net.Net(), set()
    for table in ({}, {"f": net.helper}, {"f": net.loss}, {"f": [net.Net.forward]}):
        monkeypatch.setattr(packaging.version, "TABLE", table, raising=False)
        tables.add(tuple(trace_key(model, examples(), None)))
    assert len(tables) == 4
    names = {}
    exec("import time\ndef f(x): return x * time.time()", names)
    monkeypatch.setattr(packaging.version, "TABLE", {"f": names["f"]}, raising=False)
    with pytest.raises(Unknown):
        trace_key(model, examples(), None)


# Entries ------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept(model, inputs, loss_fn=None, calls=None):
    def traced():
        if calls is not None:
            calls.append(1)
        return trace(model, inputs, loss_fn)
    return kept_traces.kept_trace(model, inputs, loss_fn, [], traced)


def small(family):
    size = dict(layers=1, vocab=64, hidden=16, heads=2, seq=8, image=32)
    model = FAMILIES[family](**size)
    return model, example_inputs(family, 4, Size(**size))


@pytest.mark.parametrize("family", FAMILIES if ALL else ["gpt", "mixtral"])
def test_what_is_read_is_what_was_traced(family, cache):
    model, inputs = small(family)
    kept(model, inputs)  # What tracing loads, it loads once.
    calls = []
    first, second = (kept(model, inputs, calls=calls) for _ in range(2))
    assert len(calls) <= 1
    assert not kept_traces.different(first, second)
    assert not kept_traces.different(second, trace(model, inputs))
    assert second.deterministic().named_mlir == trace(model, inputs).deterministic().named_mlir


def test_verify(cache, net, monkeypatch):
    model, calls = net.Net(), []
    for _ in range(3):
        kept(model, examples(), calls=calls)
    count = len(calls)
    assert count < 3
    monkeypatch.setenv("CLEAVE_CACHE_VERIFY", "1")
    kept(model, examples(), calls=calls)
    assert len(calls) == count + 1
    # A key that misses what a trace reads is found.
    key = trace_key(model, examples(), None)
    monkeypatch.setattr(kept_traces, "trace_key", lambda *others: key)
    model.options["k"] = 7
    with pytest.raises(RuntimeError, match="the trace in the cache is not that of the model"):
        kept(model, examples())


def test_a_trace_that_warns_is_not_kept(cache, net):
    model, calls = net.Net().eval(), []  # It has dropout.
    for n in range(1, 4):
        with pytest.warns(UserWarning, match="eval"):
            kept(model, examples(), calls=calls)
        assert len(calls) == n


def one_entry(cache, net):
    """The path of the entry of a model, its trace and the model."""
    model = net.Net()
    for _ in range(2):  # What tracing loads, it loads once.
        for path in cache.glob("*.cleave"):
            path.unlink()
        traced = kept(model, examples())
    entry, = cache.glob("*.cleave")
    return entry, traced, model


def test_damaged_entries_are_traced(cache, net, monkeypatch):
    """Wherever a bit or the end is lost, the model is traced again, and the entry replaced."""
    entry, traced, model = one_entry(cache, net)
    whole, calls = entry.read_bytes(), []
    key = trace_key(model, examples(), None)
    monkeypatch.setattr(kept_traces, "trace_key", lambda *others: key)  # It takes long.
    again = kept(model, examples(), calls=calls)
    assert not calls
    count = 0
    for count, damaged in enumerate(damages(whole, random.Random(1), 300 if ALL else 5), 1):
        entry.write_bytes(damaged)
        found = kept_traces.kept_trace(model, examples(), None, [], lambda: calls.append(1) or traced)
        assert len(calls) == count and found is traced
        assert entry.read_bytes() == whole
    assert not kept_traces.different(kept(model, examples(), calls=calls), again)
    assert len(calls) == count


def test_files_that_a_trace_loads(cache, net, tmp_path, monkeypatch):
    """An entry counts while they are what they were."""
    model, path = net.Net(), tmp_path / "later.py"
    loaded(path, "A = 1\n", monkeypatch)
    kept_traces._keep(["of a test"], trace(model, examples()), model, ["later"])
    content = cleave._cleave.load_finding(["of a test"])
    assert kept_traces._read(content, model, None) is not None
    path.write_text("A = 2\n")
    assert kept_traces._read(content, model, None) is None


# Processes ----------------------------------------------------------------------------

#: Writes and reads entries without torch, which takes long to import.
RACER = f"""
import hashlib, json, os, sys
sys.path.insert(0, {os.path.dirname(cleave.__file__)!r})
import _cleave
sys.stdin.readline()
bad = 0
for n in range(60):
    key = ["trace", "of a race", str(n % 6)]
    # As long as that of a small model, and another for each key.
    whole = (str(n % 6) * 40_000).encode()
    found = _cleave.load_finding(key)
    bad += found is not None and found != whole
    _cleave.keep_finding(key, whole)
    found = _cleave.load_finding(key)
    bad += found is not None and found != whole
print(bad)
"""


@pytest.mark.parametrize("bound", ["", "100kB"])
def test_racing_processes(cache, tmp_path, monkeypatch, bound):
    """None reads what is not whole, whether entries are replaced or removed for others."""
    monkeypatch.setenv("CLEAVE_CACHE_BYTES", bound)
    (tmp_path / "racer.py").write_text(RACER)
    racers = [subprocess.Popen([sys.executable, "-B", str(tmp_path / "racer.py")],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
              for _ in range(60 if ALL else 6)]
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    assert [int(racer.communicate(timeout=600)[0]) for racer in racers] == [0] * len(racers)
    left = [path for path in cache.iterdir() if path.suffix != ".cleave"]
    assert not left, left
    for path in cache.iterdir():
        assert path.stat().st_size > 40_000


# Models of transformers ---------------------------------------------------------------

#: Classes of models that get tokens and labels.
NAMES = """GPT2LMHeadModel LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM
    GemmaForCausalLM Gemma2ForCausalLM PhiForCausalLM Phi3ForCausalLM GPTNeoXForCausalLM
    GPTJForCausalLM OPTForCausalLM BloomForCausalLM FalconForCausalLM StableLmForCausalLM
    Starcoder2ForCausalLM OlmoForCausalLM Olmo2ForCausalLM CohereForCausalLM GraniteForCausalLM
    MixtralForCausalLM Qwen2MoeForCausalLM GPTBigCodeForCausalLM T5ForConditionalGeneration
    BartForConditionalGeneration BertForMaskedLM RobertaForMaskedLM ElectraForMaskedLM""".split()
#: Those whose trace warns of an output that a step does not return.
UNREAD = ["T5ForConditionalGeneration", "BartForConditionalGeneration"]
TRANSFORMERS = """
import json, sys
import torch, transformers
import small_configs
from cleave.compiler import kept_traces
from cleave.trace import trace

IDS = torch.randint(3, 90, (2, 16), generator=torch.Generator().manual_seed(1))

def traced(name, seed):
    torch.manual_seed(seed)
    kind = getattr(transformers, name)
    model = kind(small_configs.config_of(kind, kind.config_class.model_type)).train()
    inputs, calls = {"input_ids": IDS, "labels": IDS.clone()}, []
    # What tracing loads is then loaded.
    whole = trace(model, inputs)
    found = kept_traces.kept_trace(model, inputs, None, [],
                                   lambda: calls.append(1) or trace(model, inputs))
    return kept_traces.different(whole, found), len(calls)

if __name__ == "__main__":
    print(json.dumps({name: traced(name, int(sys.argv[1])) for name in sys.argv[2:]}))
"""


@pytest.mark.parametrize("name", ["GPT2LMHeadModel"])
def test_a_model_of_transformers(name, cache, tmp_path, monkeypatch):
    """Another object of the same configuration reads its trace."""
    of = loaded(tmp_path / "of_transformers.py", TRANSFORMERS, monkeypatch)
    assert of.traced(name, 1) == ("", 1)
    assert of.traced(name, 2) == ("", 0)


@pytest.mark.skipif(not ALL, reason="many models are traced: CLEAVE_TEST_ALL")
def test_models_of_transformers(cache, tmp_path):
    """What another process reads is what is traced without a cache."""
    (tmp_path / "of_transformers.py").write_text(TRANSFORMERS)

    def run(seed):
        out = subprocess.run([sys.executable, "-B", "of_transformers.py", str(seed), *NAMES], cwd=tmp_path,
                             check=True, text=True, stdout=subprocess.PIPE,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        return json.loads(out.stdout.splitlines()[-1])

    written, read = run(1), run(2)
    assert [name for name in NAMES if written[name][0] or read[name][0]] == []
    # One that says something when it is traced is traced at each start.
    assert [name for name in NAMES if read[name][1]] == UNREAD


# Starts -------------------------------------------------------------------------------

START = """
import logging, sys
import torch, cleave
import own_net
from cleave.compiler import build
import cleave.trace
calls = []
original = cleave.trace.trace
cleave.trace.trace = lambda *args, **named: calls.append(1) or original(*args, **named)
torch.manual_seed(0)
model = own_net.Net()
step = cleave.compile(model, (torch.randn(4, 6), torch.randn(4, 6)), optimizer=cleave.AdamW(lr=0.1),
                      target=cleave.Target(threads=1))
x, y = torch.randn(4, 6), torch.randn(4, 6)
losses = [float(step(x, y)) for _ in range(3)]
state = {n: t.tolist() for n, t in step.state_dict().items()}
print(len(calls), repr((losses, state, float(step.evaluate(x, y)))))
"""


@pytest.mark.skipif(not ALL, reason="processes that import torch take long: CLEAVE_TEST_ALL")
def test_the_next_start(cache, tmp_path):
    """It does not trace, and trains the same."""
    (tmp_path / "own_net.py").write_text(NET)
    (tmp_path / "start.py").write_text(START)

    def start(**variables):
        path = os.pathsep.join([str(tmp_path), *sys.path])
        out = subprocess.run([sys.executable, "-B", "start.py"], cwd=tmp_path, check=True, text=True,
                             stdout=subprocess.PIPE,
                             env={**os.environ, "PYTHONPATH": path, "CLEAVE_CHECK": "off", **variables})
        calls, said = out.stdout.split(" ", 1)
        return int(calls), said

    first, second = start(), start()
    assert (first[0], second[0]) == (1, 0) and first[1] == second[1]
    assert start() == second
    assert start(CLEAVE_CACHE_VERIFY="1") == (1, second[1])
    assert start(OTHER="1") == (1, second[1])
    (tmp_path / "own_net.py").write_text(NET.replace("SCALE = 2.0", "SCALE = 4.0"))
    changed = start()
    assert changed[0] == 1 and changed[1] != second[1]
