"""Biases that fall with distance as a given kernel does: KERPLE, FIRE and Sandwich."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib.bias._pairs import dense, heads_first, run_dense
from posenc_lib.frequencies import cos_sin
from posenc_lib.positions import relative


class KerpleLog(nn.Module):
    """KERPLE, logarithmic: a penalty that grows with the logarithm of the distance, at a learned rate for each head.

    Equation: b_h(m, n) = −r₁ ln(1 + r₂ |m − n|),  r₁, r₂ > 0      (chi2022; checked
        against the released code)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    The released code keeps both above 0.01 by clamping, and so does this; the gradient
    passes the clamp, so that a parameter below it can come back.

    Args:
        heads: H, at least 1.
        generator: of the draw, r₁ from U(0, 2) and r₂ from U(0, 1).

    Raises:
        TypeError, ValueError: `heads` is not an integer ≥ 1; when called, as
            `positions.relative`.

    Source: chi2022
    Chapter: 07
    """

    def __init__(self, heads: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        self.r1 = nn.Parameter(torch.empty(heads))
        self.r2 = nn.Parameter(torch.empty(heads))
        nn.init.uniform_(self.r1, 0, 2, generator=generator)
        nn.init.uniform_(self.r2, 0, 1, generator=generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        compute = _checks.at_least_float32(self.r1.dtype)
        r1, r2 = (
            _clamped(r.to(compute), 0.01)[:, None, None] for r in (self.r1, self.r2)
        )  # (H, 1, 1)
        distance = (
            relative(q_positions, k_positions).abs().to(compute)
        )  # (Tq, Tk) or (B, 1, Tq, Tk)
        bias = (-r1 * torch.log1p(r2 * distance)).to(
            self.r1.dtype
        )  # (H, Tq, Tk) or (B, H, Tq, Tk)
        return bias if bias.dim() == 4 else bias[None]


class KerplePower(nn.Module):
    """KERPLE, power: a penalty that grows with a learned power of the distance; with the power 1 it is ALiBi.

    Equation: b_h(m, n) = −r₁ |m − n|^r₂,  r₁ > 0, 0 < r₂ ≤ 2      (chi2022; checked
        against the released code)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    Up to the power 2 the kernel is conditionally positive definite. Clamped as in
    `KerpleLog`, r₂ to 0.01 … 2.

    Args:
        heads: H, at least 1.
        generator: of the draw, r₁ from U(0, 1) and r₂ from U(0, 2).

    Raises:
        TypeError, ValueError: `heads` is not an integer ≥ 1; when called, as
            `positions.relative`.

    Source: chi2022
    Chapter: 07
    """

    def __init__(self, heads: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        self.r1 = nn.Parameter(torch.empty(heads))
        self.r2 = nn.Parameter(torch.empty(heads))
        nn.init.uniform_(self.r1, 0, 1, generator=generator)
        nn.init.uniform_(self.r2, 0, 2, generator=generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        compute = _checks.at_least_float32(self.r1.dtype)
        r1 = _clamped(self.r1.to(compute), 0.01)[:, None, None]  # (H, 1, 1)
        r2 = _clamped(self.r2.to(compute), 0.01, 2.0)[:, None, None]
        distance = (
            relative(q_positions, k_positions).abs().to(compute)
        )  # (Tq, Tk) or (B, 1, Tq, Tk)
        some = distance > 0
        grown = torch.where(
            some, torch.where(some, distance, 1) ** r2, 0
        )  # 0^r₂ = 0 has gradients of 0 · ∞
        bias = (-r1 * grown).to(self.r1.dtype)  # (H, Tq, Tk) or (B, H, Tq, Tk)
        return bias if bias.dim() == 4 else bias[None]


def _clamped(parameter: Tensor, least: float, most: float | None = None) -> Tensor:
    """The clamped value with the gradient of the value itself, which is the gradient of the released code."""
    return parameter + (parameter.clamp(least, most) - parameter).detach()


class FIRE(nn.Module):
    """FIRE: a small network reads the distance as a share of the query's own position, so that no length is new to it.

    Equation: b(m, n) = f_θ( ψ(|m − n|) / ψ(max(m, L)) ),  ψ(x) = ln(c x + 1),  f_θ = W₂
        ReLU(W₁ x + c₁) + c₂ ∈ ℝ^H (li2024; |·| and an ε = 10⁻⁶ added below, as in a
        copy of the appendix's code)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    The divisor belongs to the query alone: its position, or the threshold L where that
    is larger. It is neither the row's largest distance nor the key's position, so a
    cache changes nothing. Beyond the causal mask, n > m, the value means nothing and
    must be masked. Unlike the other biases, this one depends on more than m − n, and
    with it, where position 0 is.

    Args:
        heads: H, at least 1.
        hidden: width of f_θ, 32 in the paper.
        c: first value of the learned c, above 0.
        threshold: first value of the learned L, above 0; what is learned is a factor of
            it, 1 at first.
        generator: of the draw of f_θ, uniform in ±1/√(inputs), which is PyTorch's for
            linear layers.

    Raises:
        TypeError, ValueError: sizes and values of another kind; when called, as
            `positions.relative`.

    Source: li2024
    Chapter: 07
    """

    def __init__(
        self,
        heads: int,
        *,
        hidden: int = 32,
        c: float = 0.1,
        threshold: float = 512.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        _checks.whole_number("hidden", hidden, least=1)
        self.threshold = _checks.positive("threshold", threshold)
        self.c = nn.Parameter(torch.tensor(float(_checks.positive("c", c))))
        self.multiplier = nn.Parameter(torch.tensor(1.0))
        self.network = dense((1, hidden, heads), generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        distance = relative(q_positions, k_positions)  # (Tq, Tk) or (B, 1, Tq, Tk)
        compute = _checks.at_least_float32(self.c.dtype)
        c, least = (
            self.c.to(compute),
            (self.multiplier.to(compute) * self.threshold).abs(),
        )
        divisor = torch.maximum(q_positions.to(compute), least)[
            ..., None
        ]  # (Tq, 1) or (B, Tq, 1)
        divisor = divisor if divisor.dim() == 2 else divisor[:, None]
        share = (c * distance.to(compute)).abs().log1p() / (
            (c * divisor).abs().log1p() + 1e-6
        )
        return heads_first(run_dense(self.network, share[..., None], torch.relu)).to(
            self.c.dtype
        )


def sandwich(
    q_positions: Tensor,
    k_positions: Tensor,
    heads: int,
    *,
    dim: int = 128,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sandwich: the inner product of two sinusoidal embeddings, as a bias; ALiBi's shape without its straight line.

    Equation: b_h(m, n) = (Σ_i cos((m − n) θ^(−2i/d̄)) − d̄/2) / (8h/H),  i = 1 …
        d̄/2,  h = 1 … H (chi2023s; checked against NeMo's code, whose −d̄/2 makes the
        diagonal 0 and changes no softmax)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    i begins at 1: the frequency 1 is not among them, 1/θ is. The sum is that inner
    product indeed, cos(m ω) cos(n ω) + sin(m ω) sin(n ω), so that no (Tq, Tk, d̄/2)
    tensor is made; in float64, since nearly all of it cancels.

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        heads: H, at least 1. The first head falls fastest.
        dim: d̄, even; 128 in the paper, whatever the model's width.
        base: θ, above 0.
        dtype: of the result.

    Raises:
        TypeError, ValueError: positions as in `positions.relative`; sizes and values of
            another kind.

    Source: chi2023s
    Chapter: 07
    """
    _checks.floating_dtype("dtype", dtype)
    _checks.whole_number("heads", heads, least=1)
    half = _checks.even_dimension("dim", dim) // 2
    _checks.positive("base", base)
    m, n = (
        _checks.attention_positions("q_positions", q_positions),
        _checks.attention_positions("k_positions", k_positions),
    )
    if m.dim() == n.dim() == 2 and m.shape[0] != n.shape[0]:
        raise ValueError(
            f"q_positions and k_positions must have the same batch, got {m.shape[0]} "
            f"and {n.shape[0]}"
        )
    # Apple's mps has no float64: there the sum is made on the CPU, rounded, and then
    # moved.
    device = m.device
    workplace = torch.device("cpu") if device.type == "mps" else device
    frequencies = base ** (
        -torch.arange(1, half + 1, dtype=torch.float64, device="cpu") / half
    )
    cos_m, sin_m = cos_sin(
        m.to(workplace), frequencies, dtype=torch.float64
    )  # (Tq, d̄/2) or (B, Tq, d̄/2)
    cos_n, sin_n = cos_sin(n.to(workplace), frequencies, dtype=torch.float64)
    similarity = cos_m @ cos_n.mT + sin_m @ sin_n.mT - half  # (Tq, Tk) or (B, Tq, Tk)
    ratio = 8.0 * torch.arange(1, heads + 1, dtype=torch.float64, device="cpu") / heads
    bias = similarity[..., None, :, :] / ratio.to(workplace)[:, None, None]
    return (bias if bias.dim() == 4 else bias[None]).to(dtype).to(device)
