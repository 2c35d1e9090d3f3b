# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models of the package beside those of the transformers library with the same weights."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import cleave.models  # noqa: E402
import cleave.trace  # noqa: E402
from cleave.models.encoder_decoder import PositionBias  # noqa: E402
from cleave.testing.tools import interpret, optimize  # noqa: E402
from module_support import scaled  # noqa: E402
from trace_support import in_double, relative, tensors_of  # noqa: E402

transformers.logging.set_verbosity_error()

SIZE = dict(hidden=32, heads=4, layers=2, ffn=48, seq=24, vocab=96)
#: The library's rotary frequencies are of f32.
BOUND = 1e-6
EXPERTS = dict(experts=4, kv_heads=2, balance=0.0)


def inputs():
    generator = torch.Generator().manual_seed(1)
    ids, labels = (torch.randint(1, SIZE["vocab"], (2, SIZE["seq"]), generator=generator)
                   for _ in range(2))
    labels[0, -5:] = -100
    return dict(input_ids=ids, labels=labels)


def t5(tied):
    """The library's model, and the names of its weights by those of the package's."""
    config = transformers.T5Config(
        d_model=SIZE["hidden"], d_kv=SIZE["hidden"] // SIZE["heads"], d_ff=SIZE["ffn"],
        num_layers=SIZE["layers"], num_heads=SIZE["heads"], vocab_size=SIZE["vocab"],
        dropout_rate=0.0, tie_word_embeddings=tied, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config)
    names = {"tokens": "shared"}
    if not tied:
        # The library only leaves out the factor of the outputs.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        names["head"] = "lm_head"
    for stack, parts in (("encoder", ("attention", "feed_forward")),
                         ("decoder", ("attention", "cross", "feed_forward"))):
        names[f"{stack}_norm"] = f"{stack}.final_layer_norm"
        names[f"{stack}_bias.bias"] = \
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
        for i in range(SIZE["layers"]):
            for j, part in enumerate(parts):
                own, layer = f"{stack}.{i}.", f"{stack}.block.{i}.layer.{j}."
                norm = {"attention": 1, "cross": 2, "feed_forward": 3}[part]
                names[f"{own}norm{norm}"] = layer + "layer_norm"
                if part == "feed_forward":
                    names[own + "feed_forward.up"] = layer + "DenseReluDense.wi"
                    names[own + "feed_forward.down"] = layer + "DenseReluDense.wo"
                    continue
                module = "SelfAttention" if part == "attention" else "EncDecAttention"
                for name in ("query", "key", "value", "output"):
                    names[f"{own}{part}.{name}"] = f"{layer}{module}.{name[0]}"
    return model, {f"{a}.weight": f"{b}.weight" for a, b in names.items()}


def mixtral():
    """The same for Mixtral, whose expert gates are the first rows of `gate_up_proj`."""
    config = transformers.MixtralConfig(
        hidden_size=SIZE["hidden"], intermediate_size=SIZE["ffn"],
        num_hidden_layers=SIZE["layers"], num_attention_heads=SIZE["heads"],
        num_key_value_heads=EXPERTS["kv_heads"], vocab_size=SIZE["vocab"],
        num_local_experts=EXPERTS["experts"], num_experts_per_tok=2,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    names = {"tokens": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    experts = {}
    for i in range(SIZE["layers"]):
        own, layer = f"blocks.{i}.", f"model.layers.{i}."
        names.update({own + "norm1": layer + "input_layernorm",
                      own + "norm2": layer + "post_attention_layernorm",
                      own + "feed_forward.router": layer + "mlp.gate"})
        for name in ("query", "key", "value", "output"):
            names[f"{own}attention.{name}"] = f"{layer}self_attn.{name[0]}_proj"
        for name, whole in (("gate", "gate_up"), ("up", "gate_up"), ("down", "down")):
            experts[f"{own}feed_forward.{name}"] = f"{layer}mlp.experts.{whole}_proj"
    return transformers.MixtralForCausalLM(config), {
        **{f"{a}.weight": f"{b}.weight" for a, b in names.items()}, **experts}


def part_of(name, whole):
    """The part of the library's tensor that is the package's tensor of this name."""
    if name.endswith("feed_forward.gate"):
        return whole[:, :SIZE["ffn"]]
    if name.endswith("feed_forward.up"):
        return whole[:, -SIZE["ffn"]:]
    return whole


CASES = {
    "t5": (lambda: t5(True), {}),
    "t5-untied": (lambda: t5(False), dict(tied=False)),
    "mixtral": (mixtral, EXPERTS),
}


@pytest.mark.parametrize("case", CASES)
def test_loss_logits_and_gradients(case):
    make, settings = CASES[case]
    torch.manual_seed(0)
    judge, names = make()
    scaled(judge)
    module = cleave.models.FAMILIES[case.split("-")[0]](**SIZE, **settings)
    parameters = dict(module.named_parameters())
    assert names.keys() == parameters.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(part_of(name, judge.get_parameter(names[name])))
    values = inputs()

    def judged(model):
        with torch.enable_grad():
            output = model(**values, use_cache=False)
            output.loss.backward()
        return output.loss.item(), output.logits.detach(), {
            n: part_of(n, model.get_parameter(names[n]).grad) for n in names}

    loss, logits, gradients = in_double(judge.train(), judged)
    traced = cleave.trace.trace(module, values)
    tensors = tensors_of(traced, values)
    found, own = interpret(optimize(traced.mlir, "--graph-differentiate"), tensors, entry="train")
    assert relative(found["loss"], loss) <= BOUND
    assert own.keys() == names.keys()
    for name, gradient in own.items():
        assert relative(gradient, gradients[name]) <= BOUND, name
    assert relative(interpret(traced.mlir, tensors, entry="logits")[0]["logits"], logits) <= BOUND


@pytest.mark.parametrize("causal", [False, True])
def test_buckets_of_distances(causal):
    from transformers.models.t5.modeling_t5 import T5Attention
    distance = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(distance, not causal, 32, 128)
    assert torch.equal(PositionBias(4, causal)._bucket(distance), expected)
