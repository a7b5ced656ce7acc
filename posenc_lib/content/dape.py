"""DAPE: a small network that adapts any bias to the scores it meets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib.content._rows import operands


class DAPE(nn.Module):
    """DAPE: a two-layer network reads all heads' scores and biases of one pair, and corrects the sum of the two.

    Equation: e = a + b + f([a; b]),  a_mn = q_mᵀ k_n / √d,  f(z) = W₂ LeakyReLU(W₁ z +
        c₁) + c₂: ℝ^{2H} → ℝ^H (zheng2024; read in the released code)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, Tk), already scaled: the
        scheme sets scale = 1

    One pair (m, n) at a time, with all heads: nothing runs along the tokens, so caches
    and masks change nothing.

    Args:
        heads: H.
        bias: b, a function of (q_positions, k_positions) → (1 or B, H, Tq, Tk): ALiBi,
            KERPLE or FIRE in the paper.
        hidden: width of the network, 32 in the released code.
        generator: of the draw, uniform in ±1/√(inputs), which is PyTorch's for linear
            layers.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1, a bias that can't be
            called; when called, shapes that don't fit.

    Source: zheng2024
    Chapter: 07
    """

    def __init__(
        self,
        heads: int,
        bias: Callable[[Tensor, Tensor], Tensor],
        *,
        hidden: int = 32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        _checks.whole_number("hidden", hidden, least=1)
        if not callable(bias):
            raise TypeError(
                f"bias must be a callable of (q_positions, k_positions), got {bias!r}"
            )
        self.prior = bias
        self.weight1 = nn.Parameter(torch.empty(hidden, 2 * heads))
        self.bias1 = nn.Parameter(torch.empty(hidden))
        self.weight2 = nn.Parameter(torch.empty(heads, hidden))
        self.bias2 = nn.Parameter(torch.empty(heads))
        for parameter, inputs in (
            (self.weight1, 2 * heads),
            (self.bias1, 2 * heads),
            (self.weight2, hidden),
        ):
            nn.init.uniform_(
                parameter, -(inputs**-0.5), inputs**-0.5, generator=generator
            )
        nn.init.uniform_(self.bias2, -(hidden**-0.5), hidden**-0.5, generator=generator)

    def scores(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        q, k, dtype = operands(q, k, q_positions, k_positions)
        content: Tensor = q @ k.mT * q.shape[-1] ** -0.5  # (B, H, Tq, Tk)
        if content.shape[1] != self.bias2.shape[0]:
            raise ValueError(
                f"q must have {self.bias2.shape[0]} heads, got shape {tuple(q.shape)}"
            )
        prior = _checks.score_bias(
            "bias", self.prior(q_positions, k_positions), content.shape
        )
        prior = prior.to(q.dtype).expand_as(content)
        both = torch.cat((content, prior), 1).movedim(1, -1)  # (B, Tq, Tk, 2H)
        w1, b1, w2, b2 = (
            p.to(q.dtype) for p in (self.weight1, self.bias1, self.weight2, self.bias2)
        )
        hidden = torch.nn.functional.leaky_relu(both @ w1.mT + b1)
        return (content + prior + (hidden @ w2.mT + b2).movedim(-1, 1)).to(dtype)
