"""Biases that are a kernel of the distance: KERPLE, FIRE and Sandwich."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib.bias._pairs import batched, dense, heads_first, run_dense
from posenc_lib.frequencies import cos_sin
from posenc_lib.positions import relative


class KerpleLog(nn.Module):
    """KERPLE, logarithmic: a penalty that grows with the logarithm of the distance.

    Equation: b_h(m, n) = −r₁ ln(1 + r₂ |m − n|),  r₁, r₂ > 0      (chi2022)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    Both are learned for each head and kept above 0.01. The released code clamps the
    stored parameters in each forward pass; here only the values used are clamped, and
    the gradient passes the clamp, so that a parameter below it can come back.

    Args:
        heads: H, at least 1.
        generator: of the draw, r₁ from U(0, 2) and r₂ from U(0, 1).

    Raises:
        TypeError, ValueError: `heads` is not an integer ≥ 1; when called, as
            `positions.relative`.

    Source: chi2022
    Checked: golden;
        chijames/KERPLE@73f1ee2d2472:megatron/mpu/layers.py:ParallelKerpleLog.forward
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
        r1 = _clamped(self.r1.to(compute), 0.01)[:, None, None]  # (H, 1, 1)
        r2 = _clamped(self.r2.to(compute), 0.01)[:, None, None]
        r = relative(q_positions, k_positions)  # (Tq, Tk) or (B, 1, Tq, Tk)
        bias = -r1 * torch.log1p(r2 * r.abs().to(compute))
        return batched(bias.to(self.r1.dtype))


class KerplePower(nn.Module):
    """KERPLE, power: a penalty that grows with a learned power of the distance.

    Equation: b_h(m, n) = −r₁ |m − n|^r₂,  r₁ > 0, 0 < r₂ ≤ 2      (chi2022)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    With the power 1 it is ALiBi. Up to the power 2 the kernel is conditionally positive
    definite. Clamped as in `KerpleLog`, r₂ to 0.01 … 2.

    Args:
        heads: H, at least 1.
        generator: of the draw, r₁ from U(0, 1) and r₂ from U(0, 2).

    Raises:
        TypeError, ValueError: `heads` is not an integer ≥ 1; when called, as
            `positions.relative`.

    Source: chi2022
    Checked: golden;
        chijames/KERPLE@73f1ee2d2472:megatron/mpu/layers.py:ParallelKerplePower.forward
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
        r = relative(q_positions, k_positions)  # (Tq, Tk) or (B, 1, Tq, Tk)
        distance = r.abs().to(compute)
        positive = distance > 0
        # The gradients of 0^r₂ = 0 would be 0 · ∞.
        powers = torch.where(positive, torch.where(positive, distance, 1) ** r2, 0)
        return batched((-r1 * powers).to(self.r1.dtype))


def _clamped(parameter: Tensor, least: float, most: float | None = None) -> Tensor:
    """The clamped value, with the gradient of the value that is not clamped.

    It is the gradient of the released code, which clamps the stored parameter instead.
    """
    return parameter + (parameter.clamp(least, most) - parameter).detach()


class FIRE(nn.Module):
    """FIRE: a small network of the distance, divided by the query's own position.

    Equation: b(m, n) = f_θ( ψ(|m − n|) / ψ(max(m, L)) ),  ψ(x) = ln(c x + 1),
        f_θ(x) = W₂ ReLU(W₁ x + c₁) + c₂ ∈ ℝ^H
        (li2024; |·| and an ε = 10⁻⁶ in the denominator, as in a copy of its code)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    No length is new to the network. The divisor depends on the query alone: its
    position, or the threshold L where that is larger. So a cache changes nothing. The
    copy takes the row's largest distance, which is m where the keys begin at 0. Beyond
    the causal mask, n > m, the value is meaningless and must be masked. Unlike the
    other biases, this one depends on more than m − n, and so on where position 0 is.

    Args:
        heads: H, at least 1.
        hidden: width of f_θ, 32 in the paper.
        c: first value of the learned c, above 0.
        threshold: first value of the learned L, above 0; what is learned is a factor of
            it, 1 at first.
        generator: of the draw of f_θ, uniform in ±1/√inputs like PyTorch's layers.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1, `c` or `threshold` not
            above 0; when called, as `positions.relative`.

    Source: li2024
    Checked: golden; chuanyang-Zheng/DAPE@51cf9bd74bf7:DAPE.py:FIRE.forward
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
        _checks.positive("c", c)
        self.c = nn.Parameter(torch.tensor(float(c)))
        self.multiplier = nn.Parameter(torch.tensor(1.0))
        self.network = dense((1, hidden, heads), generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        distance = relative(q_positions, k_positions)  # (Tq, Tk) or (B, 1, Tq, Tk)
        compute = _checks.at_least_float32(self.c.dtype)
        c = self.c.to(compute)
        threshold = (self.multiplier.to(compute) * self.threshold).abs()
        divisor = torch.maximum(q_positions.to(compute), threshold)[..., None]
        divisor = divisor if divisor.dim() == 2 else divisor[:, None]  # (…, Tq, 1)
        numerator = (c * distance.to(compute)).abs().log1p()
        share = numerator / ((c * divisor).abs().log1p() + 1e-6)
        biases = run_dense(self.network, share[..., None], torch.relu)
        return heads_first(biases).to(self.c.dtype)


def sandwich(
    q_positions: Tensor,
    k_positions: Tensor,
    heads: int,
    *,
    dim: int = 128,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sandwich: the inner product of two sinusoidal embeddings, as a bias.

    Equation: b_h(m, n) = (Σ_i cos((m − n) θ^(−2i/d̄)) − d̄/2) / (8h/H),
        i = 1 … d̄/2,  h = 1 … H      (chi2023s; −d̄/2 as in NeMo's code)
    Shapes: positions (Tq,), (Tk,) → (1, H, Tq, Tk); (B, Tq), (B, Tk) → (B, H, Tq, Tk)

    −d̄/2 makes the diagonal 0 and changes no softmax. i begins at 1: the frequency 1 is
    not among them, 1/θ is. The sum is computed as that inner product, cos(m ω) cos(n ω)
    + sin(m ω) sin(n ω), so that no (Tq, Tk, d̄/2) tensor is made; in float64, since
    nearly all of it cancels.

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        heads: H, at least 1. The first head falls fastest.
        dim: d̄, even; 128 in the paper, whatever the model's width.
        base: θ, above 0.
        dtype: of the result.

    Raises:
        TypeError, ValueError: positions as in `positions.relative`; `heads` is not an
            integer ≥ 1, `dim` is not even, `base` is not above 0.

    Source: chi2023s
    Checked: golden;
        NVIDIA/NeMo@000b931ed003:nemo/collections/nlp/modules/common/megatron/position_embedding/sandwich_relative_position_embedding.py:SandwichRelativePositionEmbedding.forward
    Chapter: 07
    """
    _checks.floating_dtype("dtype", dtype)
    _checks.whole_number("heads", heads, least=1)
    half = _checks.even_dimension("dim", dim) // 2
    _checks.positive("base", base)
    _checks.pair_positions("q_positions", q_positions, "k_positions", k_positions)
    # In float64, which may be on the CPU; the result is rounded and then moved.
    m, n = (_checks.in_float64(positions) for positions in (q_positions, k_positions))
    i = torch.arange(1, half + 1, dtype=torch.float64, device="cpu")
    frequencies = base ** (-i / half)
    cos_m, sin_m = cos_sin(m, frequencies, dtype=m.dtype)  # (Tq, d̄/2) or (B, Tq, d̄/2)
    cos_n, sin_n = cos_sin(n, frequencies, dtype=n.dtype)
    similarity = cos_m @ cos_n.mT + sin_m @ sin_n.mT - half  # (Tq, Tk) or (B, Tq, Tk)
    h = torch.arange(1, heads + 1, dtype=torch.float64, device="cpu")
    ratio = (8.0 * h / heads).to(m.device)[:, None, None]  # (H, 1, 1)
    bias = similarity[..., None, :, :] / ratio
    return batched(bias).to(dtype).to(q_positions.device)
