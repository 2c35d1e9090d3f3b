# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The memory of a rank, in elements, as closed forms of a model's sizes and a plan.

Letters: b samples, s positions, h width, i inner width, a heads, g heads of keys
and values, E experts, k choices of a token, L layers, V tokens, N ranks. Of one
layer forward keeps for backward, on one device:

    attention   q and the output, 2 bsh; k and v, 2 bsh g/a; the log-sum of a row, abs
    MLP         what its activation reads, bsi; if gated, also what it is multiplied by
    norms       the input of each, 2 bsh; what each divides a row by, 2 bs, and its
                mean, where it takes that off
    experts     what they are given, E bsh; what each token got back, k bsh; how it
                was routed, E bs. The MLP has s places for each expert then: E bsi

    two rings   the probabilities in the place of their log-sums, abss

and beside layers the input of the last norm. What else backward reads is computed
again: norms, activations and sums of the residual stream. (Korthikanti et al.,
arXiv 2205.05198, count 34 bytes of 16-bit sbh with dropout for a layer of GPT-2.)
"""

import dataclasses

import torch
import transformers


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    family: str
    h: int = 64
    i: int = 256
    a: int = 4
    g: int = 4
    L: int = 6
    V: int = 512
    E: int = 0
    k: int = 0

    def parameters(self, s):
        """Elements by what plans say of them."""
        h, i, L, V = self.h, self.i, self.L, self.V
        if self.family == "gpt2":
            # Behind the sum over ranks: biases of the second matrices, and norms.
            return dict(matrices=L * (4 * h * h + 2 * h * i), biases=L * (3 * h + i),
                        vocabulary=V * h, whole=L * (2 * h + 4 * h) + 2 * h + s * h)
        attention = 2 * h * h + 2 * h * h * self.g // self.a
        return dict(matrices=L * (attention + (0 if self.E else 3 * h * i)),
                    experts=L * self.E * 3 * h * i, vocabulary=2 * V * h,
                    whole=L * (2 * h + h * self.E) + h)

    def build(self, s):
        """The model, with random weights."""
        torch.manual_seed(0)
        if self.family == "gpt2":
            return transformers.GPT2LMHeadModel(transformers.GPT2Config(
                n_embd=self.h, n_layer=self.L, n_head=self.a, n_inner=self.i,
                vocab_size=self.V, n_positions=s, bos_token_id=1, eos_token_id=2,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
        sizes = dict(hidden_size=self.h, num_hidden_layers=self.L, num_attention_heads=self.a,
                     num_key_value_heads=self.g, intermediate_size=self.i, vocab_size=self.V,
                     max_position_embeddings=s, bos_token_id=1, eos_token_id=2,
                     pad_token_id=None)
        if not self.E:
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(
            **sizes, num_local_experts=self.E, num_experts_per_tok=self.k,
            sliding_window=None, experts_implementation="eager"))


SHAPES = {
    "gpt2": Shape("gpt2"),
    "llama": Shape("llama", i=176, g=2),
    "mixtral": Shape("mixtral", i=64, g=2, L=4, E=4, k=2),
}


class Form:
    """The memory of a rank for a model by a plan."""

    #: What forward keeps, by what plans split alike.
    KEPT = ("stream", "attention", "mlp", "experts")

    def __init__(self, shape, b, s, mesh="", plan=""):
        self.shape, self.b, self.s = shape, b, s
        self.sizes = dict((a, int(n)) for a, n in (e.split("=") for e in mesh.split(",") if e))
        self.plan = plan.split(",") if plan else []
        dp, tp, cp, ep = (self.sizes.get(axis, 1) for axis in ("dp", "tp", "cp", "ep"))
        # Values are in blocks of 1 / d q^2, weights of 1 / q^2, vectors of 1 / q.
        d, row, q = (self.sizes.get(axis, 1) for axis in ("depth", "row", "col"))
        self.steps = q > 1
        rows = dp * cp * ep * d * row
        # Places of experts are split as samples and sequences are; columns of `tp` need
        # all places of a token.
        routed = dp * ep * cp
        stream = tp if "megatron-sp" in self.plan else q
        self.kept_in = dict(stream=rows * stream, attention=rows * tp * q,
                            mlp=(routed if shape.E else rows) * tp * q, experts=routed)
        self.parts = dict(matrices=tp * row * q, biases=tp * q, vocabulary=tp * row * q,
                          experts=tp * ep, whole=q)
        self.resting = dp if "zero3" in self.plan else 1

    def parameters(self):
        """Elements of the parameters."""
        found = self.shape.parameters(self.s)
        return sum(n // self.parts[kind] for kind, n in found.items()) // self.resting

    def state(self):
        """Elements of AdamW's two moments."""
        found = self.shape.parameters(self.s)
        dp, ep = (self.sizes.get(axis, 1) for axis in ("dp", "ep"))
        zero = dp if any(name in ("zero1", "zero2", "zero3") for name in self.plan) else 1
        rest = ep if "zero1(ep)" in self.plan else 1
        return 2 * sum(n // self.parts[kind] // (1 if kind == "experts" else rest)
                       for kind, n in found.items()) // zero

    def terms(self):
        """Elements that all layers keep, by `KEPT`, as one device would."""
        m, b, s = self.shape, self.b, self.s
        bsh, bsi = b * s * m.h, b * s * m.i * max(m.E, 1)
        row = s if "two-ring" in self.plan else 1
        norms = 4 if m.family == "gpt2" else 2
        return dict(
            stream=m.L * (2 * bsh + norms * b * s) + bsh + norms // 2 * b * s,
            attention=m.L * (2 * bsh + 2 * bsh * m.g // m.a + m.a * b * s * row),
            mlp=m.L * (bsi if m.family == "gpt2" else 2 * bsi),
            experts=m.L * (m.E * bsh + m.k * bsh + m.E * b * s))

    def kept(self, whole=()):
        """Elements that forward keeps, with the terms of `whole` left whole."""
        return sum(n / (1 if term in whole else self.kept_in[term])
                   for term, n in self.terms().items())

    def working(self):
        """Elements that the backward of one MLP works on, beside what is kept: what
        its activation gives, its gradient and that of its input, 3 bsi (2 where they
        take the place of what was kept), and 3 bsh of the stream; of experts also
        the gradient of what they got and gave; whole weights that are gathered, and
        a gradient of one. Where products go in steps, two blocks that were received
        of both operands, and a product; of both halves of a gated layer, which take
        their steps together."""
        m = self.shape
        bsh, bsi = self.b * self.s * m.h, self.b * self.s * m.i * max(m.E, 1)
        rows = self.kept_in["mlp"] // self.sizes.get("tp", 1)
        halves = 1 if m.family == "gpt2" else 2
        steps = halves * (2 * bsi / self.kept_in["mlp"]
                          + 3 * m.h * m.i / self.parts["matrices"]) if self.steps else 0
        inner = (3 if m.family == "gpt2" else 2) * bsi / self.kept_in["mlp"]
        if "two-ring" in self.plan:
            # Of one attention: the gradient of probabilities and that of scores.
            inner = max(inner, 3 * m.a * self.b * self.s * self.s / self.kept_in["attention"])
        weights = m.h * m.i * max(m.E, 1) / self.parts["experts" if m.E else "matrices"]
        return (inner + steps + (3 + 2 * m.E) * bsh / rows
                + weights * (3 if self.resting > 1 else 1))
