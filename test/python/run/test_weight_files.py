# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Files of weights in other element types than the program's, in several files, and with
or without what a framework does not save. The judge is PyTorch's own conversion."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import cleave
from cleave.testing.tools import ToolError, run_tool, tool
from cleave.trace import trace
from cleave.trace.weights import save_module, save_weights
from cleave.compiler.entrance import grouped

ALL_PATTERNS = torch.arange(-2**15, 2**15, dtype=torch.int32).to(torch.int16)
LARGEST = torch.finfo(torch.float32).max
EDGES = [0.0, -0.0, 1.0, -1.0, 0.1, math.pi, math.inf, -math.inf, math.nan,
         1 + 2.0**-24, 1 + 3 * 2.0**-24, 1 + 2.0**-24 + 2.0**-52,      # ties, and just above
         LARGEST, -LARGEST, LARGEST + 2.0**102, 2.0**-126, 2.0**-126 - 2.0**-150,
         2.0**-149, 1.5 * 2.0**-149, 2.0**-150, 2.0**-150 + 2.0**-190, -2.0**-150,
         5e-324, 2.0**-1022]


class Gather(nn.Module):
    """A matrix, indices that are saved, and a factor that is not."""

    def __init__(self, size=4):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(size, size))
        self.register_buffer("order", torch.arange(size - 1, -1, -1))
        self.register_buffer("factor", torch.rand(size), persistent=False)
        self.register_buffer("unread", torch.rand(3), persistent=False)

    def forward(self, x):
        return (x @ self.weight)[:, self.order] * self.factor


def compiled(size=4, rows=2, **settings):
    x = torch.randn(rows, size)
    return cleave.compile(Gather(size), (x, torch.zeros(rows, size)), F.mse_loss, check="off",
                          optimizer=cleave.SGD(lr=0.1), **grouped(threads=1, **settings))


def bits(tensor):
    return tensor.contiguous().view(torch.int32)


@pytest.fixture(scope="module")
def wide():
    return compiled(256)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "w.safetensors")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("by_file", [True, False])
def test_all_values_of_16_bits(wide, path, dtype, by_file):
    state = {"weight": ALL_PATTERNS.view(dtype).reshape(256, 256), "order": torch.arange(256)}
    if by_file:
        save_file(state, path)
        wide.load_weights(path)
    else:
        wide.load_state_dict(state)
    assert torch.equal(bits(wide.state_dict()["weight"]), bits(state["weight"].float()))


@pytest.mark.parametrize("dtype, name", [
    (torch.float8_e4m3fn, "F8_E4M3"), (torch.float8_e5m2, "F8_E5M2")])
def test_files_of_8_bits_are_refused(wide, path, dtype, name):
    """Their scales are other tensors. Values in memory are converted."""
    before = wide.state_dict()
    state = {"weight": torch.full((256, 256), 0.5).to(dtype), "order": torch.arange(256)}
    save_file(state, path)
    with pytest.raises(ValueError, match=f"'weight' is {name} .* but F32"):
        wide.load_weights(path)
    assert torch.equal(bits(wide.state_dict()["weight"]), bits(before["weight"]))
    wide.load_state_dict(state)
    assert bool((wide.state_dict()["weight"] == 0.5).all())


@pytest.mark.parametrize("by_file", [True, False])
def test_values_of_64_bits(wide, path, by_file):
    torch.manual_seed(1)
    values = torch.randn(256 * 256, dtype=torch.float64) * 10.0 ** torch.randint(
        -46, 38, (256 * 256,)).double()
    values[:len(EDGES)] = torch.tensor(EDGES, dtype=torch.float64)
    state = {"weight": values.reshape(256, 256), "order": torch.arange(256, dtype=torch.int32)}
    if by_file:
        save_file(state, path)
        wide.load_weights(path)
    else:
        wide.load_state_dict(state)
    found = wide.state_dict()
    assert torch.equal(bits(found["weight"]), bits(state["weight"].float()))
    assert torch.equal(found["order"], torch.arange(256))


@pytest.mark.parametrize("mesh, plan, size", [({"dp": 2}, "zero3", 8), ({"dp": 2}, "zero3", 5)])
def test_shards_convert_what_they_read(path, mesh, plan, size):
    step = compiled(size, 4, mesh=mesh, plan=plan)
    state = {"weight": torch.randn(size, size).bfloat16(), "order": torch.arange(size).to(torch.uint8),
             "factor": torch.rand(size, dtype=torch.float64)}
    save_file(state, path)
    step.load_weights(path)
    found = step.state_dict()
    assert torch.equal(found["weight"], state["weight"].float())
    assert torch.equal(found["order"], torch.arange(size))
    one = compiled(size, 4)
    one.load_weights(path)
    x = torch.randn(4, size), torch.randn(4, size)
    assert float(step(*x)) == pytest.approx(float(one(*x)), rel=1e-6)


def good(**changes):
    state = {"weight": torch.ones(4, 4), "order": torch.arange(4), **changes}
    return {name: value for name, value in state.items() if value is not None}


@pytest.fixture(scope="module")
def small():
    return compiled()


def in_row(value, dtype=torch.float64):
    values = torch.ones(4, 4, dtype=dtype)
    values[2, 1] = value
    return values


@pytest.mark.parametrize("changes, message", [
    ({"weight": in_row(1e300)}, r"'weight' is F64 .* at \[2, 1\] is out of the range of F32"),
    ({"weight": in_row(LARGEST + 2.0**103)}, r"at \[2, 1\] is out of the range of F32"),
    ({"weight": in_row(-1e39)}, r"at \[2, 1\] is out of the range of F32"),
    ({"weight": torch.ones(4, 4, dtype=torch.int32)}, "'weight' is I32 .* but F32"),
    ({"order": torch.ones(4)}, "'order' is F32 .* but I64"),
    ({"order": torch.tensor([0, 1, 2, 2**63], dtype=torch.uint64)},
     r"'order' is U64 .* at \[3\] is out of the range of I64"),
    ({"order": torch.tensor([0, 1, 2, 9], dtype=torch.int16)}, r"index 9 at \[3\]"),
    ({"order": None}, "missing in the file: 'order'"),
    ({"weight": None, "order": None}, "missing in the file: 'weight', 'order'"),
    ({"other": torch.ones(1), "more": torch.ones(1)}, "unknown to the program: 'more', 'other'"),
])
def test_what_does_not_fit_is_refused(small, path, changes, message):
    before = small.state_dict()
    save_file(good(**changes), path)
    with pytest.raises(ValueError, match=message):
        small.load_weights(path)
    assert all(torch.equal(v, before[n]) for n, v in small.state_dict().items())


@pytest.mark.parametrize("changes, error, message", [
    ({"weight": in_row(1e300)}, ValueError, r"weight: .*at \[2, 1\], 1e\+300, is out of the range"),
    ({"order": None}, KeyError, "missing order"),
    ({"order": torch.ones(4)}, TypeError, "does not become i64"),
    ({"weight": torch.full((4, 4), 2**24 + 1)}, ValueError, "out of the range of f32"),
    ({"other": torch.ones(1)}, KeyError, "unknown other"),
])
def test_what_does_not_fit_is_refused_in_python(small, changes, error, message):
    with pytest.raises(error, match=message):
        small.load_state_dict(good(**changes))


@pytest.mark.parametrize("extra", [
    {}, {"factor": torch.full((4,), 2.0)}, {"unread": torch.ones(3)},
])
@pytest.mark.parametrize("by_file", [True, False])
def test_buffers_that_are_not_saved(path, extra, by_file):
    """They may be in a file or not; without, they keep the values of the trace."""
    step, module = compiled(), Gather()
    if by_file:
        save_file(good(**extra), path)
        step.load_weights(path)
    else:
        step.load_state_dict(good(**extra))
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    with torch.no_grad():
        module.load_state_dict(good())
        module.factor.copy_(extra.get("factor", module.factor))
        assert float(step.evaluate(x, y)) == pytest.approx(F.mse_loss(module(x), y).item(), rel=1e-6)


def test_an_index_of_several_files(small, tmp_path):
    state = good(weight=torch.randn(4, 4).half())
    save_file({"weight": state["weight"]}, tmp_path / "model-1.safetensors")
    save_file({"order": state["order"]}, tmp_path / "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    names = {"weight": "model-1.safetensors", "order": "model-2.safetensors"}

    def write(names):
        index.write_text(json.dumps({"metadata": {"total_size": 64}, "weight_map": names}))

    def refused(message):
        with pytest.raises(ValueError, match=message):
            small.load_weights(index)

    for path in (index, tmp_path):
        write(names)
        small.load_weights(path)
        assert torch.equal(small.state_dict()["weight"], state["weight"].float())
        small.load_weights(save(tmp_path / "one.safetensors", good()))
    write({**names, "order": "model-1.safetensors"})
    refused(r"the index and its files differ: 'order' is not in model-1.safetensors$")
    write({"weight": "model-1.safetensors"})
    refused("missing in the file: 'order'")
    save_file(state, tmp_path / "model-2.safetensors")
    write(names)
    refused("'weight' of model-2.safetensors is not in the index")
    for file in ("../model-1.safetensors", "/model-1.safetensors", "", "..", 3):
        write({"weight": file})
        refused("the file of tensor 'weight' is not the name of a file beside the index")
    write({"weight": "none.safetensors"})
    refused("none.safetensors: cannot read: No such file")
    index.write_text("{}")
    refused("not an index of weights: it has no object 'weight_map'")
    index.write_text("{")
    refused("not valid JSON")
    index.unlink()
    with pytest.raises(ValueError, match="holds neither model.safetensors nor"):
        small.load_weights(tmp_path)
    with pytest.raises(FileNotFoundError):
        small.load_weights(tmp_path / "missing")


def save(path, state):
    save_file(state, path)
    return path


def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
        tie_word_embeddings=False, attn_implementation="eager"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of the transformers library as it saves it in 16 bits: in one file, in
    several, and in one with a buffer that older files have."""
    folder = tmp_path_factory.mktemp("saved")
    model = llama().bfloat16()
    model.save_pretrained(folder / "one")
    model.save_pretrained(folder / "several", max_shard_size="6KB")
    state = load_file(folder / "one/model.safetensors")
    state["model.rotary_emb.inv_freq"] = llama().model.rotary_emb.inv_freq
    save_file(state, folder / "older.safetensors")
    assert len(list((folder / "several").glob("*.safetensors"))) > 1
    return folder


@pytest.fixture(scope="module")
def first_loss(saved):
    """The ids of a batch, and PyTorch's losses of two steps on it."""
    ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(2))
    model = type(llama()).from_pretrained(saved / "one", torch_dtype=torch.float32,
                                          attn_implementation="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return ids, losses


PLACES = ["one", "one/model.safetensors", "several", "several/model.safetensors.index.json",
          "older.safetensors"]


def test_weights_of_transformers_in_a_step(saved, first_loss):
    ids, expected = first_loss
    model = llama()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    step = cleave.compile(model, {"input_ids": ids, "labels": ids}, target=cleave.Target(threads=1),
                          check="off", optimizer=cleave.SGD(lr=0.5))
    start = step.training_state()
    for place in PLACES:
        step.load_training_state(start)
        step.load_weights(saved / place)
        assert [float(step(ids, ids)) for _ in range(2)] == pytest.approx(expected, rel=1e-5)
    step.load_state_dict(load_file(saved / "one/model.safetensors"))
    assert float(step(ids, ids)) == pytest.approx(expected[0], rel=1e-5)


def test_weights_of_transformers_in_cleave_run(saved, first_loss, tmp_path):
    ids, expected = first_loss
    traced = trace(llama(), {"input_ids": ids, "labels": ids})
    assert "model.rotary_emb.inv_freq" in [b.name for b in traced.buffers]
    save_module(traced, str(tmp_path / "m.mlir"))
    artifact, log = str(tmp_path / "m.so"), str(tmp_path / "log")
    run_tool([tool("cleave-compile"), str(tmp_path / "m.mlir"), "-o", artifact,
              "--optimizer=sgd", "--threads=1"])
    # One batch of it: in any order, each step has the same sequences.
    (tmp_path / "t.bin").write_bytes(ids.to(torch.int16).numpy().tobytes())
    for place in PLACES:
        run_tool([tool("cleave-run"), artifact, "--weights", str(saved / place), "--data",
                  str(tmp_path / "t.bin"), "--steps=2", "--lr=0.5", "--log", log, "--threads=1"])
        losses = [json.loads(line)["loss"] for line in open(log)]
        assert losses == pytest.approx(expected, rel=1e-5)


class Named(nn.Module):
    """What is added and what is multiplied by, under names that say the opposite."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 8)
        self.bias = nn.Parameter(torch.rand(8))
        self.weight = nn.Parameter(torch.rand(8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 64)

    def forward(self, ids, keep, labels):
        x = self.norm(self.table(ids) * self.bias - self.weight) * keep[..., None]
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def test_random_vectors_and_inputs_of_ones(tmp_path):
    """They go by what the model does with them, and by what is asked for."""
    ids = torch.zeros(2, 8, dtype=torch.long)
    for keep in (torch.ones(2, 8, dtype=torch.bool), torch.ones(2, 8, dtype=torch.long)):
        save_module(trace(Named(), {"ids": ids, "keep": keep, "labels": ids}), str(tmp_path / "m.mlir"))
        artifact, folder = str(tmp_path / "m.so"), str(tmp_path / str(keep.dtype))
        run_tool([tool("cleave-compile"), str(tmp_path / "m.mlir"), "-o", artifact, "--threads=1"])
        torch.arange(64, dtype=torch.int16).numpy().tofile(tmp_path / "t.bin")
        command = [tool("cleave-run"), artifact, "--random-init", "--data", str(tmp_path / "t.bin"),
                   "--steps=1", "--lr=0", "--save-every=1", "--save-dir", folder, "--threads=1",
                   "--labels-input=labels", "--label-shift=0"]
        with pytest.raises(ToolError, match="input 'keep' has no data: .* --ones-input names"):
            run_tool(command)
        with pytest.raises(ToolError, match="no input 'other' to fill"):
            run_tool([*command, "--ones-input=other"])
        with pytest.raises(ToolError, match="'labels' is filled with ones, and takes no tokens"):
            run_tool([*command, "--ones-input=keep", "--ones-input=labels"])
        run_tool([*command, "--ones-input=keep"])
        found = load_file(f"{folder}/step-1/model.safetensors")
        for name, value in (("bias", 1), ("weight", 0), ("norm.weight", 1), ("norm.bias", 0),
                            ("head.bias", 0)):
            assert torch.equal(found[name], torch.full_like(found[name], value)), name
        assert 0.01 < found["table.weight"].std() < 0.03


def test_a_later_file_replaces_an_earlier(tmp_path):
    """A large buffer that is not saved comes from the file of the trace."""
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(64, 64)
            self.register_buffer("factor", torch.rand(32, 64), persistent=False)

        def forward(self, ids, labels):
            x = (self.table(ids) * self.factor) @ self.table.weight.t()
            return F.cross_entropy(x.flatten(0, 1), labels.flatten())

    ids = torch.arange(64).reshape(2, 32)
    torch.arange(64, dtype=torch.int16).numpy().tofile(tmp_path / "t.bin")
    model = Large()
    traced = trace(model, {"ids": ids, "labels": ids})
    save_module(traced, str(tmp_path / "m.mlir"))
    save_weights(traced, str(tmp_path / "all.safetensors"))
    # Small, that the loss is far from 0: each token's nearest row is its own.
    weights = {"table.weight": (torch.randn(64, 64) / 8).bfloat16()}
    save_file(weights, tmp_path / "own.safetensors")
    artifact, log = str(tmp_path / "m.so"), str(tmp_path / "log")
    run_tool([tool("cleave-compile"), str(tmp_path / "m.mlir"), "-o", artifact, "--threads=1"])
    own = ["--weights", str(tmp_path / "own.safetensors")]
    command = [tool("cleave-run"), artifact, "--data", str(tmp_path / "t.bin"), "--steps=1",
               "--threads=1", "--label-shift=0", "--log", log]
    with pytest.raises(ToolError, match="constants that the framework does not save, of which only "
                                        "the file that tracing writes has the values: 'factor'"):
        run_tool([*command, *own])
    with pytest.raises(ToolError, match="constants that only a weights file holds: 'factor'"):
        run_tool([*command, "--random-init"])
    run_tool([*command, "--weights", str(tmp_path / "all.safetensors"), *own])
    with torch.no_grad():
        model.table.weight.copy_(weights["table.weight"])
        assert json.loads(open(log).readline())["loss"] == pytest.approx(model(ids, ids).item(), rel=1e-5)
