# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mixtures of experts of the transformers library in 16 bits, beside eager autocast.

Both differ from the library in f64. By the gradients of one step, which begins with the same
weights, ours are as far from it as those of autocast: of all parameters by the median within a
quarter, and of each within its double. (Where a choice of experts differs by a rounding, all that
follows does: tokens are those whose choices are clear.)
"""

import copy
import functools
import statistics

import pytest
import torch
import transformers

import cleave
from training_support import ALL

SIZE = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
FAMILIES = {
    "Mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "Qwen3Moe": dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48, head_dim=16),
    "Olmoe": dict(num_experts=8, num_experts_per_tok=4),
}
LAYOUTS = [dict(), dict(mesh={"ep": 2}, plan="expert"), dict(mesh={"ep": 4}, plan="expert"),
           dict(mesh={"ep": 2, "tp": 2}, plan="expert,megatron"),
           dict(mesh={"dp": 2}, plan="zero1"), dict(mesh={"dp": 2}, plan="zero3", micro_batches=2)]
CASES = [(family, precision, layout) for family in FAMILIES for precision in ("bf16", "fp16")
         for layout in LAYOUTS]
IDS = [f"{family} {precision} {layout}" for family, precision, layout in CASES]


@functools.cache
def build(family):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZE, **FAMILIES[family])
    config._experts_implementation = "eager"
    return getattr(transformers, f"{family}ForCausalLM")(config).train()


@functools.cache
def batch(family):
    """The first of random batches in which the last expert that a token chooses leads the next one
    by more than bf16 rounds."""
    model = copy.deepcopy(build(family)).double()
    count = model.config.num_experts_per_tok
    for seed in range(1000):
        ids = torch.randint(0, 96, (4, 4), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            scores = model(ids, output_router_logits=True).router_logits
        leads = [row[:, count - 1] - row[:, count]
                 for row in (s.sort(-1, descending=True).values for s in scores)]
        if min(float(lead.min()) for lead in leads) > 0.01 * max(float(s.abs().max()) for s in scores):
            return dict(input_ids=ids, labels=ids)
    raise AssertionError("no batch has clear choices")


def gradients(family, dtype):
    """Those of the library, in `dtype` (f64), or in f32 where that is one of autocast."""
    model = copy.deepcopy(build(family))
    if dtype == torch.float64:
        model = model.double()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float64):
        loss = model(**batch(family)).loss
    # Scaled, as a scaler of losses does, so that fp16 rounds nothing to 0.
    scale = 2 ** 10 if dtype == torch.float16 else 1
    (loss * scale).backward()
    return {name: p.grad.double() / scale for name, p in model.named_parameters()}


@functools.cache
def eager(family, dtype):
    return gradients(family, dtype)


@pytest.mark.parametrize("family, precision, layout", CASES if ALL else CASES[::5],
                         ids=IDS if ALL else IDS[::5])
def test_no_farther_than_autocast(family, precision, layout):
    model = build(family)
    exact = eager(family, torch.float64)
    narrow = eager(family, dict(bf16=torch.bfloat16, fp16=torch.float16)[precision])
    step = cleave.compile(copy.deepcopy(model), batch(family), optimizer=cleave.SGD(lr=1.0),
                          check="off", precision=precision, **layout)
    step(**batch(family))
    trained = step.state_dict()
    ratios = {}
    for name, parameter in model.named_parameters():
        own = parameter.detach().double() - torch.as_tensor(trained[name]).double()
        # The update itself rounds parameters to f32.
        rounding = 2 ** -24 * float(parameter.detach().norm())
        allowed = float((narrow[name] - exact[name]).norm()) + rounding
        ratios[name] = float((own - exact[name]).norm()) / allowed
    assert statistics.median(ratios.values()) <= 1.25 and max(ratios.values()) <= 2, {n: round(r, 2) for n, r in ratios.items()}
