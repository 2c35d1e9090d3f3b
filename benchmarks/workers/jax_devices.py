"""The worker of JAX, on two virtual devices of one process.

GPT-2 and AdamW are written in jax.numpy and compiled as one step with donated buffers. `dp` shards
the batch; `tp` shards the heads, the inner features of MLPs and the vocabulary, by shardings of the
parameters. The weights are those of a GPT-2 of transformers, from a safetensors file.
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

DEVICES = 2
# XLA's flags for matrix multiplication: devices share a thread pool, or each has one thread, or
# Eigen computes it.
MATMUL = {
    "shared": "",
    "one-thread": "--xla_cpu_multi_thread_eigen=false",
    "eigen": "--xla_cpu_experimental_ynn_fusion_type=",
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["dp", "tp"], required=True)
    parser.add_argument("--weights", required=True, help="a safetensors file")
    parser.add_argument("--ids", required=True, help=".npy of a batch of token ids")
    parser.add_argument("--heads", type=int, required=True)
    parser.add_argument("--matmul", choices=MATMUL, default="shared")
    return parser.parse_args()


options = arguments()
# The flags are read when JAX is imported. The timeout is long because a device may wait long
# for the other one on a busy machine.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_force_host_platform_device_count={DEVICES}",
        "--xla_cpu_collective_call_terminate_timeout_seconds=600",
        MATMUL[options.matmul],
    ]
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file

import jax_profile
import protocol

LEARNING_RATE, DECAY = 1e-4, 0.1
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def load(path, heads):
    """Returns the parameters by name, the PartitionSpec of each for `tp`, the number of layers
    and the size of the vocabulary."""
    theirs = {k.removeprefix("transformer."): v for k, v in load_file(path).items()}
    tokens = theirs["wte.weight"]
    width = tokens.shape[1]
    # The rows are padded to a multiple of the devices; the loss masks the added rows.
    padding = -len(tokens) % DEVICES
    values = {"tokens": np.pad(tokens, ((0, padding), (0, 0)))}
    specs = {"tokens": P("x", None)}

    def take(name, source, spec=P(), shape=None, order=None):
        value = theirs[source]
        value = value if shape is None else value.reshape(shape).transpose(order)
        values[name], specs[name] = np.ascontiguousarray(value), spec

    def norm(name, source):
        take(name + ".scale", source + ".weight")
        take(name + ".shift", source + ".bias")

    take("positions", "wpe.weight")
    norm("norm", "ln_f")
    layers = sum(name.endswith("attn.c_attn.weight") for name in theirs)
    size = width // heads
    for i in range(layers):
        h = f"h.{i}."
        norm(h + "norm1", h + "ln_1")
        norm(h + "norm2", h + "ln_2")
        # Query, key and value of each head are adjacent, so that the heads of the matrix
        # multiplication's result are contiguous.
        fused = h + "attn.c_attn."
        take(h + "qkv.weight", fused + "weight", P(None, "x", None, None),
             (width, 3, heads, size), (0, 2, 1, 3))
        take(h + "qkv.bias", fused + "bias", P("x", None, None),
             (3, heads, size), (1, 0, 2))
        take(h + "out.weight", h + "attn.c_proj.weight", P("x", None, None),
             (heads, size, width), (0, 1, 2))
        take(h + "out.bias", h + "attn.c_proj.bias")
        take(h + "up.weight", h + "mlp.c_fc.weight", P(None, "x"))
        take(h + "up.bias", h + "mlp.c_fc.bias", P("x"))
        take(h + "down.weight", h + "mlp.c_proj.weight", P("x", None))
        take(h + "down.bias", h + "mlp.c_proj.bias")
    return values, specs, layers, len(tokens)


def layer_norm(x, p, name):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    unit = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
    return unit * p[name + ".scale"] + p[name + ".shift"]


def attention(x, p, h):
    """Causal attention over [batch, sequence, width]."""
    qkv = jnp.einsum("bsd,dhck->bshck", x, p[h + "qkv.weight"]) + p[h + "qkv.bias"]
    with jax.named_scope(jax_profile.ATTENTION):
        q, k, v = (qkv[:, :, :, i] for i in range(3))
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / np.sqrt(q.shape[-1])
        sequence = x.shape[1]
        seen = jnp.tril(jnp.ones((sequence, sequence), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        mixed = jnp.einsum("bhqs,bshk->bqhk", weights, v)
    return jnp.einsum("bqhk,hkd->bqd", mixed, p[h + "out.weight"]) + p[h + "out.bias"]


def mlp(x, p, h):
    up = jax.nn.gelu(x @ p[h + "up.weight"] + p[h + "up.bias"], approximate=True)
    return up @ p[h + "down.weight"] + p[h + "down.bias"]


def loss_of(p, ids, layers, vocabulary):
    """Returns the mean cross entropy of the next tokens."""
    x = p["tokens"][ids] + p["positions"][: ids.shape[1]]
    for i in range(layers):
        h = f"h.{i}."
        x = x + attention(layer_norm(x, p, h + "norm1"), p, h)
        x = x + mlp(layer_norm(x, p, h + "norm2"), p, h)
    x = layer_norm(x, p, "norm")
    logits = x[:, :-1] @ p["tokens"].T
    column = jnp.arange(logits.shape[-1])
    logits = jnp.where(column < vocabulary, logits, -jnp.inf)
    # A masked sum keeps the logits sharded, where a gather would replicate them.
    right = jnp.where(column == ids[:, 1:, None], logits, 0).sum(-1)
    return (jax.nn.logsumexp(logits, axis=-1) - right).mean()


def adamw(p, m, v, g, number):
    """Returns the parameters and moments after the update number `number` by gradients `g`."""
    m = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, m, g)
    v = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, v, g)
    bias1, bias2 = 1 - BETA1**number, 1 - BETA2**number

    def update(p, m, v):
        move = (m / bias1) / (jnp.sqrt(v / bias2) + EPSILON)
        return p - LEARNING_RATE * (move + DECAY * p)

    return jax.tree.map(update, p, m, v), m, v


def make_step(layers, vocabulary, sharding):
    """Returns the jitted step, from parameters, AdamW's moments, ids and number to the loss,
    parameters and moments."""

    def step(p, m, v, ids, number):
        loss, g = jax.value_and_grad(loss_of)(p, ids, layers, vocabulary)
        with jax.named_scope(jax_profile.OPTIMIZER):
            return loss, *adamw(p, m, v, g, number)

    whole = NamedSharding(jax.tree.leaves(sharding)[0].mesh, P())
    return jax.jit(
        step,
        donate_argnums=(0, 1, 2),
        out_shardings=(whole, sharding, sharding, sharding),
    )


def main():
    mesh = Mesh(np.array(jax.devices()), ("x",))
    values, specs, layers, vocabulary = load(options.weights, options.heads)
    data = P("x", None) if options.kind == "dp" else P()
    if options.kind == "dp":
        specs = dict.fromkeys(specs, P())
    sharding = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    ids = np.load(options.ids).astype(np.int32)
    ids = jax.device_put(ids, NamedSharding(mesh, data))
    parameters = jax.device_put(values, sharding)
    # Separate zeros for the two moments, because donated buffers must be distinct.
    means, squares = (
        jax.device_put({k: np.zeros_like(v) for k, v in values.items()}, sharding)
        for _ in range(2)
    )
    del values
    state = (parameters, means, squares)
    del parameters, means, squares
    train = make_step(layers, vocabulary, sharding)
    train = train.lower(*state, ids, np.float32(1)).compile()
    done = 0

    def step():
        nonlocal state, done
        done += 1
        loss, *state = jax.block_until_ready(train(*state, ids, np.float32(done)))
        return float(loss)

    def memory():
        own = protocol.own_memory()
        return {**own, "vm_hwm_mib_per_rank": own["vm_hwm_mib"] / DEVICES}

    def profile():
        return jax_profile.breakdown(step, train.as_text(), DEVICES)

    protocol.serve(step, profile, {"jax": jax.__version__}, memory)


if __name__ == "__main__":
    main()
