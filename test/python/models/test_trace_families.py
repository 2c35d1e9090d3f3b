# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models of the transformers library, from configs with random weights."""

import pytest
import torch

from family_models import FAMILIES, build
from trace_support import check, count, raised


def token_inputs(ignored=True):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 96, (2, 8), generator=generator)
    labels = torch.randint(3, 96, (2, 8), generator=generator)
    if ignored:
        labels[0, 5:] = -100
    return dict(input_ids=ids, labels=labels)


@pytest.mark.parametrize("family", FAMILIES)
def test_language_model(family):
    model, config, settings, ops = FAMILIES[family]
    traced = check(build(model, config, **settings), token_inputs())
    found = {op: count(traced.mlir, op) for op in ops}
    assert found == ops
    # Causal and window masks are not materialised, nor positions looked up.
    assert " mask %" not in raised(traced.mlir) and "graph.compare le" not in raised(traced.mlir)


def test_image_classification():
    module = build("ViTForImageClassification", "ViTConfig", hidden_size=32, num_hidden_layers=2,
                   num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
                   num_labels=10)
    inputs = dict(pixel_values=torch.randn(2, 3, 16, 16), labels=torch.tensor([3, 9]))
    traced = check(module, inputs)
    assert count(traced.mlir, "patches") == 1 and count(traced.mlir, "attention") == 2


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_padding_is_an_input(family, attention):
    model, config, settings, _ = FAMILIES[family]
    module = build(model, config, **settings, attn_implementation=attention)
    inputs = token_inputs()
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[0, 6:] = 0
    inputs["labels"][0, 5:] = -100
    inputs["attention_mask"] = mask
    traced = check(module, inputs, logits=False)
    assert count(traced.mlir, "attention") == 2
    # Eager models add a finite number: a row without any other key is weighed all the same.
    finite = attention == "eager"
    assert ("causal" in raised(traced.mlir)) == (family != "bert" and not finite)
    assert (" bias %" if finite else " mask %") in raised(traced.mlir)
    assert "attention_mask" in traced.input_names


def test_packed_documents_become_segments():
    model, config, settings, _ = FAMILIES["llama"]
    inputs = token_inputs()
    inputs["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 4, 5]])
    traced = check(build(model, config, **settings), inputs)
    assert " segments %" in raised(traced.mlir)


def test_weights_that_are_tied_are_one_argument():
    model, config, settings, _ = FAMILIES["gpt2"]
    module = build(model, config, **settings)
    traced = check(module, token_inputs(), logits=False)
    first = traced.parameters[0]
    assert first.name == "transformer.wte.weight" and first.aliases == ("lm_head.weight",)
    names = [n for t in traced.parameters for n in (t.name, *t.aliases)]
    assert sorted(names) == sorted(n for n, _ in module.named_parameters(remove_duplicate=False))
    assert 'graph.aliases = ["lm_head.weight"]' in traced.mlir


def test_dropout_draws_with_numbers_of_its_own():
    model, config, settings, _ = FAMILIES["gpt2"]
    settings = {k: v for k, v in settings.items() if not k.endswith("pdrop")}
    import re

    import cleave.trace
    from trace_support import entry_text, verify
    traced = cleave.trace.trace(build(model, config, **settings), token_inputs())
    verify(traced)
    loss = entry_text(traced.mlir)
    ids = re.findall(r"\bid = (\d+)", loss) + re.findall(r"dropout_id = (\d+)", loss)
    assert len(ids) == len(set(ids)) == 7
    assert 'graph.role = "rng"' in loss
    assert "rng" not in entry_text(traced.mlir, "logits")


def test_meta_device_allocates_nothing():
    from transformers import GPT2Config, GPT2LMHeadModel

    import cleave.trace
    from trace_support import verify
    with torch.device("meta"):
        module = GPT2LMHeadModel(GPT2Config(n_layer=2))
    ids = torch.empty((1, 64), dtype=torch.int64, device="meta")
    traced = cleave.trace.trace(module, dict(input_ids=ids, labels=ids))
    verify(traced)
    assert all(t.tensor.is_meta for t in traced.tensors)
    assert count(traced.mlir, "attention") == 2 and " mask %" not in raised(traced.mlir)
