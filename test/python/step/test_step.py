# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A whole training step against PyTorch in f64, after every pass of the phase.

The model has what the passes look for: a fused projection that is split into
heads, a tied head whose last row is not predicted, ignored targets, a frozen
layer and a parameter of its own weight decay.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cleave.testing.tools import ToolError, interpret, optimize

MODEL = """
func.func @loss(
    %emb: tensor<50x8xf64> {graph.name = "emb", graph.role = "parameter", graph.aliases = ["head"]},
    %qkv: tensor<24x8xf64> {graph.name = "qkv", graph.role = "parameter"},
    %qkvb: tensor<24xf64> {graph.name = "qkvb", graph.role = "parameter", graph.weight_decay = 0.0 : f64, graph.lr_scale = 0.5 : f64},
    %out: tensor<8x8xf64> {graph.name = "out", graph.role = "parameter"},
    %frozen: tensor<8x8xf64> {graph.name = "frozen", graph.role = "parameter", graph.frozen},
    %norm: tensor<8xf64> {graph.name = "norm", graph.role = "parameter"},
    %hb: tensor<50xf64> {graph.name = "hb", graph.role = "parameter"},
    %ids: tensor<2x6xi64> {graph.name = "ids", graph.role = "input", graph.batch_dim = 0 : i64},
    %targets: tensor<2x6xi64> {graph.name = "targets", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f64> {graph.name = "loss"}) {
  %x = graph.gather %emb, %ids {dim = 0 : i64} : (tensor<50x8xf64>, tensor<2x6xi64>) -> tensor<2x6x8xf64>
  %n, %mean, %rstd = graph.layer_norm %x weight %norm {epsilon = 1.0e-5 : f64} : (tensor<2x6x8xf64>, tensor<8xf64>) -> (tensor<2x6x8xf64>, tensor<2x6xf64>, tensor<2x6xf64>)
  %p = graph.linear %n, %qkv bias %qkvb : (tensor<2x6x8xf64>, tensor<24x8xf64>, tensor<24xf64>) -> tensor<2x6x24xf64>
  %q0 = graph.slice %p {offsets = array<i64: 0, 0, 0>, sizes = array<i64: 2, 6, 8>, strides = array<i64: 1, 1, 1>} : (tensor<2x6x24xf64>) -> tensor<2x6x8xf64>
  %k0 = graph.slice %p {offsets = array<i64: 0, 0, 8>, sizes = array<i64: 2, 6, 8>, strides = array<i64: 1, 1, 1>} : (tensor<2x6x24xf64>) -> tensor<2x6x8xf64>
  %v0 = graph.slice %p {offsets = array<i64: 0, 0, 16>, sizes = array<i64: 2, 6, 8>, strides = array<i64: 1, 1, 1>} : (tensor<2x6x24xf64>) -> tensor<2x6x8xf64>
  %q1 = graph.reshape %q0 : (tensor<2x6x8xf64>) -> tensor<2x6x2x4xf64>
  %k1 = graph.reshape %k0 : (tensor<2x6x8xf64>) -> tensor<2x6x2x4xf64>
  %v1 = graph.reshape %v0 : (tensor<2x6x8xf64>) -> tensor<2x6x2x4xf64>
  %q = graph.transpose %q1 {permutation = array<i64: 0, 2, 1, 3>} : (tensor<2x6x2x4xf64>) -> tensor<2x2x6x4xf64>
  %k = graph.transpose %k1 {permutation = array<i64: 0, 2, 1, 3>} : (tensor<2x6x2x4xf64>) -> tensor<2x2x6x4xf64>
  %v = graph.transpose %v1 {permutation = array<i64: 0, 2, 1, 3>} : (tensor<2x6x2x4xf64>) -> tensor<2x2x6x4xf64>
  %a0, %alse = graph.attention %q, %k, %v {scale = 0.5 : f64, causal} : (tensor<2x2x6x4xf64>, tensor<2x2x6x4xf64>, tensor<2x2x6x4xf64>) -> (tensor<2x2x6x4xf64>, tensor<2x2x6xf64>)
  %a1 = graph.transpose %a0 {permutation = array<i64: 0, 2, 1, 3>} : (tensor<2x2x6x4xf64>) -> tensor<2x6x2x4xf64>
  %a = graph.reshape %a1 : (tensor<2x6x2x4xf64>) -> tensor<2x6x8xf64>
  %o = graph.linear %a, %out : (tensor<2x6x8xf64>, tensor<8x8xf64>) -> tensor<2x6x8xf64>
  %g = graph.gelu %o {tanh} : (tensor<2x6x8xf64>) -> tensor<2x6x8xf64>
  %f = graph.linear %g, %frozen : (tensor<2x6x8xf64>, tensor<8x8xf64>) -> tensor<2x6x8xf64>
  %s = graph.add %f, %x : (tensor<2x6x8xf64>, tensor<2x6x8xf64>) -> tensor<2x6x8xf64>
  %l0 = graph.linear %s, %emb bias %hb : (tensor<2x6x8xf64>, tensor<50x8xf64>, tensor<50xf64>) -> tensor<2x6x50xf64>
  %l1 = graph.slice %l0 {offsets = array<i64: 0, 0, 0>, sizes = array<i64: 2, 5, 50>, strides = array<i64: 1, 1, 1>} : (tensor<2x6x50xf64>) -> tensor<2x5x50xf64>
  %l = graph.reshape %l1 : (tensor<2x5x50xf64>) -> tensor<10x50xf64>
  %t1 = graph.slice %targets {offsets = array<i64: 0, 1>, sizes = array<i64: 2, 5>, strides = array<i64: 1, 1>} : (tensor<2x6xi64>) -> tensor<2x5xi64>
  %t = graph.reshape %t1 : (tensor<2x5xi64>) -> tensor<10xi64>
  %rows, %lse = graph.cross_entropy %l, %t {label_smoothing = 0.1 : f64} : (tensor<10x50xf64>, tensor<10xi64>) -> (tensor<10xf64>, tensor<10xf64>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0>} : (tensor<10xf64>) -> tensor<f64>
  %ignore = graph.constant dense<-100> : tensor<i64>
  %valid = graph.compare ne %t, %ignore : (tensor<10xi64>, tensor<i64>) -> tensor<10xi1>
  %ones = graph.cast %valid : (tensor<10xi1>) -> tensor<10xi64>
  %count = graph.reduce sum %ones {dims = array<i64: 0>} : (tensor<10xi64>) -> tensor<i64>
  %countf = graph.cast %count : (tensor<i64>) -> tensor<f64>
  %loss = graph.div %sum, %countf : (tensor<f64>, tensor<f64>) -> tensor<f64>
  return %loss : tensor<f64>
}
"""

LR, DECAY, CLIP, STEP = 1e-2, 0.1, 0.5, 3
TRAINED = ("emb", "qkv", "qkvb", "out", "norm", "hb")
DIFFERENTIATE = ["--graph-differentiate"]
OPTIMIZE = [f"--graph-apply-optimizer=weight-decay={DECAY} max-grad-norm={CLIP}"]
CHUNK = ["--graph-chunk-loss=max-chunk-bytes=800"]
CLEAN = ["--canonicalize", "--cse"]

# The passes of each variant, and how many heads are joined with their loss.
VARIANTS = {
    "plain": (DIFFERENTIATE + OPTIMIZE, 0),
    "canonical": (CLEAN + DIFFERENTIATE + CLEAN + OPTIMIZE + CLEAN, 0),
    # A slice stands between the head and its loss until it is canonicalised.
    "chunked_too_early": (DIFFERENTIATE + OPTIMIZE + CHUNK, 0),
    "chunked": (CLEAN + DIFFERENTIATE + OPTIMIZE + CHUNK + CLEAN, 2),
    "factored": (["--graph-factor-parameters"] + DIFFERENTIATE + OPTIMIZE, 0),
    "all": (CLEAN + ["--graph-factor-parameters"] + CLEAN + DIFFERENTIATE
            + OPTIMIZE + CHUNK + CLEAN, 2),
}
FACTORED = {"qkv": (3, 2, 4, 8), "qkvb": (3, 2, 4)}


def draw():
    generator = np.random.default_rng(5)
    shapes = {"emb": (50, 8), "qkv": (24, 8), "qkvb": (24,), "out": (8, 8),
              "frozen": (8, 8), "norm": (8,), "hb": (50,)}
    values = {k: generator.normal(size=v) for k, v in shapes.items()}
    for name in TRAINED:
        values[name + ".exp_avg"] = generator.normal(size=shapes[name]) * 0.01
        values[name + ".exp_avg_sq"] = generator.uniform(1e-4, 1e-3, shapes[name])
    values["ids"] = generator.integers(0, 50, (2, 6))
    values["targets"] = generator.integers(0, 50, (2, 6))
    values["targets"][0, 2] = values["targets"][1, 5] = -100
    values["lr"] = np.array(LR, np.float32)
    values["step"] = np.array(STEP, np.int64)
    return values


def torch_step(values):
    """The results of one step of PyTorch, by the names of the arguments."""
    p = {k: torch.tensor(values[k]) for k in (*TRAINED, "frozen")}
    for name in TRAINED:
        p[name].requires_grad_()
    x = p["emb"][torch.tensor(values["ids"])]
    n = F.layer_norm(x, (8,), p["norm"], None, 1e-5)
    heads = F.linear(n, p["qkv"], p["qkvb"]).view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
    a = F.scaled_dot_product_attention(*heads, is_causal=True)
    o = F.linear(a.transpose(1, 2).reshape(2, 6, 8), p["out"])
    s = F.linear(F.gelu(o, approximate="tanh"), p["frozen"]) + x
    logits = F.linear(s, p["emb"], p["hb"])[:, :-1].reshape(-1, 50)
    targets = torch.tensor(values["targets"])[:, 1:].reshape(-1)
    loss = F.cross_entropy(logits, targets, label_smoothing=0.1)
    lr = float(values["lr"])
    optimizer = torch.optim.AdamW(
        [{"params": [p[k] for k in TRAINED if k != "qkvb"]},
         {"params": [p["qkvb"]], "lr": lr * 0.5, "weight_decay": 0.0}],
        lr=lr, weight_decay=DECAY)
    for name in TRAINED:
        optimizer.state[p[name]] = {
            "step": torch.tensor(float(STEP - 1)),
            "exp_avg": torch.tensor(values[name + ".exp_avg"]),
            "exp_avg_sq": torch.tensor(values[name + ".exp_avg_sq"])}
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_([p[k] for k in TRAINED], CLIP)
    optimizer.step()
    results = {"loss": loss, "grad_norm": norm}
    for name in TRAINED:
        results[name] = p[name]
        for slot in ("exp_avg", "exp_avg_sq"):
            results[f"{name}.{slot}"] = optimizer.state[p[name]][slot]
    return {k: v.detach().numpy() for k, v in results.items()}


def factor(values):
    """The values in the shapes that factored parameters have."""
    return {k: v.reshape(FACTORED.get(k.split(".")[0], v.shape))
            for k, v in values.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_step(variant):
    passes, heads = VARIANTS[variant]
    module = optimize(MODEL, *passes)
    assert module.count("graph.head_loss") == heads
    factored = "--graph-factor-parameters" in passes
    assert ("graph.framework_shape" in module) == factored
    values = draw()
    results, _ = interpret(module, factor(values) if factored else values, entry="train")
    expected = torch_step(values)
    assert set(results) == set(expected)
    for name, want in expected.items():
        np.testing.assert_allclose(
            results[name].reshape(want.shape), want, rtol=1e-9, atol=1e-12, err_msg=name)


def test_evaluation_is_the_loss():
    module = optimize(MODEL, *CLEAN, "--graph-derive-evaluate", *CHUNK)
    assert module.count("graph.head_loss") == 2
    values = draw()
    results, _ = interpret(module, values, entry="evaluate")
    np.testing.assert_allclose(results["loss"], torch_step(values)["loss"], rtol=1e-12)


@pytest.mark.parametrize("variant", ["plain", "all"])
def test_no_valid_target_stops_the_step(variant):
    values = draw()
    values["targets"][:] = -100
    passes, _ = VARIANTS[variant]
    if variant == "all":
        values = factor(values)
    with pytest.raises(ToolError, match="the loss is a mean over no elements"):
        interpret(optimize(MODEL, *passes), values, entry="train")


def test_a_norm_that_is_not_finite_stops_the_step():
    values = draw()
    values["out"][0, 0] = np.nan
    passes, _ = VARIANTS["plain"]
    with pytest.raises(ToolError, match="the norm of the gradients is not finite"):
        interpret(optimize(MODEL, *passes), values, entry="train")
