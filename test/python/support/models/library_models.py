# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Small models of `transformers` of several families, and one of diffusion, which return a loss."""

import torch
import torch.nn.functional as F
from torch import nn

IDS, LABELS = (torch.randint(3, 90, (2, 16), generator=torch.Generator().manual_seed(s))
               for s in (1, 2))
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))


class Loss(nn.Module):
    """The loss of a model whose forward takes names."""

    def __init__(self, model, *names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values):
        return self.model(**dict(zip(self.names, values))).loss


class Denoiser(nn.Module):
    """A transformer that predicts the noise in images at drawn times (DiT), with modulated norms."""

    def __init__(self, width=32, patch=8):
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn(16, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 6 * width))
        self.first, self.second = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, 3 * patch * patch)

    def forward(self, images, times, noise):
        rate = torch.exp(-torch.arange(16).float() * 0.5)
        angle = times[:, None].float() * rate
        # The largest time is 1000: 16 bits hold neither it nor its angles.
        features = torch.cat([angle.cos(), angle.sin()], -1).to(self.head.weight.dtype)
        keep = (1 - times.float() / 1000)[:, None, None, None]
        x = (keep.sqrt() * images + (1 - keep).sqrt() * noise).to(self.head.weight.dtype)
        x = self.cut(x).flatten(2).transpose(1, 2) + self.places
        a, b, c, d, e, f = self.time(features)[:, None].chunk(6, -1)
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2)
                   for y in self.qkv(self.first(x) * (1 + a) + b).chunk(3, -1))
        x = x + c * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = self.head(x + f * self.mlp(self.second(x) * (1 + d) + e))
        target = noise.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
        return (x.float() - target.float()).square().mean()


def _of(name, *names, **changes):
    import transformers
    from small_configs import config_of

    kind = getattr(transformers, name)
    config = config_of(kind, kind.config_class.model_type)
    for key, value in changes.items():
        setattr(config, key, value)
    return Loss(kind(config).train(), *names)


#: The models: what builds one, and its inputs.
MODELS = {
    "GPT": (lambda: _of("GPT2LMHeadModel", "input_ids", "labels"), (IDS, LABELS)),
    "LLaMA": (lambda: _of("LlamaForCausalLM", "input_ids", "labels"), (IDS, LABELS)),
    "T5": (lambda: _of("T5ForConditionalGeneration", "input_ids", "labels"), (IDS, LABELS)),
    "ViT": (lambda: _of("ViTForImageClassification", "pixel_values", "labels"), (IMAGES, LABELS[:, 0] % 2)),
    "diffusion": (Denoiser, (IMAGES, torch.tensor([17, 983]), IMAGES.flip(0) * 0.7)),
    "MoE": (lambda: _of("MixtralForCausalLM", "input_ids", "labels"), (IDS, LABELS)),
}


def built(name):
    """A model and its inputs."""
    build, inputs = MODELS[name]
    torch.manual_seed(0)
    return build(), inputs
