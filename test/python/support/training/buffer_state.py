# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""State of written buffers."""

import torch


def same_state(step, module, bound=2e-5):
    """Parameters and buffers of both are alike, and have the same names and types."""
    found, expected = step.state_dict(), module.state_dict()
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
        if value.is_floating_point():
            torch.testing.assert_close(found[name], value, rtol=bound, atol=bound, msg=lambda m: f"{name}: {m}")
        else:
            assert torch.equal(found[name], value), name
