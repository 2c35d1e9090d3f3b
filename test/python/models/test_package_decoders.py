# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Decoders of the package beside those of the transformers library with the same weights."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import cleave.models  # noqa: E402
import cleave.trace  # noqa: E402
from cleave.testing.tools import interpret, optimize  # noqa: E402
from module_support import scaled  # noqa: E402
from trace_support import in_double, relative, tensors_of  # noqa: E402

transformers.logging.set_verbosity_error()

#: Sizes of which few divide others.
SIZE = dict(hidden=36, heads=6, layers=2, ffn=22, seq=13, vocab=53)
SHARED = dict(hidden_size=36, num_hidden_layers=2, intermediate_size=22, vocab_size=53,
              num_attention_heads=6)
#: The library's rotary frequencies are of f32.
BOUND = 1e-6

NORMS = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm"}
HEADS = {f"attention.{name}": f"self_attn.{name[0]}_proj"
         for name in ("query", "key", "value", "output")}
GATED = {f"feed_forward.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}


def weights(names):
    return {f"{a}.weight": f"{b}.weight" for a, b in names.items()}


def rope(base, **more):
    return dict(rope_type="default", rope_theta=base, **more)


def halves(owner, inner):
    """Parts of the library's stacked experts, whose gates are the first rows."""
    return {**{f"{owner}.gate": ("mlp.experts.gate_up_proj", lambda t: t[:, :inner]),
               f"{owner}.up": ("mlp.experts.gate_up_proj", lambda t: t[:, inner:])},
            f"{owner}.down": "mlp.experts.down_proj"}


def qwen3_moe(tied):
    config = transformers.Qwen3MoeConfig(
        **SHARED, num_key_value_heads=2, head_dim=10, num_experts=6, num_experts_per_tok=3,
        moe_intermediate_size=22, norm_topk_prob=True, tie_word_embeddings=tied,
        rope_parameters=rope(1e6))
    names = {**NORMS, **HEADS, "feed_forward.router": "mlp.gate",
             "attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}
    return (transformers.Qwen3MoeForCausalLM(config),
            dict(kv_heads=2, head_width=10, experts=6, choices=3, balance=0.0, tied=tied),
            {**weights(names), **halves("feed_forward", 22)})


def deepseek_v3(groups):
    config = transformers.DeepseekV3Config(
        **SHARED, num_key_value_heads=6, n_routed_experts=12, num_experts_per_tok=3,
        moe_intermediate_size=7, n_shared_experts=2, first_k_dense_replace=1, n_group=groups,
        topk_group=max(groups // 2, 1), q_lora_rank=21, kv_lora_rank=17, qk_rope_head_dim=6,
        qk_nope_head_dim=10, v_head_dim=9, rope_parameters=rope(10000.0))
    attention = {"query_down": "q_a_proj", "query_norm": "q_a_layernorm", "query_up": "q_b_proj",
                 "latent_down": "kv_a_proj_with_mqa", "latent_norm": "kv_a_layernorm",
                 "latent_up": "kv_b_proj", "output": "o_proj"}
    names = {**NORMS, "feed_forward.router.logits": "mlp.gate",
             **{f"attention.{a}": f"self_attn.{b}" for a, b in attention.items()},
             **{f"feed_forward.shared.{n}": f"mlp.shared_experts.{n}_proj"
                for n in ("gate", "up", "down")}}
    return (transformers.DeepseekV3ForCausalLM(config),
            dict(experts=12, choices=3, expert_ffn=7, shared=2, dense=1, groups=groups,
                 chosen_groups=max(groups // 2, 1), query_rank=21, latent_rank=17, rope_width=6,
                 head_width=10, value_width=9, balance=0.0),
            {**weights({**names, **GATED}), **halves("feed_forward.experts", 7),
             "feed_forward.router.correction": "mlp.gate.e_score_correction_bias"})


def gpt_oss():
    config = transformers.GptOssConfig(
        **SHARED, num_key_value_heads=2, head_dim=10, num_local_experts=6, num_experts_per_tok=3,
        sliding_window=5, rope_parameters=dict(
            rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0,
            truncate=False, original_max_position_embeddings=4096))
    names = {**weights({**NORMS, **HEADS, "feed_forward.router.logits": "mlp.router"}),
             **{f"{a}.bias": f"{b}.bias" for a, b in HEADS.items()},
             "feed_forward.router.logits.bias": "mlp.router.bias",
             "attention.sinks": "self_attn.sinks"}
    for suffix in ("", "_bias"):
        for i, name in enumerate(("gate", "up")):
            names[f"feed_forward.experts.{name}{suffix}"] = (
                f"mlp.experts.gate_up_proj{suffix}", lambda t, i=i: t[..., i::2].mT
                if t.dim() == 3 else t[..., i::2])
    names["feed_forward.experts.down"] = ("mlp.experts.down_proj", lambda t: t.mT)
    names["feed_forward.experts.down_bias"] = "mlp.experts.down_proj_bias"
    return (transformers.GptOssForCausalLM(config),
            dict(kv_heads=2, head_width=10, experts=6, choices=3, balance=0.0, window=5), names)


def gemma():
    config = transformers.GemmaConfig(
        **SHARED, num_key_value_heads=2, head_dim=10, rope_parameters=rope(10000.0))
    return (transformers.GemmaForCausalLM(config), dict(kv_heads=2, head_width=10),
            weights({**NORMS, **HEADS, **GATED}))


def gemma2():
    config = transformers.Gemma2Config(
        **SHARED, num_key_value_heads=2, head_dim=10, sliding_window=5, query_pre_attn_scalar=13,
        rope_parameters=rope(10000.0))
    norms = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm",
             "norm3": "pre_feedforward_layernorm", "norm4": "post_feedforward_layernorm"}
    return (transformers.Gemma2ForCausalLM(config),
            dict(kv_heads=2, head_width=10, window=5, score_width=13),
            weights({**norms, **HEADS, **GATED}))


def mamba2(groups, chunk, tied):
    """The library's input projection and its convolution are those of the package, joined."""
    config = transformers.Mamba2Config(
        hidden_size=36, num_hidden_layers=2, vocab_size=53, num_heads=12, head_dim=6,
        state_size=5, n_groups=groups, chunk_size=chunk, conv_kernel=4, tie_word_embeddings=tied)
    rows = 5 * groups
    names = {"norm.weight": "norm.weight", "mixer.norm": "mixer.norm.weight",
             "mixer.down.weight": "mixer.out_proj.weight", "mixer.step_bias": "mixer.dt_bias",
             "mixer.decay": "mixer.A_log", "mixer.skip": "mixer.D"}
    first = 0
    for name, count in (("gate", 72), ("up", 72), ("write", rows), ("read", rows), ("step", 12)):
        names[f"mixer.{name}.weight"] = (
            "mixer.in_proj.weight", lambda t, a=first, n=count: t[a:a + n])
        if name in ("up", "write", "read"):
            for kind in ("weight", "bias"):
                names[f"mixer.{name}_taps.{kind}"] = (
                    f"mixer.conv1d.{kind}", lambda t, a=first - 72, n=count: t[a:a + n])
        first += count
    return (transformers.Mamba2ForCausalLM(config),
            dict(head_width=6, state=5, state_groups=groups, chunk=chunk, tied=tied, heads=4),
            names)


CASES = {
    "qwen3_moe": lambda: qwen3_moe(False),
    "qwen3_moe-tied": lambda: qwen3_moe(True),
    "deepseek_v3": lambda: deepseek_v3(4),
    "deepseek_v3-ungrouped": lambda: deepseek_v3(1),
    "gpt_oss": gpt_oss,
    "gemma": gemma,
    "gemma2": gemma2,
    "mamba2": lambda: mamba2(3, 4, False),
    "mamba2-one": lambda: mamba2(1, 256, True),
}
#: Groups of two blocks are an item of `blocks`, and blocks before them are in `leading`.
PERIOD = {"gpt_oss": 2, "gemma2": 2}


def layer_of(name, family):
    """The number of the layer that has a tensor, and the rest of the tensor's name."""
    kind, _, rest = name.partition(".")
    if kind not in ("leading", "blocks"):
        return None, name
    number, _, rest = rest.partition(".")
    if kind == "leading":
        return int(number), rest
    period = PERIOD.get(family, 1)
    if period > 1:
        second, _, rest = rest.partition(".")
        return int(number) * period + int(second), rest
    return int(number) + (family == "deepseek_v3"), rest


def judged_tensor(name, family, names, get):
    """The part of the library's tensors that is the package's of this name."""
    layer, rest = layer_of(name, family)
    body = "backbone" if family == "mamba2" else "model"
    if layer is None:
        last = {"tokens": "embeddings" if family == "mamba2" else "embed_tokens",
                "norm": "norm_f" if family == "mamba2" else "norm"}
        name = rest.partition(".")[0]
        return get(f"{body}.{last[name]}.weight" if name in last else "lm_head.weight")
    found = names[rest]
    name, part = found if isinstance(found, tuple) else (found, lambda t: t)
    return part(get(f"{body}.layers.{layer}.{name}"))


def inputs():
    generator = torch.Generator().manual_seed(1)
    ids, labels = (torch.randint(1, SIZE["vocab"], (2, SIZE["seq"]), generator=generator)
                   for _ in range(2))
    labels[0, -5:] = -100
    return dict(input_ids=ids, labels=labels)


@pytest.mark.parametrize("case", CASES)
def test_loss_logits_and_gradients(case):
    family = case.split("-")[0]
    torch.manual_seed(0)
    judge, settings, names = CASES[case]()
    scaled(judge)
    with torch.no_grad():
        for name, buffer in judge.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(std=0.2)
    module = cleave.models.FAMILIES[family](**{**SIZE, **settings})
    assert sum(p.numel() for p in module.parameters()) == \
        sum(p.numel() for p in judge.parameters())
    with torch.no_grad():
        whole = judge.state_dict()
        for name, tensor in module.state_dict().items():
            tensor.copy_(judged_tensor(name, family, names, whole.__getitem__))
    values = inputs()

    def judged(model):
        with torch.enable_grad():
            output = model(**values, use_cache=False)
            output.loss.backward()
        return output.loss.item(), output.logits.detach(), {
            n: judged_tensor(n, family, names, lambda k: model.get_parameter(k).grad)
            for n, _ in module.named_parameters()}

    def own(model):
        with torch.enable_grad():
            loss, logits = model(**values)
            loss.backward()
        return loss.item(), logits.detach(), {n: p.grad for n, p in model.named_parameters()}

    loss, logits, gradients = in_double(judge.train(), judged)
    eager = in_double(module.train(), own)
    traced = cleave.trace.trace(module, values, logits=False)
    tensors = tensors_of(traced, values)
    found, compiled = interpret(optimize(traced.mlir, "--graph-differentiate"), tensors,
                                entry="train")
    assert relative(eager[1], logits) <= BOUND
    for kind, (own_loss, own_gradients) in {"eager": (eager[0], eager[2]),
                                            "compiled": (found["loss"], compiled)}.items():
        assert relative(own_loss, loss) <= BOUND, kind
        assert own_gradients.keys() == gradients.keys()
        for name, gradient in own_gradients.items():
            assert relative(gradient, gradients[name]) <= BOUND, (kind, name)
