# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Compressed gradients: recurrences in NumPy, and the split step against the whole one.

The program after `--spmd-compress-gradients` is one of global tensors, in which workers are a
dimension. Its gradients of each worker are those of PyTorch on the worker's samples; what a
compressor makes of them is computed again in NumPy; and the program on ranks equals it.
"""

import json
import re
import subprocess

import numpy as np
import pytest
import torch

import cleave
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import ToolError, interpret, run_tool, tool
from cleave.trace import trace
from proofs import ALL
from recipe_runs import OPTIMIZERS, agree, emit, family, random_inputs
from trace_support import text_in_double

#: No dropout: PyTorch computes the same.
STILL = tuple((name, 0.0) for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"))
SIZES = (8, 8, *STILL)
#: Exact in f32.
LR = 0.125
PLAIN = ["--optimizer=sgd"]

COMPRESSORS = {
    "topk": "topk,density=0.1,smallest=8",
    "threshold": "threshold,keep=0.1,every=2,smallest=8",
    "powersgd": "powersgd,rank=2,min_rate=1.2",
    "fixed": "powersgd,rank=2,min_rate=1.2,right=fixed",
    "int8": "int8,smallest=8",
    "1bit": "1bit,smallest=8",
}


def compressed(folder, compress, mesh, recipes="", micro_batches=1, phase="placed",
               flags=OPTIMIZERS["adamw"], sizes=(8, 8), more=()):
    """The text of the compressed step."""
    return emit(folder, "gpt2", phase, *flags, f"--mesh={mesh}", f"--plan={recipes}",
                f"--micro-batches={micro_batches}", f"--compress={compress}", *more, sizes=sizes)


def run(text, inputs):
    """Results and published gradients of the step."""
    return interpret(text, inputs, entry="train")


def slot(values, name):
    """The values of a slot of state, by parameter."""
    return {key.removesuffix("." + name): value for key, value in values.items()
            if key.endswith("." + name)}


def zero_state(inputs):
    """The inputs of a first step."""
    inputs = {**inputs, "lr": np.array(LR, np.float32)}
    return {name: np.zeros_like(value) if name.endswith((".residual", "_residual", ".threshold",
                                                         ".right_factor")) else value
            for name, value in inputs.items()}


#: A refusal: no rank has all of a tensor, whose codes it could send.
CODES_OF_SHARDS = ("its codes are those of pieces of the whole tensor, of which a rank holds a "
                   "shard: compress parameters that no other axis shards")

CASES = [
    ("dp=2", "", 1), ("dp=4", "", 1), ("dp=2", "", 2), ("dp=2,tp=2", "megatron-sp", 2),
    ("dp=2,cp=2", "ring", 1), ("dp=4", "zero1", 1), ("dp=2,fsdp=2", "dp(fsdp),zero3(fsdp)", 1),
]


def sample(cases, every):
    """Each case with some of the compressors; with all of them where long tests run."""
    return [(*case, name) for i, case in enumerate(cases) for j, name in enumerate(COMPRESSORS)
            if ALL or (i + j) % every == 0]


@pytest.mark.parametrize("mesh, recipes, micro_batches, name", sample(CASES, 3))
def test_ranks_equal_the_program_of_whole_tensors(tmp_path, mesh, recipes, micro_batches, name):
    compress = COMPRESSORS[name]
    if "tp=" in mesh or "fsdp=" in mesh:
        if name in ("int8", "1bit"):
            with pytest.raises(ToolError, match=CODES_OF_SHARDS):
                compressed(tmp_path, compress, mesh, recipes, micro_batches)
            return
        if name in ("topk", "threshold"):
            compress += ",unit=shard"
    whole = compressed(tmp_path, compress, mesh, recipes, micro_batches)
    inputs = random_inputs(whole)
    results, gradients = run(whole, inputs)
    own_results, own_gradients = run(
        compressed(tmp_path, compress, mesh, recipes, micro_batches, "local"), inputs)
    agree(own_results, results)
    agree(own_gradients, gradients)
    assert slot(results, "residual")


@pytest.mark.parametrize("schedule, mesh, recipes, name", sample(
    [("1f1b", "pp=2,dp=2", ""), ("zb-h1", "pp=2,dp=2", ""),
     ("gpipe", "dp=2,pp=2,tp=2", "megatron-sp")], 3))
def test_stages_equal_the_program_of_whole_tensors(tmp_path, schedule, mesh, recipes, name):
    """The embedding is tied: its gradient has a term of the first stage and one of the last."""
    compress = COMPRESSORS[name]
    if "tp=" in mesh:
        if name in ("int8", "1bit"):
            with pytest.raises(ToolError, match=CODES_OF_SHARDS):
                compressed(tmp_path, compress, mesh, recipes, 2, more=[f"--schedule={schedule}"])
            return
        if name in ("topk", "threshold"):
            compress += ",unit=shard"
    arguments, more = (compress, mesh, recipes, 2), [f"--schedule={schedule}"]
    whole = compressed(tmp_path, *arguments, more=more)
    inputs = random_inputs(whole)
    results, gradients = run(whole, inputs)
    found = run(compressed(tmp_path, *arguments, "scheduled", more=more), inputs)
    agree(found[0], results)
    agree(found[1], gradients)


def chain(text, inputs, steps, batches=None):
    """Runs steps one after the other, of one batch or of `batches`; yields the inputs, results
    and gradients of each."""
    inputs = zero_state(inputs)
    for number in range(1, steps + 1):
        inputs["step"] = np.array(number)
        if batches:
            inputs.update(batches[number - 1])
        results, gradients = run(text, inputs)
        yield inputs, results, gradients
        inputs = {**inputs, **{name: value for name, value in results.items() if name in inputs}}


def torch_gradients(inputs, workers, micro_batches):
    """Gradients of each worker's samples in PyTorch, by parameter: `[workers, ...]`."""
    model = family("gpt2", **dict(STILL))().train().double()
    model.load_state_dict({name: torch.from_numpy(inputs[name]).reshape(value.shape)
                           for name, value in model.state_dict().items() if name in inputs},
                          strict=False)
    model.tie_weights()
    ids, labels = (torch.from_numpy(inputs[name]) for name in ("input_ids", "labels"))
    count = (labels[:, 1:] != -100).sum()
    order = np.arange(len(ids)).reshape(micro_batches, workers, -1)
    found = {}
    for worker in range(workers):
        own = order[:, worker].ravel()
        model.zero_grad()
        logits = model(input_ids=ids[own]).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[own][:, 1:].flatten(), ignore_index=-100,
            reduction="sum")
        (loss / count).backward()
        for name, parameter in model.named_parameters():
            found.setdefault(name, []).append(parameter.grad.numpy().copy())
    return {name: np.stack(values) for name, values in found.items()}


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_gradients_of_workers_are_those_of_pytorch(tmp_path, micro_batches):
    text = compressed(tmp_path, "topk,density=1,smallest=0", "dp=2", flags=PLAIN, sizes=SIZES,
                      micro_batches=micro_batches)
    inputs = zero_state(random_inputs(text))
    _, gradients = run(text, inputs)
    expected = torch_gradients(inputs, 2, micro_batches)
    assert gradients.keys() == expected.keys()
    for name, value in expected.items():
        assert gradients[name].size == value.size, name
        error = np.abs(gradients[name].reshape(value.shape) - value).max()
        assert error <= 1e-12 * max(np.abs(value).max(), 1e-3), (name, error)


def orthonormal(matrix):
    q, r = np.linalg.qr(matrix)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def largest(terms, count):
    """Indices of the largest magnitudes of rows, lower indices first."""
    return np.argsort(-np.abs(terms), axis=1, kind="stable")[:, :count]


def share(fraction, size):
    return min(max(int(np.floor(fraction * size + 0.5)), 1), size)


class Recurrence:
    """The result of a compressor for `[workers, elements]` terms; state by name."""

    def __init__(self, name, shape, workers):
        self.name, self.shape, self.workers, self.state = name, shape, workers, {}

    def __call__(self, terms, number):
        return getattr(self, {"1bit": "codes", "int8": "codes", "fixed": "powersgd"}
                       .get(self.name, self.name))(terms, number)

    def topk(self, terms, number):
        sent = np.zeros_like(terms)
        chosen = largest(terms, share(0.1, terms.shape[1]))
        np.put_along_axis(sent, chosen, np.take_along_axis(terms, chosen, 1), 1)
        return sent.sum(0), terms - sent

    def threshold(self, terms, number):
        keep = share(0.1, terms.shape[1])
        chosen = largest(terms, min(int(np.ceil(1.5 * keep)), terms.shape[1]))
        values = np.take_along_axis(terms, chosen, 1)
        if number % 2 == 1:
            self.state["threshold"] = np.abs(values[:, keep - 1:keep])
        values = np.where(np.abs(values) >= self.state["threshold"], values, 0)
        sent = np.zeros_like(terms)
        np.put_along_axis(sent, chosen, values, 1)
        return sent.sum(0), terms - sent

    def powersgd(self, terms, number):
        matrices = terms.reshape(self.workers, self.shape[0], -1)
        columns = matrices.shape[2]
        row, column = np.arange(columns)[:, None] * 1.0, np.arange(2)[None] * 1.0
        large = np.sin(row * 12.9898 + column * 78.233) * 43758.5453
        start = 2 * (large - np.floor(large)) - 1
        if self.name == "powersgd":
            start = self.state.get("right_factor", start)
        left = orthonormal((matrices @ start).sum(0))
        right = (matrices.transpose(0, 2, 1) @ left).sum(0)
        self.state["right_factor"] = right
        total = left @ right.T
        return total.ravel(), (matrices - total / self.workers).reshape(terms.shape)

    def encode(self, values):
        """The values that the codes of the last dimension stand for."""
        if self.name == "1bit":
            return np.where(values < 0, -1, 1) * np.abs(values).mean(-1, keepdims=True)
        scale = np.abs(values).max(-1, keepdims=True) / 127
        return np.floor(values / np.where(scale > 0, scale, 1) + 0.5) * scale

    def codes(self, terms, number):
        size = -(-terms.shape[1] // self.workers)
        if self.name == "1bit":
            size = -(-size // 8) * 8
        padded = np.pad(terms, ((0, 0), (0, size * self.workers - terms.shape[1])))
        pieces = padded.reshape(self.workers, self.workers, size)
        sent = self.encode(pieces)
        sums = sent.sum(0) + self.state.get("owner_residual", 0)
        total = self.encode(sums)
        self.state["owner_residual"] = sums - total
        kept = (pieces - sent).reshape(self.workers, -1)[:, :terms.shape[1]]
        return total.ravel()[:terms.shape[1]], kept


@pytest.mark.parametrize("mesh, delay, name",
                         sample([("dp=2", 0), ("dp=4", 0), ("dp=2", 1)], 2))
def test_steps_follow_the_recurrence(tmp_path, mesh, delay, name):
    """Three steps: sums, residuals and further state; and nothing is lost over all of them. What
    is delayed is the decompressed gradient."""
    text = compressed(tmp_path, COMPRESSORS[name], mesh, flags=PLAIN, sizes=SIZES,
                      more=[f"--update-delay={delay}"])
    workers = int(mesh[-1])
    known, sent, whole, waiting = {}, {}, {}, {}
    for inputs, results, gradients in chain(text, random_inputs(text), 3):
        residuals = slot(results, "residual")
        assert residuals
        for parameter, kept in residuals.items():
            shape = results[parameter].shape
            recurrence = known.setdefault(parameter, Recurrence(name, shape, workers))
            gradient = gradients[parameter].reshape(workers, -1)
            total, rest = recurrence(
                gradient + inputs[parameter + ".residual"].reshape(workers, -1),
                int(inputs["step"]))
            scale = np.abs(gradient).max() + 1e-3
            assert np.abs(kept.reshape(workers, -1) - rest).max() <= 1e-10 * scale, parameter
            found = ((inputs[parameter] - results[parameter]) / LR).ravel()
            if delay:
                total, waiting[parameter] = waiting.get(parameter, 0 * total), total
            assert np.abs(found - total).max() <= 1e-9 * scale, parameter
            for key, value in recurrence.state.items():
                if (state := results.get(f"{parameter}.{key}")) is not None:
                    assert np.abs(state.ravel() - value.ravel()).max() <= 1e-9 * scale, key
            sent[parameter] = sent.get(parameter, 0) + found
            whole[parameter] = whole.get(parameter, 0) + gradient.sum(0)
        last = results
    for parameter, kept in slot(last, "residual").items():
        left = kept.reshape(workers, -1).sum(0)
        if (owner := last.get(parameter + ".owner_residual")) is not None:
            left = left + owner.ravel()[:left.size]
        left = left + waiting.get(parameter, 0)
        # Sums are found from differences of parameters, which round at 1e-16 / LR.
        scale = np.abs(whole[parameter]).max() + 1e-3
        assert np.abs(sent[parameter] + left - whole[parameter]).max() <= 1e-12 * scale, parameter


class Products(torch.nn.Module):
    """The gradient of its matrix is `t.T @ x / samples`, whatever the matrix is."""

    def __init__(self, rows, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(rows, columns))

    def forward(self, x, t):
        return (x @ self.weight.T * t).sum() / len(x)


SAMPLES, ROWS, COLUMNS = 16, 8, 12


def products(folder, *flags, phase="placed"):
    """The text of a step of plain SGD, in f64."""
    path = folder / "products.mlir"
    path.write_text(text_in_double(trace(Products(ROWS, COLUMNS), (
        torch.zeros(SAMPLES, COLUMNS), torch.zeros(SAMPLES, ROWS))).mlir))
    return run_tool([tool("cleave-compile"), str(path), f"--emit={phase}", *PLAIN, "--mesh=dp=4",
                     *flags])


def updates(text, batches, ranks=None):
    """By step: the sum that was applied, and the results, of `ranks` where that text is given."""
    start = {name: 0 * value for name, value in random_inputs(text).items()}
    return [((inputs["weight"] - results["weight"]) / LR, results)
            for inputs, results, _ in chain(ranks or text, start, len(batches), batches)]


def products_of(x, t):
    """The sum of the gradients of all workers."""
    return t.T @ x / SAMPLES


@pytest.mark.parametrize("phase", ["placed", "local"])
def test_full_rank_is_the_dense_sum(tmp_path, phase):
    """Factors with the rank of the smaller side span all columns. The program of ranks ("local")
    also shows that these agree to the bit: the interpreter refuses ranks that have different bits
    of what is replicated, as the weight and the right factor are."""
    rng = np.random.default_rng(2)
    batches = [{name: rng.standard_normal((SAMPLES, size))
                for name, size in (("x", COLUMNS), ("t", ROWS))} for _ in range(3)]
    flag = f"--compress=powersgd,rank={ROWS},min_rate=0"
    full = updates(products(tmp_path, flag), batches, products(tmp_path, flag, phase=phase))
    dense = updates(products(tmp_path), batches)
    for (found, results), (expected, _), batch in zip(full, dense, batches, strict=True):
        scale = np.abs(expected).max()
        assert np.abs(expected - products_of(**batch)).max() <= 1e-12 * scale
        assert np.abs(found - expected).max() <= 1e-10 * scale
        assert np.abs(results["weight.residual"].sum(0)).max() <= 1e-10 * scale
    factor, = [results["weight.right_factor"] for _, results in full[-1:]]
    assert factor.shape == (COLUMNS, ROWS) and np.linalg.matrix_rank(factor) == ROWS


def test_sums_of_low_rank_are_exact(tmp_path):
    """Gradients of workers have rank 4, and their sum rank 2: it is exact in the first step, and
    later too, where it has other columns, since what is left cancels. A sum of rank 3 is not."""
    text = products(tmp_path, "--compress=powersgd,rank=2,min_rate=0")

    def batch(rank, seed):
        rng = np.random.default_rng(seed)
        x, t = rng.standard_normal((4, 4, COLUMNS)), rng.standard_normal((4, 4, ROWS))
        # Workers cancel in pairs, but for the first samples of one.
        x[1], t[1], x[3], t[3] = x[0], -t[0], x[2], -t[2]
        x[1, :rank] = 0
        return dict(x=x.reshape(-1, COLUMNS), t=t.reshape(-1, ROWS))

    batches = [batch(2, seed) for seed in (1, 1, 2, 3)]
    assert [np.linalg.matrix_rank(products_of(**own)) for own in batches] == [2] * 4
    assert np.linalg.matrix_rank(batches[0]["t"][:4].T @ batches[0]["x"][:4]) == 4
    for (found, results), own in zip(updates(text, batches), batches, strict=True):
        expected = products_of(**own)
        assert np.abs(found - expected).max() <= 1e-10 * np.abs(expected).max()
        kept = results["weight.residual"]
        assert np.abs(kept).max() > 0.1 and np.abs(kept.sum(0)).max() <= 1e-10
    (found, _), = updates(text, [batch(3, 1)])
    expected = products_of(**batch(3, 1))
    assert np.linalg.matrix_rank(expected) == 3
    assert np.abs(found - expected).max() > 1e-3 * np.abs(expected).max()


def dense_run(text, inputs):
    """That of a step that compresses nothing, on the inputs of one that does."""
    return run(text, {name: value for name, value in inputs.items()
                      if not name.endswith((".residual", ".threshold"))})


@pytest.mark.parametrize("compress", ["topk,density=1,smallest=0",
                                      "threshold,keep=1,every=2,smallest=0"])
def test_all_elements_of_four_workers_are_the_dense_sum(tmp_path, compress):
    """To the rounding of another order: ranks add up halves, (0 + 2) + (1 + 3), the compressor one
    worker after the other."""
    inputs = zero_state(random_inputs(compressed(tmp_path, compress, "dp=4", flags=PLAIN)))
    results, _ = run(compressed(tmp_path, compress, "dp=4", phase="local", flags=PLAIN), inputs)
    expected, _ = dense_run(emit(tmp_path, "gpt2", "local", *PLAIN, "--mesh=dp=4"), inputs)
    for name, value in expected.items():
        scale = max(np.abs(value).max(), 1e-3)
        assert np.abs(results[name].ravel() - value.ravel()).max() <= 1e-12 * scale, name
    assert not any(kept.any() for kept in slot(results, "residual").values())


def test_sums_of_nodes_lose_nothing(tmp_path):
    """HiTopKComm: after three steps, what was sent and what is left is the sum of all gradients of
    the dense step; and with all elements each step is the dense one."""
    mesh, recipes = "node=2,dp=4", "dp(node),dp"
    few, whole = (compressed(tmp_path, f"topk,{share}", mesh, recipes, flags=PLAIN, sizes=SIZES,
                             more=["--compress-over=node"])
                  for share in ("density=0.1,smallest=8", "density=1,smallest=0"))
    dense = emit(tmp_path, "gpt2", "placed", *PLAIN, f"--mesh={mesh}", f"--plan={recipes}",
                 sizes=SIZES)
    sent, wanted = {}, {}
    for inputs, results, _ in chain(few, random_inputs(few), 3):
        kept = slot(results, "residual")
        expected, gradients = dense_run(dense, inputs)
        for name in kept:
            own = ((inputs[name] - results[name]) / LR).ravel()
            sent[name] = sent.get(name, 0) + own
            wanted[name] = wanted.get(name, 0) + gradients[name].ravel()
        all_sent, _ = run(whole, {**zero_state(random_inputs(whole)), **{
            name: value for name, value in inputs.items() if not name.endswith(".residual")}})
        for name, value in expected.items():
            scale = max(np.abs(value).max(), 1e-3)
            assert np.abs(all_sent[name].ravel() - value.ravel()).max() <= 1e-12 * scale, name
        assert not any(value.any() for value in slot(all_sent, "residual").values())
    for name, value in kept.items():
        assert value.any() and value.shape[:2] == (2, 4)
        left = value.sum(0).ravel()[:sent[name].size]
        # Sums are found from differences of parameters, which round at 1e-16 / LR.
        scale = np.abs(wanted[name]).max() + 1e-3
        assert np.abs(sent[name] + left - wanted[name]).max() <= 1e-12 * scale, name


@pytest.mark.parametrize("mesh, recipes, compress", [
    ("dp=4", "", "powersgd,rank=2,min_rate=1.2"), ("dp=2", "zero1", "topk,density=0.1,smallest=8"),
    ("dp=2", "", "1bit,smallest=8"), ("dp=2,tp=2", "megatron-sp", "powersgd,rank=2,min_rate=1.2"),
][slice(None) if ALL else slice(0, 3)])
@pytest.mark.parametrize("optimizer", [PLAIN, OPTIMIZERS["adamw"]], ids=["sgd", "adamw"])
def test_the_clip_is_on_the_sum(tmp_path, mesh, recipes, compress, optimizer):
    """The norm is that of the decompressed gradients, and on ranks it is the same; they are what
    plain SGD applies without a clip."""
    clip = 0.25
    plain = compressed(tmp_path, compress, mesh, recipes, flags=PLAIN)
    text = compressed(tmp_path, compress, mesh, recipes, flags=[*optimizer, f"--max-grad-norm={clip}"])
    inputs = zero_state(random_inputs(text))
    for name, value in inputs.items():
        if name.endswith((".exp_avg", ".exp_avg_sq")):
            inputs[name] = 0 * value
    inputs["step"] = np.array(1)
    applied, _ = run(plain, {name: inputs[name] for name in random_inputs(plain)})
    results, gradients = run(text, inputs)
    sums = {name: (inputs[name] - applied[name]) / LR for name in gradients}
    norm = np.sqrt(sum((value ** 2).sum() for value in sums.values()))
    assert norm > 2 * clip and results["grad_norm"] == pytest.approx(norm, rel=1e-12)
    whole = np.sqrt(sum((value.reshape(-1, sums[name].size).sum(0) ** 2).sum()
                        for name, value in gradients.items()))
    assert abs(whole / norm - 1) > 1e-3, "the norm of what was to be sent is another"
    for name, value in sums.items():
        clipped = value * clip / (norm + 1e-6)
        found = (results[name + ".exp_avg"] / (1 - 0.9) if optimizer != PLAIN
                 else (inputs[name] - results[name]) / LR)
        assert np.abs(found - clipped).max() <= 1e-9 * (np.abs(clipped).max() + 1e-3), name
    own_results, own_gradients = run(
        compressed(tmp_path, compress, mesh, recipes, phase="local",
                   flags=[*optimizer, f"--max-grad-norm={clip}"]), inputs)
    agree(own_results, results)
    agree(own_gradients, gradients)


@pytest.mark.parametrize("mesh, recipes, compress, message", [
    ("dp=2", "", "gzip", "unknown compression 'gzip'; there are powersgd, topk, threshold, int8, "
     "1bit"),
    ("dp=2", "", "topk", "compression 'topk' needs density, which must be above 0 and at most 1"),
    ("dp=2", "", "topk,density=0", "density of compression 'topk' must be above 0 and at most 1, "
     "got '0'"),
    ("dp=2", "", "topk,density=nan", "must be above 0"),
    ("dp=2", "", "topk,rank=4,density=1", "compression 'topk' has no setting 'rank'"),
    ("dp=2", "", "topk,density=1,density=1", "is given twice"),
    ("dp=2", "", "topk,density=1,unit=row", "must be tensor or shard, got 'row'"),
    ("dp=2", "", "powersgd,rank=1.5", "rank of compression 'powersgd' must be a positive integer"),
    ("dp=2", "", "powersgd,rank=64,min_rate=0", "rank 64 is above 32, the smaller side of this "
     "matrix"),
    ("dp=2", "", "powersgd,rank=512", "factors of rank 512 are not min_rate times smaller"),
    ("dp=2", "zero2", "topk,density=0.1", "no rank has the whole gradient, which a recipe shards "
     'over "dp": use \'zero1\', or compress over another axis'),
    ("dp=2", "zero3", "powersgd,rank=2,min_rate=1", "no rank has the whole gradient"),
    ("dp=2,tp=2", "megatron", "topk,density=0.1,smallest=8", "use unit=shard"),
    ("tp=2", "megatron", "topk,density=0.1", 'the mesh has no axis "dp"'),
    ("", "", "topk,density=0.1", "need a mesh"),
    ("dp=2,tp=2", "megatron", "int8,smallest=8", CODES_OF_SHARDS),
    ("dp=2,tp=2", "megatron", "1bit,smallest=8", CODES_OF_SHARDS),
    ("dp=2,tp=3", "megatron", "topk,density=0.1,smallest=8,unit=shard",
     "a dimension of 128 elements is not divisible by its 3 shards"),
])
def test_what_is_refused(tmp_path, mesh, recipes, compress, message):
    with pytest.raises(ToolError, match=re.escape(message)):
        compressed(tmp_path, compress, mesh, recipes)


@pytest.mark.parametrize("flags, message", [
    (["--compress=int8", "--mesh=pp=2,dp=2", "--micro-batches=2", "--schedule=pipedream",
      "--check-finite=off"],
     "compressed gradients need a synchronous schedule: 'pipedream' updates after each "
     "micro-batch"),
    (["--compress=int8", "--optimizer-fusion=forward"],
     "compressed gradients leave a residual for the next step: updates cannot be deferred to it"),
    (["--compress=int8", "--optimizer-fusion=backward", "--check-finite=off"],
     "compressed gradients are complete after backward: updates cannot run in it"),
    (["--compress=int8", "--deterministic=4"],
     "compressed gradients depend on the number of ranks: they cannot be deterministic for every "
     "number of them"),
    (["--compress="], "--compress: unknown compression ''; there are powersgd"),
    (["--compress-over=node"], "--compress-over needs --compress"),
    (["--compress=int8", "--compress-over="], 'the mesh has no axis ""'),
], ids=lambda x: x[-1] if isinstance(x, list) else "")
def test_what_it_does_not_go_with(tmp_path, flags, message):
    mesh = [] if any("mesh" in flag for flag in flags) else ["--mesh=dp=2"]
    with pytest.raises(ToolError, match=re.escape(message)) as refused:
        emit(tmp_path, "gpt2", "scheduled", *PLAIN, *mesh, *flags, sizes=(8, 8))
    of_options = message.startswith(("--", "compressed gradients"))
    assert refused.value.status == (2 if of_options else 1)


def report(folder, model, *flags):
    """The remarks on a step, and the communication of a rank in its report."""
    path = folder / "report.json"
    said = subprocess.run([tool("cleave-compile"), model, "--plan-only", f"--report={path}", *flags],
                          capture_output=True, text=True, check=True).stderr
    return said, json.loads(path.read_text())["communication"]["train"]["totals"]


def layer(folder, rows, columns, samples=8):
    """A model of one matrix and no bias, as a file."""
    model = torch.nn.Linear(columns, rows, bias=False)
    traced = trace(model, torch.zeros(samples, columns), loss_fn=lambda y: y.square().mean())
    path = folder / "layer.mlir"
    path.write_text(traced.mlir)
    return path


def ring(ranks, size):
    """The elements that a rank sends in an all-reduce of `size`."""
    return 2 * (ranks - 1) / ranks * size


@pytest.mark.parametrize("rows, columns, rank, more, rate", [
    (4096, 1024, 4, "", 204.8),
    (7680, 1920, 512, ",factors=bf16,right=fixed", 1 / (1 - 0.833)),
    (10752, 2688, 640, ",factors=bf16,right=fixed", 1 / (1 - 0.851)),
    (15872, 3968, 896, ",factors=bf16,right=fixed", 1 / (1 - 0.859)),
])
def test_factors_have_the_published_sizes(tmp_path, rows, columns, rank, more, rate):
    """4096 x 1024 of rank 4; and the three models of arXiv 2102.12092, table 1 (appendix D)."""
    model = layer(tmp_path, rows, columns)
    _, [dense] = report(tmp_path, model, "--mesh=dp=4")
    _, totals = report(tmp_path, model, "--mesh=dp=4",
                       f"--compress=powersgd,rank={rank},min_rate=1{more}")
    # The loss is summed in full, 4 bytes.
    loss = ring(4, 4)
    sent = sum(total["bytes"] for total in totals) - loss
    size = 2 if more else 4
    assert dense["bytes"] - loss == ring(4, 4 * rows * columns)
    assert sent == ring(4, size * rank * (rows + columns))
    assert (dense["bytes"] - loss) / sent == pytest.approx(rate, rel=1e-3 if not more else 4e-3)


@pytest.mark.parametrize("compress, received", [
    ("topk,density=0.005", lambda ranks, n: (ranks - 1) * 8 * n // 200),
    ("threshold,keep=0.005,capacity=1", lambda ranks, n: (ranks - 1) * 8 * n // 200),
    ("powersgd,rank=2", lambda ranks, n: ring(ranks, 4 * 2 * (64 + 50))),
    ("powersgd,rank=2,factors=bf16,right=fixed", lambda ranks, n: ring(ranks, 2 * 2 * (64 + 50))),
    ("int8", lambda ranks, n: (ranks - 1) / ranks * 2 * (n + 4 * ranks)),
    ("1bit", lambda ranks, n: (ranks - 1) / ranks * 2 * (n / 8 + 4 * ranks)),
])
def test_messages_are_counted_as_reported(compress, received):
    """A rank's counters of a step that ran: what it sends, which in a ring is what it receives. Of
    the sparse ones a message is 100 times less than a dense gradient, but one comes from each."""
    rows, columns, ranks = 64, 50, 4
    elements = rows * columns
    torch.manual_seed(0)
    x = torch.randn(8, columns)
    step = cleave.compile(torch.nn.Linear(columns, rows, bias=False), (x,),
                          lambda y: y.square().mean(), optimizer=cleave.SGD(lr=0.1),
                          mesh={"dp": ranks}, lossy=cleave.Lossy(compress=compress), check="off",
                          target=cleave.Target(threads=1))
    assert np.isfinite(float(step(x)))
    counted = {}
    for entry in step.communication():
        key = entry["kind"].replace("-", "_")
        counted[key] = counted.get(key, 0) + entry["bytes"]
    reported = {}
    for total in step.report()["communication"]["train"]["totals"]:
        reported[total["kind"]] = reported.get(total["kind"], 0) + total["bytes"]
    assert counted == reported
    sent = sum(counted.values()) - ring(ranks, 4)
    assert sent == received(ranks, elements)
    if compress.startswith(("topk", "threshold")):
        assert 4 * elements / (sent / (ranks - 1)) == 100
        # Of a dense sum in a ring a rank receives about as much as the gradient has, twice.
        assert ring(ranks, 4 * elements) / sent == 200 / ranks


@pytest.mark.parametrize("compress, bytes_of", [
    ("topk,density=0.005", lambda ranks, n: (ranks - 1) * 8 * round(0.005 * n)),
    ("threshold,keep=0.004,capacity=1.25", lambda ranks, n: (ranks - 1) * 8 * round(0.005 * n)),
    ("int8", lambda ranks, n: (ranks - 1) / ranks * 2 * (n + 4 * ranks)),
    ("1bit", lambda ranks, n: (ranks - 1) / ranks * 2 * (n / 8 + 4 * ranks)),
])
def test_messages_have_the_sizes_of_their_formulas(tmp_path, compress, bytes_of):
    """8 bytes for an element and its index: 100 times less than 4 for all at 0.5 %."""
    rows, columns, ranks = 512, 256, 4
    _, totals = report(tmp_path, layer(tmp_path, rows, columns), f"--mesh=dp={ranks}",
                       f"--compress={compress}")
    sent = sum(total["bytes"] for total in totals) - ring(ranks, 4)
    assert sent == bytes_of(ranks, rows * columns)


def test_ranks_of_a_node_compress_a_piece_each(tmp_path):
    """HiTopKComm: equal to global tensors; between nodes each rank sends the choice of its piece."""
    flags = dict(mesh="node=2,dp=4", recipes="dp(node),dp", more=["--compress-over=node"])
    arguments = "topk,density=0.1,smallest=8", flags.pop("mesh"), flags.pop("recipes")
    whole = compressed(tmp_path, *arguments, **flags)
    inputs = random_inputs(whole)
    results, gradients = run(whole, inputs)
    found = run(compressed(tmp_path, *arguments, phase="local", **flags), inputs)
    agree(found[0], results)
    agree(found[1], gradients)
    assert all(value.ndim == 3 and value.shape[:2] == (2, 4)
               for value in slot(results, "residual").values())
    rows, columns = 512, 256
    _, totals = report(tmp_path, layer(tmp_path, rows, columns), "--mesh=node=2,dp=4",
                       "--plan=dp(node),dp", "--compress=topk,density=0.01",
                       "--compress-over=node")
    between = sum(total["bytes"] for total in totals
                  if total["axes"] == '"node"' and total["kind"] == "all_gather")
    assert between == 8 * round(0.01 * rows * columns / 4)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_between_nodes_is_less_than_a_dense_sum(tmp_path, optimizer):
    """HiTopKComm (arXiv 2006.10956): 1 / (density * nodes) of a dense sum's elements between
    nodes, and within one a dense sum: what is gathered is the gradient."""
    nodes, ranks, elements = 16, 8, 1024 * 1024
    _, totals = report(tmp_path, layer(tmp_path, 1024, 1024, 128), f"--mesh=node={nodes},dp={ranks}",
                       "--plan=dp(node),dp", "--compress=topk,density=0.01",
                       "--compress-over=node", f"--optimizer={optimizer}")
    own = elements // ranks
    sent = {(total["kind"], total["axes"]): (total["count"], total["bytes"]) for total in totals}
    chosen = round(0.01 * own)
    # In one message of values and one of indices.
    assert sent["all_gather", '"node"'] == (2, (nodes - 1) * 8 * chosen)
    assert ring(nodes, own) / ((nodes - 1) * 2 * chosen) == pytest.approx(6.25, rel=1e-3)
    piece = (ranks - 1) * own * 4
    assert sent["reduce_scatter", '"dp"'] == (1, piece)
    assert sent["all_gather", '"dp"'] == (1, piece)


@pytest.mark.parametrize("compress", ["topk,density=0.01", "powersgd,rank=4", "int8"])
def test_stages_keep_their_gradients(tmp_path, compress):
    """Stages send each other as much as those of the dense step."""
    model = tmp_path / "gpt.mlir"
    assert write_model(["gpt", "--hidden", "64", "--heads", "4", "--layers", "2", "--seq", "16",
                 "--vocab", "64", "--batch", "16", "-o", str(model)]) == 0
    arguments = [tmp_path, model, "--mesh=pp=2,dp=2", "--micro-batches=2"]
    # Each send but for its first element: beside gradients and activations, a position sends sums of
    # squares, one number each, by which steps are checked; of the codes of the table that both
    # positions have, one sends the other the scales of two ranks.
    dense, found = (sum(total["elements"] - total["count"] for total in report(*arguments, *more)[1]
                        if total["axes"] == '"pp"')
                    for more in ([], [f"--compress={compress}"]))
    assert found == dense + (compress == "int8")


def test_one_worker_is_the_dense_step(tmp_path):
    model = layer(tmp_path, 64, 64)
    text = {}
    for name, more in [("dense", []), ("compressed", ["--compress=powersgd,rank=2"])]:
        path = tmp_path / f"{name}.mlir"
        run = subprocess.run([tool("cleave-compile"), model, "--mesh=dp=1", "--emit=placed", *more,
                              "-o", path], capture_output=True, text=True, check=True)
        assert ('axis "dp" has one position' in run.stderr) == bool(more)
        text[name] = path.read_text()
    assert text["dense"] == text["compressed"]


@pytest.mark.parametrize("recipe, mesh", [("summa2d", "dp=2,row=2,col=2"),
                                          ("summa25d", "dp=2,depth=1,row=2,col=2")])
def test_steps_of_products_are_refused(tmp_path, recipe, mesh):
    with pytest.raises(ToolError, match="step of a sum over samples for a gradient, which is not "
                                        "computed for each worker"):
        compressed(tmp_path, "powersgd,rank=2,min_rate=1", mesh, f"dp,{recipe}")


def test_a_sum_that_gains_nothing_is_said(tmp_path):
    model = layer(tmp_path, 64, 64)
    said, _ = report(tmp_path, model, "--mesh=dp=2", "--compress=topk,density=0.5,smallest=8")
    assert ("warning: compression 'topk,density=0.5,smallest=8': a rank receives 1.00 times the data "
            'of a dense sum over "dp": the share') in said
    said, _ = report(tmp_path, model, "--mesh=dp=2", "--compress=topk,density=0.4,smallest=8")
    assert "a rank receives" not in said
    said, _ = report(tmp_path, model, "--mesh=dp=2", "--compress=topk,density=0.4,smallest=8",
                     "--remarks")
    assert 'a rank receives 0.80 times the data of a dense sum over "dp"' in said
