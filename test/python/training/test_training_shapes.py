# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models of images, noise and sound, trained beside eager PyTorch: loss, parameters and
the statistics of batch normalisation are compared after each step."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.compiler.entrance import grouped
from buffer_state import same_state
from proofs import ALL

transformers = pytest.importorskip("transformers")

STEPS = 5 if ALL else 3
SGD = dict(lr=0.05, momentum=0.9)


class Up(nn.Module):
    """A block of convolutions with group normalisation, told the time."""

    def __init__(self, width, out, time):
        super().__init__()
        self.one, self.two = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(2, width), nn.GroupNorm(4, out)
        self.time = nn.Linear(time, out)
        self.skip = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x, t):
        h = self.one(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.two(F.silu(self.norm2(h)))


def sinusoids(t, width):
    """Sines and cosines of the time t of each sample, [b] to [b, width]."""
    rates = torch.exp(-math.log(1000.0) * torch.arange(width // 2) / (width // 2))
    angles = t[:, None].float() * rates[None]
    return torch.cat([angles.cos(), angles.sin()], -1)


class UNet(nn.Module):
    """Predicts noise: down by strides, attention, up by interpolation beside what came
    down."""

    def __init__(self, width=8):
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, 2 * width))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.down2 = Up(width, width, 2 * width), Up(width, 2 * width, 2 * width)
        self.less1 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.less2 = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 2 * width)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up2, self.up1 = Up(4 * width, width, 2 * width), Up(2 * width, width, 2 * width)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        t = self.time(sinusoids(t, self.width))
        one = self.down1(self.first(x), t)
        two = self.down2(self.less1(one), t)
        y = self.less2(two)
        rows = self.norm(y).flatten(2).transpose(1, 2)
        y = y + self.attention(rows, rows, rows, need_weights=False)[0].transpose(1, 2).reshape(y.shape)
        y = self.up2(torch.cat([F.interpolate(y, size=two.shape[2:], mode="nearest"), two], 1), t)
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.last(self.up1(torch.cat([y, one], 1), t))


class DiTBlock(nn.Module):
    """Attention and an MLP, shifted, scaled and gated by the time (adaLN-zero)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"),
                                 nn.Linear(2 * width, width))
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulate(c)[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + gate1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    """A transformer of patches that predicts noise for a time and a class."""

    def __init__(self, width=32, patch=2, size=8):
        super().__init__()
        self.width, self.patch, self.size = width, patch, size
        self.patches = nn.Conv2d(4, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(5, width)
        self.blocks = nn.ModuleList(DiTBlock(width, 4) for _ in range(2))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.last = nn.Linear(width, patch * patch * 4)
        # At 0, where gates start in practice, most gradients are 0.
        for part in (*(b.modulate[1] for b in self.blocks), self.modulate[1], self.last):
            nn.init.normal_(part.weight, std=0.05)
            nn.init.normal_(part.bias, std=0.05)

    def forward(self, x, t, label):
        h = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        c = self.time(sinusoids(t, 16)) + self.classes(label)
        for block in self.blocks:
            h = block(h, c)
        shift, scale = self.modulate(c)[:, None].chunk(2, -1)
        h = self.last(self.norm(h) * (1 + scale) + shift)
        n = self.size // self.patch
        h = h.reshape(-1, n, n, self.patch, self.patch, 4)
        return torch.einsum("bhwpqc->bchpwq", h).reshape(x.shape)


def resnet(kind):
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2],
                                       layer_type=kind, num_labels=5, downsample_in_first_stage=True)
    return transformers.ResNetForImageClassification(config)


def convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2,
                                         patch_size=2, num_labels=5, layer_scale_init_value=0.5)
    return transformers.ConvNextForImageClassification(config)


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=50, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32,
        max_source_positions=8, max_target_positions=12, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=3, dropout=0.0)
    return transformers.WhisperForConditionalGeneration(config)


def wav2vec2(norm):
    config = transformers.Wav2Vec2Config(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        conv_dim=(8, 8), conv_stride=(3, 2), conv_kernel=(5, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, feat_extract_norm=norm,
        conv_bias=norm == "layer", do_stable_layer_norm=norm == "layer", apply_spec_augment=False,
        hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0,
        classifier_proj_size=8, num_labels=5)
    return transformers.Wav2Vec2ForSequenceClassification(config)


def drawn(*shape):
    return lambda g: torch.randn(4, *shape, generator=g)


def numbers(most, *shape):
    return lambda g: torch.randint(0, most, (4, *shape), generator=g)


NOISE = dict(loss_fn=lambda found, noise: F.mse_loss(found, noise))
#: Each model, its inputs by name, and how it is compiled.
CASES = {
    "resnet": (lambda: resnet("basic"), {"pixel_values": drawn(3, 16, 16), "labels": numbers(5)}, {}),
    "resnet, bottlenecks": (lambda: resnet("bottleneck"),
                            {"pixel_values": drawn(3, 16, 16), "labels": numbers(5)}, {}),
    "unet": (UNet, {"x": drawn(3, 8, 8), "t": numbers(1000), "noise": drawn(3, 8, 8)}, NOISE),
    "convnext": (convnext, {"pixel_values": drawn(3, 16, 16), "labels": numbers(5)}, {}),
    "dit": (DiT, {"x": drawn(4, 8, 8), "t": numbers(1000), "label": numbers(5),
                  "noise": drawn(4, 8, 8)}, NOISE),
    "whisper": (whisper, {"input_features": drawn(8, 16), "labels": numbers(50, 7)}, {}),
    "wav2vec2": (lambda: wav2vec2("group"), {"input_values": drawn(120), "labels": numbers(5)}, {}),
    "wav2vec2, layer norm": (lambda: wav2vec2("layer"),
                             {"input_values": drawn(120), "labels": numbers(5)}, {}),
}


def loss_of(module, batch, loss_fn=None):
    if loss_fn is None:
        return module(**batch).loss
    *given, target = batch.values()
    return loss_fn(module(*given), target)


@pytest.mark.parametrize("name", CASES)
def test_trains_as_pytorch_does(name):
    make, inputs, settings = CASES[name]
    torch.manual_seed(0)
    module = make().train()
    expected = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(1)
    batches = [{n: draw(generator) for n, draw in inputs.items()} for _ in range(STEPS)]
    step = cleave.compile(module, batches[0], optimizer=cleave.SGD(**SGD), check="off",
                          **grouped(threads=1, **settings))
    optimizer = torch.optim.SGD(expected.parameters(), **SGD)
    before = {n: t.clone() for n, t in expected.state_dict().items()}
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(expected, batch, **settings)
        loss.backward()
        optimizer.step()
        assert float(step(**batch)) == pytest.approx(loss.item(), rel=2e-5)
        same_state(step, expected)
    changed = [n for n, t in expected.state_dict().items() if not torch.equal(t, before[n])]
    assert len(changed) > 0.8 * len([n for n, _ in expected.named_parameters()])
    assert ("resnet" in name) == any("running_var" in n for n in changed)
