# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Complex numbers, and what is known when tracing."""

import torch

from converter_cases.registry import case, normal, numbers

X = normal(2, 4, 6)
PAIRS = torch.cat([normal(5, 2), numbers(1, 0, 0, -2, -1, 1).reshape(3, 2)])
FAR = normal(8, 2, seed=1) + 3


def turned(x):
    """A rotary embedding by complex numbers."""
    angle = torch.outer(torch.arange(4).float(), 1e4 ** -(torch.arange(0, 6, 2) / 6))
    turn = torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(torch.view_as_complex(x.reshape(2, 4, 3, 2)) * turn).flatten(-2)


case("polar and view_as_complex", turned, X, share=1e-6)
case("complex", lambda x, y: torch.complex(x, y).exp().imag, normal(5), normal(5, seed=1), share=1e-6)
case("complex div", lambda x, y: torch.view_as_real(torch.view_as_complex(x) / torch.view_as_complex(y).conj()),
     PAIRS, FAR, share=1e-6)
case("complex abs", lambda x: torch.view_as_complex(x).abs(), torch.cat([PAIRS, torch.zeros(1, 2)]), share=1e-6)
case("complex sums", lambda x: torch.view_as_real(torch.stack([torch.view_as_complex(x)] * 2).sum(0) * 2j - 1),
     PAIRS, share=1e-6)
case("complex differences", lambda x, y: torch.view_as_real(torch.sub(
    2 - torch.view_as_complex(x), torch.view_as_complex(y), alpha=3) + x[:, 0]), PAIRS, FAR, share=1e-6)
for norm in ("backward", "ortho", "forward"):
    case(f"fft, {norm}", lambda x, norm=norm: torch.fft.fft(x, norm=norm).imag, X, share=2e-6)
    case(f"irfft, {norm}", lambda x, norm=norm: torch.fft.irfft(torch.fft.rfft(x, norm=norm) * 2j, norm=norm), X, share=2e-6)
case("fftn", lambda x: torch.fft.fftn(x, dim=(1, 2)).real, X, share=2e-6)
case("ifft", lambda x: torch.fft.ifft(torch.fft.fft(x, dim=1), dim=1).real, X, share=2e-6)
case("rfft", lambda x: torch.view_as_real(torch.fft.rfft(x)), X, share=2e-6)
case("rfft2, odd", lambda x: torch.view_as_real(torch.fft.rfft2(x)), normal(2, 3, 5), share=2e-6)
case("irfft, odd", lambda x: torch.fft.irfft(torch.view_as_complex(x.reshape(2, 4, 3, 2)), n=5), X, share=2e-6)
case("erfinv of what is known", lambda x: x * torch.erfinv(torch.tensor([0.3])), normal(5))
