# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Each module of the ResNet learns from one head, min(j + N - 1, 4), and from no other."""

import pytest
import torch

import interlocking_resnet as example

WIDTH, RATE = 4, 0.1


@pytest.mark.parametrize("horizon, heads", [(2, [1, 2, 3, 3]), (4, [3, 3, 3, 3])])
def test_one_head_trains_a_module(horizon, heads):
    """With a horizon of 2 the first weight's gradient is that of head 2 alone; with 4 it is that
    of the whole model. Losses are those of eager PyTorch."""
    batch = example.images(8, 0)
    step = example.compile_step(WIDTH, batch, horizon, RATE)
    apart = example.distances(step, WIDTH, batch, RATE)
    for module, head in enumerate(heads):
        others = [apart[module, k] for k in range(module, 4) if k != head]
        assert apart[module, head] < 1e-4, (module, apart)
        assert all(other > 0.1 for other in others), (module, apart)
    model, x = example.build(WIDTH), batch[0]
    with torch.no_grad():
        x, losses = torch.relu(model.stem(x)), []
        for block in model.blocks:
            x = block(x)
            losses.append(float(torch.nn.functional.cross_entropy(model.classify(x), batch[1])))
        assert losses[-1] == pytest.approx(float(model(*batch)))
    assert [*step.last.auxiliary, float(step.last)] == pytest.approx(losses, rel=1e-5)


def test_images():
    """Of all directions; the same each time; a direction changes what is seen."""
    image, label = example.images(64, 5)
    assert image.shape == (64, 1, example.SIDE, example.SIDE) and set(label.tolist()) == {0, 1, 2, 3}
    assert torch.equal(image, example.images(64, 5)[0])
    assert not torch.equal(image, example.images(64, 6)[0])
    across, down = (torch.stack([image[label == k].diff(dim=dim).abs().mean() for k in range(4)])
                    for dim in (3, 2))
    assert across[0] > down[0] and down[2] > across[2]
