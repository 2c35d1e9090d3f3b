# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""How often each expert was chosen in a step, in `Loss.expert_counts`: the choices of the whole batch,
which eager PyTorch counts in the index that it gives its experts."""

import pytest
import torch
from torch import nn

import cleave
from cleave import moe
from expert_models import Own
from family_models import build
from proofs import ALL
from training_support import token_batches

COUNTS = cleave.Numerics(expert_counts=True)


def mixtral():
    return build("MixtralForCausalLM", "MixtralConfig", vocab_size=96, hidden_size=32,
                 intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
                 sliding_window=None).train()


def counted(module, batch):
    """Of eager code: the choices of the library's experts by module."""
    found = {}
    hooks = [part.register_forward_pre_hook(
        lambda part, given, name=name: found.update(
            {name: torch.bincount(given[1].flatten(), minlength=part.num_experts)}))
        for name, part in module.named_modules() if hasattr(part, "down_proj")
        and hasattr(part, "num_experts")]
    module(**batch, use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


LAYOUTS = [dict(mesh={"pp": 2}, micro_batches=2), dict(mesh={"dp": 2}, plan="zero2",
                                                       micro_batches=2),
           dict(), dict(micro_batches=4), dict(mesh={"ep": 2}, plan="expert"),
           dict(mesh={"cp": 2}, plan="context"), dict(mesh={"tp": 2}, plan="megatron-sp")]


@pytest.mark.parametrize("layout", LAYOUTS if ALL else LAYOUTS[:2], ids=str)
def test_counts_are_those_of_the_whole_batch(layout):
    batches = [dict(zip(("input_ids", "labels"), batch)) for batch in token_batches(2)]
    step = cleave.compile(mixtral(), batches[0], optimizer=cleave.SGD(lr=0.1), check="off",
                          numerics=COUNTS, **layout)
    module = mixtral()
    for batch in batches:
        expected = counted(module, batch)
        assert len(expected) == 2
        found = step(**batch).expert_counts
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == torch.int64
            assert torch.equal(found[name], value), name
            assert int(value.sum()) == batch["input_ids"].numel() * 2
        module.load_state_dict(step.state_dict())


def test_models_of_the_package():
    """By number of the layer; choices that are dropped count."""
    ids, labels = token_batches(1)[0]
    step = cleave.compile(Own(choices=2, capacity=0.5).train(), (ids, labels), check="off",
                          micro_batches=2, numerics=COUNTS)
    found = step(ids, labels).expert_counts
    assert list(found) == ["0", "1"]
    assert {int(value.sum()) for value in found.values()} == {2 * ids.numel()}


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 3)

    def forward(self, x):
        scores = self.router(x)
        moe.count_choices(scores.argmax(-1), 3, name="mine")
        return scores.square().mean()


def test_a_models_own_code():
    x, module = torch.randn(4, 5, 8), Named()
    expected = torch.bincount(module.router(x).argmax(-1).flatten(), minlength=3)
    step = cleave.compile(module, x, numerics=COUNTS)
    assert torch.equal(step(x).expert_counts["mine"], expected)
    # Nothing is counted unasked.
    plain = cleave.compile(Named(), x)
    assert plain(x).expert_counts == {} and "expert_counts" not in plain.ir("model")


def test_what_has_no_experts():
    with pytest.raises(cleave.trace.TraceError, match="has none that are known: call cleave.moe"):
        cleave.compile(nn.Linear(4, 2), (torch.randn(3, 4), torch.randn(3, 2)),
                       nn.functional.mse_loss, numerics=COUNTS)
    with pytest.raises(TypeError, match="expert_counts is 3; it must be True or False"):
        cleave.compile(Named(), torch.randn(4, 5, 8), numerics=cleave.Numerics(expert_counts=3))
