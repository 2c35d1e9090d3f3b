# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Writes by index within a sample, in micro-batches and over ranks: what is written to one sample
depends on that sample alone. Parameters after three steps are those of PyTorch."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import cleave
from cleave.compiler.entrance import grouped
from eager_support import train_beside
from small_configs import config_of

SAMPLES, TOKENS, WIDTH = 8, 6, 12


def along_tokens(h, i):
    return torch.zeros_like(h).scatter(1, i, h)


def along_features(h, i):
    return h.scatter(2, i[..., :5] * 2 % WIDTH, h[..., :5] * 3)


def a_number(h, i):
    return h * torch.ones_like(h).scatter(-1, i, 0.25)


def in_place(h, i):
    gates = torch.zeros(h.shape)
    gates.scatter_(2, h.topk(3, -1).indices, h.topk(3, -1).values.softmax(-1))
    return h * gates


def within_the_first(h, i):
    return h.scatter(1, i[:, :2, :7], h[:, 2:4, :7] + 1)


def groups_of_flat_tokens(h, i):
    """As routers choose groups of experts, for all tokens of the batch."""
    scores = h.reshape(-1, WIDTH).sigmoid()
    groups = scores.view(-1, 4, WIDTH // 4).topk(2, dim=-1)[0].sum(-1)
    chosen = groups.topk(2, dim=-1, sorted=False)[1]
    mask = torch.zeros_like(groups).scatter_(1, chosen, 1)
    mask = mask.unsqueeze(-1).expand(-1, 4, WIDTH // 4).reshape(-1, WIDTH)
    return scores.masked_fill(~mask.bool(), 0.0).reshape(h.shape)


def of_flat_tokens(h, i):
    flat = h.reshape(-1, WIDTH)
    return (flat * torch.zeros_like(flat).scatter(1, i.reshape(-1, WIDTH), flat)).reshape(h.shape)


def added(h, i):
    return torch.zeros_like(h).scatter_add(1, i, h)


def added_within_the_first(h, i):
    return h.scatter_add(1, i[:, :, :7], h[..., :7])


def reduced(how, include_self=True):
    def form(h, i):
        return h.scatter_reduce(1, i, h.sin() + 1.5, how, include_self=include_self)
    form.__name__ = f"reduced_{how}_{include_self}"
    return form


def rows_and_columns(h, i):
    x = h.clone()
    x[torch.arange(len(h)), i[:, 0, 0]] = h[:, 1] * 2
    return x


def more_rows_and_columns(h, i):
    x = h.clone()
    x[torch.arange(len(h))[:, None], i[:, :2, 0]] += h[:, 2:4]
    return x


FORMS = [along_tokens, along_features, a_number, in_place, within_the_first, groups_of_flat_tokens,
         of_flat_tokens, added, added_within_the_first, reduced("sum"), reduced("mean", False),
         reduced("amax"), reduced("prod"), rows_and_columns, more_rows_and_columns]


class Written(nn.Module):
    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.form, self.a, self.b = form, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x, index, y):
        return F.mse_loss(self.b(self.form(torch.tanh(self.a(x)), index)), y)


def batches():
    draw = torch.Generator().manual_seed(3)
    for _ in range(3):
        # Indices along tokens that all differ: of values written twice any one may be kept.
        order = torch.rand(SAMPLES, TOKENS, WIDTH, generator=draw).argsort(1)
        yield (torch.randn(SAMPLES, TOKENS, WIDTH, generator=draw), order,
               torch.randn(SAMPLES, TOKENS, 3, generator=draw))


@pytest.mark.parametrize("options", [
    dict(micro_batches=4), dict(micro_batches=2, mesh={"dp": 2})], ids=["mb4", "dp2 mb2"])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_written_samples(form, options):
    model = Written(form)
    step = cleave.compile(model, next(batches()), optimizer=cleave.SGD(lr=0.3, momentum=0.9),
                          **grouped(**options))
    eager = train_beside(step, model, batches(), rel=1e-5)
    for name, value in step.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-4, atol=1e-6)
        momentum = step.training_state()["optimizer"][name]["momentum_buffer"]
        torch.testing.assert_close(momentum, eager.state[model.get_parameter(name)]["momentum_buffer"],
                                   rtol=1e-4, atol=1e-6)


#: Models whose routers choose groups of experts, or write the chosen ones' weights, by `scatter`;
#: those of Llama 4 also repeat all tokens for each expert.
ROUTED = {"deepseek_v3": "DeepseekV3ForCausalLM", "dots1": "Dots1ForCausalLM",
          "glm4_moe": "Glm4MoeForCausalLM", "glm_moe_dsa": "GlmMoeDsaForCausalLM",
          "llama4_text": "Llama4ForCausalLM", "nemotron_h": "NemotronHForCausalLM",
          "solar_open": "SolarOpenForCausalLM"}


@pytest.mark.parametrize("kind", ROUTED)
def test_routers_of_transformers(kind):
    """Parameters after three steps in micro-batches, in a pipeline and over dp are those of one
    batch on one rank."""
    family = getattr(transformers, ROUTED[kind])
    torch.manual_seed(0)
    config = config_of(family, kind)
    config.use_cache = False
    model = family(config).train()
    ids = torch.randint(3, 97, (4, 16), generator=torch.Generator().manual_seed(1))
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def trained(**options):
        model.load_state_dict(start)
        step = cleave.compile(model, {"input_ids": ids, "labels": ids},
                              optimizer=cleave.AdamW(lr=1e-3), **grouped(threads=1, **options))
        for _ in range(3):
            step(input_ids=ids, labels=ids)
        return step.state_dict()

    expected = trained()
    for options in (dict(micro_batches=2), dict(micro_batches=2, mesh={"pp": 2}),
                    dict(micro_batches=2, mesh={"dp": 2})):
        found = trained(**options)
        for name, value in expected.items():
            if value.is_floating_point():
                change = (value - start[name]).norm()
                assert (found[name] - value).norm() <= 1e-3 * change + 1e-6, (options, name)
