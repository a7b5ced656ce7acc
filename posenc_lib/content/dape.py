"""DAPE: a small network that adapts any bias to the scores it meets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import uniform
from posenc_lib.content._rows import operands


class DAPE(nn.Module):
    """DAPE: a two-layer network of all heads' scores and biases corrects their sum.

    Equation: e = a + b + f([a; b]),  a_mn = q_mᵀ k_n / √d,
        f(z) = W₂ LeakyReLU(W₁ z + c₁) + c₂: ℝ^{2H} → ℝ^H      (zheng2024)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, Tk), already scaled: the
        scheme sets scale = 1

    The network sees one pair (m, n) with all its heads and no other tokens, so caches
    and masks change nothing.

    Args:
        heads: H.
        bias: b, a function of (q_positions, k_positions) → (1 or B, H, Tq, Tk): ALiBi,
            KERPLE or FIRE in the paper.
        hidden: width of the network, 32 in the released code.
        generator: of the draw, uniform in ±1/√inputs like PyTorch's layers.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1, a bias that can't be
            called; when called, shapes that don't fit.

    Source: zheng2024
    Checked: chuanyang-Zheng/DAPE@51cf9bd74bf7:DAPE.py:AliBi_DAPE.forward
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
        self.prior = _checks.callable_("bias", bias)
        both = 2 * heads
        self.weight1 = uniform(hidden, both, inputs=both, generator=generator)
        self.bias1 = uniform(hidden, inputs=both, generator=generator)
        self.weight2 = uniform(heads, hidden, inputs=hidden, generator=generator)
        self.bias2 = uniform(heads, inputs=hidden, generator=generator)

    def scores(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        q, k, dtype = operands(q, k, q_positions, k_positions)
        content: Tensor = q @ k.mT * q.shape[-1] ** -0.5  # (B, H, Tq, Tk)
        if content.shape[1] != self.bias2.shape[0]:
            raise ValueError(
                f"q must have {self.bias2.shape[0]} heads, got shape {tuple(q.shape)}"
            )
        bias = self.prior(q_positions, k_positions)
        prior = _checks.score_bias("bias", bias, content.shape)
        prior = prior.to(q.dtype).expand_as(content)
        both = torch.cat((content, prior), 1).movedim(1, -1)  # (B, Tq, Tk, 2H)
        parameters = self.weight1, self.bias1, self.weight2, self.bias2
        w1, c1, w2, c2 = (p.to(q.dtype) for p in parameters)
        hidden = torch.nn.functional.leaky_relu(both @ w1.mT + c1)
        correction = (hidden @ w2.mT + c2).movedim(-1, 1)  # (B, H, Tq, Tk)
        return (content + prior + correction).to(dtype)
