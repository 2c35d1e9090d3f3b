# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models with frozen weights and buffers of 8-bit floats, which their code widens.

The judge is eager PyTorch.
"""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

import cleave
from cleave.compiler.entrance import grouped

SIZE, BATCH = 16, 8
X = torch.randn(BATCH, SIZE, generator=torch.Generator().manual_seed(1))
Y = torch.randn(BATCH, SIZE, generator=torch.Generator().manual_seed(2))


class Widened(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.last = nn.Linear(SIZE, SIZE)
        self.weight = nn.Parameter(torch.randn(SIZE, SIZE).to(torch.float8_e4m3fn),
                                   requires_grad=False)
        self.register_buffer("shift", torch.randn(SIZE).to(torch.float8_e5m2))

    def forward(self, x):
        return self.last(torch.tanh(F.linear(x, self.weight.float()) + self.shift.float()))


def compiled(**options):
    return cleave.compile(Widened(), (X, Y), F.mse_loss, optimizer=cleave.SGD(lr=0.1),
                          **grouped(**options))


@pytest.mark.parametrize("options", [
    {}, dict(mesh={"dp": 2}, plan="zero3"), dict(mesh={"tp": 2}, plan="megatron")], ids=str)
def test_as_eager(options, tmp_path):
    model = Widened()
    step = compiled(**options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(X), Y)
        loss.backward()
        optimizer.step()
        assert float(step(X, Y)) == pytest.approx(loss.item(), rel=1e-5)
    state = step.state_dict()
    for name, value in model.state_dict().items():
        assert state[name].dtype == value.dtype
        assert torch.allclose(state[name].float(), value.float(), atol=1e-6)
    # A checkpoint has the same 8 bits.
    step.save(tmp_path / "saved")
    found = load_file(tmp_path / "saved" / "model.safetensors")
    for name in ("weight", "shift"):
        assert found[name].dtype == state[name].dtype
        assert torch.equal(found[name].view(torch.uint8), state[name].view(torch.uint8))
    other = compiled()
    other.load(tmp_path / "saved")
    assert float(other(X, Y)) == pytest.approx(float(step(X, Y)), rel=1e-5)


def test_values_in_memory_are_rounded():
    step = compiled()
    state = step.state_dict()
    state["weight"] = torch.linspace(-464, 464, SIZE * SIZE).reshape(SIZE, SIZE)
    step.load_state_dict(state)
    found = step.state_dict()["weight"]
    assert torch.equal(found.float(), state["weight"].to(torch.float8_e4m3fn).float())
    for value in (464.5, -float("inf")):
        state["weight"][2, 3] = value
        with pytest.raises(ValueError, match=rf"\[2, 3\], {value}, is out of the range of f8E4M3FN"):
            step.load_state_dict(state)
