# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A ResNet whose blocks learn from heads near them (interlocking backpropagation, arXiv 2010.04116).

    python examples/interlocking_resnet.py

Each of four residual blocks is a module with a head and a loss of its own. With a gradient horizon of N
a module is trained by one head alone, that of the module N - 1 further on, so that none waits for
gradients of all later ones; with N = 4 the first one has the gradient of the whole model. Heads read
values of one shape, so that blocks have one width, after a stem that halves the image. Batch norms use
the statistics of the batch alone: a step with a horizon writes no buffers.
"""

import argparse
import pathlib

import torch
from torch import nn
from torch.nn import functional

import cleave
from picture import chart

MODULES, CLASSES, SIDE = 4, 4, 12


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width, track_running_stats=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width, track_running_stats=False)

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(x + self.norm2(self.conv2(y)))


class ResNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(MODULES))
        self.head = nn.Linear(width, CLASSES)

    def classify(self, x):
        return self.head(x.mean((2, 3)))

    def forward(self, image, label):
        x = functional.relu(self.stem(image))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.classify(x), label)


def images(number, seed):
    """Stripes in one of four directions at random places, with as much noise:
    [number, 1, SIDE, SIDE] and their directions [number]."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (number,), generator=generator)
    angle = label[:, None, None] * (torch.pi / CLASSES)
    phase, pace = torch.rand((2, number, 1, 1), generator=generator)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    stripes = torch.sin((x * angle.cos() + y * angle.sin()) * (0.9 + pace) + 2 * torch.pi * phase)
    noise = torch.randn((number, SIDE, SIDE), generator=generator)
    return (stripes + noise)[:, None], label


def build(width):
    torch.manual_seed(0)
    return ResNet(width)


def compile_step(width, batch, horizon, rate):
    """A step of plain gradient descent, whose change of the weights is the gradient."""
    return cleave.compile(build(width), batch, optimizer=cleave.SGD(lr=rate),
                          interlock=cleave.Interlock(horizon, modules=[f"blocks.{k}." for k in range(1, MODULES)]))


#: The first weight of each module.
NAMES = [f"blocks.{k}.conv1.weight" for k in range(MODULES)]


def gradients(width, batch):
    """Of the loss of the head after each module, for each of NAMES, by PyTorch; None for modules
    after the head. All heads begin with the weights of the last one."""
    model, (x, label), found = build(width), batch, []
    x = functional.relu(model.stem(x))
    for block in model.blocks:
        x = block(x)
        loss = functional.cross_entropy(model.classify(x), label)
        found.append(torch.autograd.grad(loss, [model.get_parameter(name) for name in NAMES],
                                         retain_graph=True, allow_unused=True))
    return found


def distances(step, width, batch, rate):
    """Makes the first step; [module, head]: how far the module's gradient in it is from that of a
    head alone, in proportion to it; infinite where the head comes before the module."""
    before = step.state_dict()
    step(*batch)
    after = step.state_dict()
    heads, apart = gradients(width, batch), torch.full((MODULES, MODULES), torch.inf)
    for module, name in enumerate(NAMES):
        own = (before[name] - after[name]) / rate
        for head in range(module, MODULES):
            one = heads[head][module]
            apart[module, head] = (own - one).norm() / one.norm()
    return apart


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--horizons", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/interlocking"))
    parser.add_argument("--smoke", action="store_true", help="only try it, small and short")
    if parser.parse_known_args(arguments)[0].smoke:
        parser.set_defaults(steps=3, batch=8, width=4, horizons=[2])
    options = parser.parse_args(arguments)
    series = {}
    for horizon in options.horizons:
        batch = images(options.batch, 0)
        step = compile_step(options.width, batch, horizon, options.rate)
        apart = distances(step, options.width, batch, options.rate)
        nearest, second = apart.sort(1).values[:, :2].T
        print(f"horizon {horizon}: modules 1 to {MODULES} learn from heads {(apart.argmin(1) + 1).tolist()}: their "
              f"gradients differ from those by {float(nearest.max()):.0e}, from others' by {float(second.min()):.1g}")
        losses = [float(step(*images(options.batch, seed))) for seed in range(1, options.steps)]
        others = [float(step.evaluate(*images(options.batch, 10 ** 6 + k))) for k in range(8)]
        print(f"  loss of the model after {options.steps} steps, on other images: {sum(others) / 8:.4f}")
        mean = max(1, len(losses) // 30)
        series[f"horizon {horizon}" + (" (end to end)" if horizon >= MODULES else "")] = [
            (k + 1, sum(losses[k:k + mean]) / len(losses[k:k + mean])) for k in range(0, len(losses), mean)]
    chart(options.work / "interlocking_resnet.svg", "A ResNet of four modules: loss of the model",
          "step", "loss", series, log="y")
    return series


if __name__ == "__main__":
    main()
