"""Variants of the rotation: other magnitudes, other planes, other angles, and rotated values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import linear, uniform
from posenc_lib._torch import values_known
from posenc_lib.frequencies import cos_sin, inverse_frequencies
from posenc_lib.positions import relative
from posenc_lib.rotary._apply import apply_rotary_per_head
from posenc_lib.rotary.pairs import LAYOUTS
from posenc_lib.rotary.rope import RoPE, Rotation, check_tokens, checked_rope


@dataclass(frozen=True, eq=False)
class XPos:
    """xPos: RoPE whose pairs also fade with distance, the fast pairs most.

    Equation: q → ζ_i^((m−c)/S) R_m q,  k → ζ_i^(−(n−c)/S) R_n k on pair i, which gives
        its part of the score the factor ζ_i^((m−n)/S);  ζ_i = (2i/d + γ)/(1 + γ)
        (sun2023x, pairs counted from 0; c as in the released code)
    Shapes: as `RoPE.transform`

    For causal attention only: a key in the future is amplified. The centre c falls out
    of the score as long as queries and keys, cached ones too, share it. It keeps the
    powers in range: float32 overflows at |m − c| ≈ 70 S for γ = 0.4.

    Args:
        frequencies: (r/2,) ω_i, as in `RoPE`.
        layout: as in `RoPE`; both channels of a pair fade alike.
        gamma: γ, above 0.
        scale_base: S, the positions over which pair i fades by ζ_i.
        centre: c, a position.

    Raises:
        TypeError, ValueError: as `RoPE`; γ or S not above 0; a centre that is no finite
            number.

    Source: sun2023x
    Chapter: 11
    """

    frequencies: Tensor
    layout: str = "interleaved"
    gamma: float = 0.4
    scale_base: float = 512.0
    centre: float = 0.0

    def __post_init__(self) -> None:
        RoPE(self.frequencies, layout=self.layout)
        _checks.positive("gamma", self.gamma)
        _checks.positive("scale_base", self.scale_base)
        _checks.finite("centre", self.centre)

    def scales(self, positions: Tensor) -> Tensor:
        """ζ_i^((p−c)/S) for every position and pair, float64: (T,) or (B, T) → (..., T, r/2)."""
        p = _with_float64(_checks.attention_positions("positions", positions))
        pairs = self.frequencies.shape[0]
        zeta = (
            torch.arange(pairs, dtype=torch.float64, device=p.device) / pairs
            + self.gamma
        ) / (1 + self.gamma)
        return zeta ** ((p[..., None] - self.centre) / self.scale_base)

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each turned and scaled by its own positions."""
        return self._turned("q", q, q_positions, 1), self._turned(
            "k", k, k_positions, -1
        )

    def _turned(self, name: str, x: Tensor, positions: Tensor, power: int) -> Tensor:
        _checks.floating_tensor(name, x, least_dims=2)
        scales = (
            self.scales(_checks.attention_positions(f"{name}_positions", positions))
            ** power
        )
        tables = cos_sin(
            _with_float64(positions), self.frequencies, dtype=torch.float64
        )
        dtype = _checks.at_least_float32(x.dtype)
        cos, sin = ((table * scales).to(dtype).to(positions.device) for table in tables)
        rotation = Rotation(cos, sin, self.layout)
        check_tokens(x, rotation.cos, name, f"{name}_positions")
        return rotation(x)


def rotated_values(
    weights: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor, *, rope: RoPE
) -> Tensor:
    """RoPER: values are rotated too, and the sum is turned back, so that it sees how far each value came.

    Equation: o_m = R_m⁻¹ Σ_n α_mn R_n v_n = Σ_n α_mn R_{n−m} v_n      (harik2023)
    Shapes: weights (B, H, Tq, Tk), v (B, H, Tk, d_v) → (B, H, Tq, d_v)

    The place `values` of a scheme: `values=partial(rotated_values, rope=rope)`.

    Args:
        weights: α, as `attention` computes them.
        v: values, one a head.
        q_positions: (Tq,) or (B, Tq).
        k_positions: (Tk,) or (B, Tk).
        rope: the rotation, of at most d_v channels.

    Raises:
        TypeError, ValueError: weights and v of another batch, or number of heads or
            keys; positions of another shape; v with fewer channels than `rope` turns.

    Source: harik2023
    Chapter: 11
    """
    for name, x in (("weights", weights), ("v", v)):
        _checks.heads_tensor(name, x)
    if weights.shape[:2] != v.shape[:2] or weights.shape[3] != v.shape[2]:
        raise ValueError(
            "weights and v must agree in batch, heads and keys (`attention` repeats "
            "grouped values); "
            f"got weights {tuple(weights.shape)} and v {tuple(v.shape)}"
        )
    batch, _, q_length, k_length = weights.shape
    _checks.token_positions("q_positions", q_positions, batch=batch, length=q_length)
    _checks.token_positions("k_positions", k_positions, batch=batch, length=k_length)
    dtype = _checks.at_least_float32(weights.dtype, v.dtype)
    rotation = checked_rope("rope", rope)(k_positions, dtype)
    check_tokens(v, rotation.cos, "v", "k_positions")
    summed = weights.to(dtype) @ rotation(v.to(dtype))
    return rope(q_positions, dtype).inverse()(summed).to(v.dtype)


class PoPE(nn.Module):
    """PoPE: content sets the magnitude of a channel, position its phase, and neither touches the other.

    Equation: s_mn = Σ_c μ(q_c) μ(k_c) cos((n − m) ω_c + δ_c),  μ(x) = ln(1 + eˣ),  ω_c
        = θ^(−c/d),  −2π ≤ δ_c ≤ 0 (gopalakrishnan2025, as implemented in
        x-transformers)
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d) → (..., 2d): d cosines, then d sines

    Every channel has a frequency, so d of them rather than d/2, and vectors come out
    twice as wide. The score scale stays that of the d channels: set the scheme's
    `scale` to 1/√d.

    Args:
        head_dim: d, at least 1, odd ones too.
        base: θ.
        heads: Hk, heads of the keys: δ is learned for each, and begins at 0.

    Raises:
        TypeError, ValueError: sizes below 1; when called, q or k of another width or
            number of heads.

    Source: gopalakrishnan2025
    Chapter: 22
    """

    def __init__(self, head_dim: int, base: float = 10000.0, *, heads: int) -> None:
        super().__init__()
        self.frequencies = inverse_frequencies(
            2 * _checks.whole_number("head_dim", head_dim, least=1), base
        )
        self.phase = nn.Parameter(
            torch.zeros(_checks.whole_number("heads", heads, least=1), head_dim)
        )

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key in polar form; the key's phases are ahead by δ."""
        heads, head_dim = self.phase.shape
        for name, x in (("q", q), ("k", k)):
            _tokens_of_heads(
                name, x, q_positions if name == "q" else k_positions, width=head_dim
            )
        if k.shape[1] != heads:
            raise ValueError(
                f"k must have {heads} heads, one for each row of the phases; got "
                f"{k.shape[1]}"
            )
        delta = self.phase.clamp(-2 * math.pi, 0)[:, None]  # (Hk, 1, d)
        return self._polar(q, q_positions, None), self._polar(k, k_positions, delta)

    def _polar(self, x: Tensor, positions: Tensor, delta: Tensor | None) -> Tensor:
        compute = _checks.at_least_float32(x.dtype, self.phase.dtype)
        cos, sin = (
            _over_heads(table)
            for table in cos_sin(positions, self.frequencies, dtype=compute)
        )
        if delta is not None:
            ahead_cos, ahead_sin = delta.to(compute).cos(), delta.to(compute).sin()
            cos, sin = (
                cos * ahead_cos - sin * ahead_sin,
                sin * ahead_cos + cos * ahead_sin,
            )
        magnitude = nn.functional.softplus(x.to(compute))
        return torch.cat((magnitude * cos, magnitude * sin), -1).to(x.dtype)


class LieRE(nn.Module):
    """LieRE: a learned rotation of many channels at once, in as many axes as positions have.

    Equation: q → R(p) q,  R(p) = exp(Σ_a p_a A_a),  A_a = U_a − U_aᵀ, U_a strictly
        upper triangular      (ostmeier2024; checked against the released code)
    Shapes: q (B, H, T, d); positions (T,) or (B, T) for one axis, (T, axes) or (B, T,
        axes) for more → the same as q

    With one axis the score depends on n − m alone. With more it does not, unless the
    A_a commute, as in `ComRoPE`. The released code scales positions into 0 … 1 over the
    trained image.

    Args:
        head_dim: d.
        axes: coordinates of a position.
        block: A_a has blocks of so many channels on its diagonal, a divisor of d; one
            block of d by default.
        generator: of the draw: entries of U_a are uniform in 0 … 2π.

    Raises:
        TypeError, ValueError: `block` does not divide `head_dim`; when called,
            positions of another number of axes.

    Source: ostmeier2024
    Chapter: 17
    """

    def __init__(
        self,
        head_dim: int,
        *,
        axes: int,
        block: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        size = _block(head_dim, block)
        shape = (
            _checks.whole_number("axes", axes, least=1),
            head_dim // size,
            size,
            size,
        )
        self.upper = nn.Parameter(torch.empty(shape))
        nn.init.uniform_(self.upper, 0, 2 * math.pi, generator=generator)

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each turned by its own positions."""
        upper = _with_float64(self.upper).triu(1)
        skew = (upper - upper.mT)[
            None
        ]  # (1, axes, blocks, b, b): the same for all heads
        return (
            _exponential_rotation("q", q, "q_positions", q_positions, skew),
            _exponential_rotation("k", k, "k_positions", k_positions, skew),
        )


class ComRoPE(nn.Module):
    """ComRoPE with linearly dependent angle matrices: LieRE whose axes commute, so that scores are relative again.

    Equation: R(p) = exp(Σ_a p_a A_a),  A_a = c_a (F − Fᵀ) block by block: all A_a are
        multiples of one matrix (yu2025; checked against the released code)
    Shapes: as `LieRE`

    Args:
        head_dim: d.
        axes: coordinates of a position.
        block: channels of a block, a divisor of d. With 2 it is RoPE with learned
            frequencies, mixed over the axes.
        heads: heads of the keys; each has its own F, all share c.
        generator: of the draws: F and c are standard normal.

    Raises:
        TypeError, ValueError: as `LieRE`; when called, heads that `heads` does not
            divide.

    Source: yu2025
    Chapter: 17
    """

    def __init__(
        self,
        head_dim: int,
        *,
        axes: int,
        block: int,
        heads: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        blocks = head_dim // _block(
            head_dim, _checks.whole_number("block", block, least=1)
        )
        shape = (_checks.whole_number("heads", heads, least=1), blocks, block, block)
        self.matrix = nn.Parameter(torch.empty(shape))
        self.multiplier = nn.Parameter(
            torch.empty(_checks.whole_number("axes", axes, least=1), blocks)
        )
        for parameter in (self.matrix, self.multiplier):
            nn.init.normal_(parameter, generator=generator)

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each turned by its own positions."""
        matrix, multiplier = _with_float64(self.matrix), _with_float64(self.multiplier)
        one = (matrix - matrix.mT)[:, None]  # (H, 1, blocks, b, b)
        skew = multiplier[:, :, None, None] * one  # (H, axes, blocks, b, b)
        return (
            _exponential_rotation("q", q, "q_positions", q_positions, skew),
            _exponential_rotation("k", k, "k_positions", k_positions, skew),
        )


class CayleySTRING(nn.Module):
    """Cayley-STRING: RoPE in a learned orthogonal basis, the most general exactly relative rotation.

    Equation: q → R_m P q,  k → R_n P k,  P = (I − S)(I + S)⁻¹,  S = U − Uᵀ
        (schenck2025 eq. 9–10)
    Shapes: as `transform`

    The paper's form P R_m Pᵀ has one more P, which falls out of every score. U begins
    at 0, where P = I and all is as `transform` makes it (our choice: how the paper
    begins was not at hand).

    Args:
        head_dim: d, channels that P mixes; one P for all heads.
        transform: the rotation in the new basis, `RoPE(...).transform` or one of more
            axes.

    Raises:
        TypeError, ValueError: `head_dim` is below 1, `transform` is not callable; when
            called, vectors of other width.

    Source: schenck2025
    Chapter: 17
    """

    def __init__(
        self, head_dim: int, transform: Callable[..., tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        if not callable(transform):
            raise TypeError(
                "transform must be callable, as RoPE(...).transform is; got "
                f"{transform!r}"
            )
        self.rotate = transform
        if isinstance(learned := getattr(transform, "__self__", None), nn.Module):
            # what MixedRoPE's method, say, is bound to: its parameters are this
            # module's too
            self.learned = learned
        width = _checks.whole_number("head_dim", head_dim, least=1)
        self.upper = nn.Parameter(torch.zeros(width, width))

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key in the learned basis, then rotated."""
        for name, x in (("q", q), ("k", k)):
            if (
                _checks.floating_tensor(name, x, least_dims=2).shape[-1]
                != self.upper.shape[0]
            ):
                raise ValueError(
                    f"{name} must have {self.upper.shape[0]} channels, got "
                    f"{x.shape[-1]}"
                )
        compute = _checks.at_least_float32(q.dtype, k.dtype, self.upper.dtype)
        upper = self.upper.to(compute).triu(1)
        skew = upper - upper.mT
        identity = torch.eye(upper.shape[0], dtype=compute, device=upper.device)
        basis = torch.linalg.solve(
            identity + skew, identity - skew
        )  # the two factors commute
        turned = self.rotate(
            q.to(compute) @ basis.mT, k.to(compute) @ basis.mT, q_positions, k_positions
        )
        return turned[0].to(q.dtype), turned[1].to(k.dtype)


class FoPE(nn.Module):
    """Fourier position embedding: each pair turns by a learned mixture of frequencies, and the slowest don't turn.

    Equation: cos(p ω_i) → Σ_j C_ji cos(p ω_j),  sin(p ω_i) → Σ_j S_ji sin(p ω_j) over
        the pairs with ω_j ≥ 2π/L; 1 and 0 for the others      (hua2024; checked against
        a copy of the released code and one serving engine)
    Shapes: as `RoPE.transform`

    The tables are no rotation any more, and the score depends on m and n, not on n − m
    alone.

    Args:
        dim: rotated channels d, even.
        base: θ.
        length: L, the trained length; slower pairs never made a full turn in it.
        heads: heads of the keys, each with its own C and S.
        layout: as in `RoPE`.
        gain: C and S begin at I plus normal noise of standard deviation gain/√(number
            of pairs kept).
        generator: of the draw.

    Raises:
        TypeError, ValueError: no pair is kept; then as `RoPE`; when called, heads that
            `heads` does not divide.

    Source: hua2024
    Chapter: 22
    """

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        *,
        length: int,
        heads: int,
        layout: str = "interleaved",
        gain: float = 0.3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        frequencies = inverse_frequencies(dim, base)
        self.layout, self.pairs = _checks.one_of("layout", layout, LAYOUTS), dim // 2
        kept = int(
            (
                frequencies
                >= 2 * math.pi / _checks.whole_number("length", length, least=1)
            ).sum()
        )
        if not kept:
            raise ValueError(
                "length must let at least one pair make a full turn (7 or more), got "
                f"{length}"
            )
        self.frequencies = frequencies[:kept]
        start = torch.empty(
            2, _checks.whole_number("heads", heads, least=1), kept, kept
        )
        nn.init.normal_(
            start, std=_checks.positive("gain", gain) * kept**-0.5, generator=generator
        )
        self.cos_mixture, self.sin_mixture = (
            nn.Parameter(noise + torch.eye(kept)) for noise in start
        )

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each with the mixed tables of its own positions."""
        return self._mixed("q", q, q_positions), self._mixed("k", k, k_positions)

    def _mixed(self, name: str, x: Tensor, positions: Tensor) -> Tensor:
        _tokens_of_heads(name, x, positions)
        compute = _checks.at_least_float32(x.dtype, self.cos_mixture.dtype)
        tables = cos_sin(
            _with_float64(positions), self.frequencies, dtype=torch.float64
        )
        # tables as well, so they are rounded once; autocast leaves products in float64
        # alone
        mixed = (
            (_over_heads(table) @ _with_float64(mixture)).to(compute).to(x.device)
            for table, mixture in zip(
                tables, (self.cos_mixture, self.sin_mixture), strict=True
            )
        )
        cos, sin = (
            _per_head(name, table, x) for table in mixed
        )  # (H, T, kept) or (B, H, T, kept)
        still, pad = (0, self.pairs - self.frequencies.shape[0]), nn.functional.pad
        return apply_rotary_per_head(
            name, x, pad(cos, still, value=1.0), pad(sin, still), self.layout
        )


class RePo(nn.Module):
    """RePo: each head reads a token's position off its hidden state, and RoPE turns by that.

    Equation: z_h(x) = w_hᵀ (SiLU(W_g x) ⊙ W_c x);  q → R_{z(x_m)} q,  k → R_{z(x_n)} k
        (li2025r; checked against the released code)
    Shapes: q, k (B, H, T, d) with hidden states q_x, k_x (B, T, D) → the same as q, k

    The token's index enters through the causal mask alone.

    Args:
        width: D of the model.
        heads: H, of queries and keys.
        rope: the rotation; positions may be any real numbers.
        latent: width of W_g x and W_c x; D/8 in the released code.
        generator: of the draws; weights are uniform in ±1/√(inputs), PyTorch's for
            linear layers.

    Raises:
        TypeError, ValueError: sizes below 1; when called, hidden states that are
            missing or of another shape.

    Source: li2025r
    Chapter: 22
    """

    def __init__(
        self,
        width: int,
        heads: int,
        rope: RoPE,
        *,
        latent: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.rope = checked_rope("rope", rope)
        _checks.sizes(width=width, heads=heads, latent=latent)
        self.gate, self.content = (
            linear(uniform(latent, width, inputs=width, generator=generator))
            for _ in range(2)
        )
        self.heads = linear(uniform(heads, latent, inputs=latent, generator=generator))

    def positions(self, x: Tensor) -> Tensor:
        """z: hidden states (B, T, D) → (B, H, T)."""
        compute = _checks.at_least_float32(x.dtype, self.gate.weight.dtype)
        x = x.to(compute)
        gate, content, heads = (
            layer.weight.to(compute) for layer in (self.gate, self.content, self.heads)
        )
        with _checks.without_autocast(x.device):
            return ((nn.functional.silu(x @ gate.mT) * (x @ content.mT)) @ heads.mT).mT

    def transform(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        *,
        q_x: Tensor | None = None,
        k_x: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each turned by the positions that its hidden states name."""
        return self._turned("q", q, q_positions, q_x), self._turned(
            "k", k, k_positions, k_x
        )

    def _turned(
        self, name: str, x: Tensor, positions: Tensor, hidden: Tensor | None
    ) -> Tensor:
        _tokens_of_heads(name, x, positions)
        compute = _checks.at_least_float32(x.dtype)
        named = _checks.hidden_states(
            f"{name}_x", hidden, self.gate.in_features, f"{name}_positions", positions
        )
        cos, sin = cos_sin(
            self.positions(named), self.rope.frequencies, dtype=compute
        )  # (B, H, T, r/2)
        a = self.rope.attention_factor
        return apply_rotary_per_head(name, x, cos * a, sin * a, self.rope.layout)


def grape(
    x: Tensor, positions: Tensor, a: Tensor, b: Tensor, *, frequency: float = 1.0
) -> Tensor:
    """Multiplicative GRAPE: a turn in the plane of any two vectors; RoPE is d/2 such turns in coordinate planes.

    Equation: exp(n ω L) x = x + (sin nωs / s) L x + ((1 − cos nωs) / s²) L² x,  L = a
        bᵀ − b aᵀ, s² = |a|²|b|² − (aᵀb)²      (zhang2025g; derived, and the same as in
        the released code's README)
    Shapes: x (B, H, T, d), positions (T,) or (B, T), a and b (d,) → the same as x

    It turns from b to a. Turns in planes that are orthogonal to one another commute,
    and then scores stay relative. Frequencies learned in coordinate planes are simply
    `RoPE` with a tensor that requires a gradient.

    Args:
        x: queries or keys.
        positions: n, of the tokens of x.
        a: one vector of the plane, not parallel to b.
        b: the other.
        frequency: ω; the angle of one position is ω s.

    Raises:
        TypeError, ValueError: a or b is no vector of d numbers; they are parallel; x or
            positions of another shape.

    Source: zhang2025g
    Chapter: 11
    """
    _tokens_of_heads("x", x, positions)
    for name, vector in (("a", a), ("b", b)):
        if _checks.floating_tensor(name, vector, least_dims=1).shape != x.shape[-1:]:
            raise ValueError(
                f"{name} must have shape ({x.shape[-1]},), got {tuple(vector.shape)}"
            )
    _checks.finite("frequency", frequency)
    compute = _checks.at_least_float32(x.dtype, a.dtype, b.dtype)
    rounding = max(
        torch.finfo(a.dtype).eps,
        torch.finfo(b.dtype).eps,
        a.shape[0] * torch.finfo(torch.float64).eps,
    )
    one, other = _with_float64(a), _with_float64(b)
    u = one / one.norm()
    across = (
        other - (u * other).sum() * u
    )  # what of b is at right angles to a: s = |a| |across|, without cancellation
    if values_known(across) and not across.norm() > rounding * other.norm():
        raise ValueError(
            "a and b must span a plane, but as far as their dtype can tell they are "
            "parallel or zero"
        )
    angle = (frequency * one.norm() * across.norm())[None]  # ω s
    cos, sin = (
        _over_heads(table) for table in cos_sin(positions, angle, dtype=compute)
    )  # (…, T, 1)
    u, v = (
        vector.to(compute).to(x.device) for vector in (u, across / across.norm())
    )  # L = s (u vᵀ − v uᵀ)
    once = _plane(x.to(compute), u, v)  # L x / s
    return (x.to(compute) + sin * once + (1 - cos) * _plane(once, u, v)).to(x.dtype)


def tapa(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    fraction: float = 0.5,
    power: float = 0.1,
) -> Tensor:
    """Token-aware phase attention: some channels say how much, the others at which phase, and distance turns the phase.

    Equation: s_mn = (q_Aᵀ k_A / √(θd)) cos(2π |m − n|^α q_Pᵀ k_P / √((1 − θ)d))
        (wang2025t eq. 12)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, Tk)

    The place `scores` of a scheme with `scale=1.0`: the equation has its own scale. A
    is the first θd channels.

    Args:
        q: queries.
        k: keys.
        q_positions: m, (Tq,) or (B, Tq).
        k_positions: n.
        fraction: θ, with θd a whole number between 0 and d.
        power: α, above 0.

    Raises:
        TypeError, ValueError: θd is not whole, or leaves no channel on one side; α not
            above 0; q and k of another batch, or number of heads or tokens.

    Source: wang2025t
    Chapter: 22
    """
    width = _tokens_of_heads("q", q, q_positions).shape[-1]
    _tokens_of_heads("k", k, k_positions, width=width)
    _checks.equal_heads(q, k)
    amplitude = round(_checks.positive("fraction", fraction) * width)
    if not (0 < amplitude < width and math.isclose(amplitude, fraction * width)):
        raise ValueError(
            f"fraction must split the {width} channels in two whole parts, got "
            f"{fraction}"
        )
    compute = _checks.at_least_float32(q.dtype, k.dtype)
    q, k = q.to(compute), k.to(compute)
    size = q[..., :amplitude] @ k[..., :amplitude].mT * amplitude**-0.5
    turn = q[..., amplitude:] @ k[..., amplitude:].mT * (width - amplitude) ** -0.5
    distance = relative(q_positions, k_positions).abs().to(compute) ** _checks.positive(
        "power", power
    )
    scores: Tensor = size * (2 * math.pi * distance * turn).cos()
    return scores


def _with_float64(x: Tensor) -> Tensor:
    """x in float64, on a device that has it: Apple's mps has none."""
    return (x.cpu() if x.device.type == "mps" else x).to(torch.float64)


def _tokens_of_heads(
    name: str, x: Tensor, positions: Tensor, *, width: int | None = None
) -> Tensor:
    """`x` if it is (B, H, T, d) with one token for each position."""
    shape = tuple(
        _checks.attention_positions(
            "positions" if name == "x" else f"{name}_positions", positions
        ).shape
    )
    if _checks.floating_tensor(name, x, least_dims=4).dim() != 4 or x.shape[-1] != (
        width or x.shape[-1]
    ):
        raise ValueError(
            f"{name} must have shape (B, H, T, {width or 'd'}), got {tuple(x.shape)}"
        )
    if shape not in ((x.shape[2],), (x.shape[0], x.shape[2])):
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, so its positions must be (T,) or (B, "
            f"T); got {shape}"
        )
    return x


def _over_heads(table: Tensor) -> Tensor:
    return (
        table[:, None] if table.dim() == 3 else table
    )  # (B, T, n) → (B, 1, T, n); (T, n) as it is


def _per_head(name: str, tables: Tensor, x: Tensor) -> Tensor:
    """Tables of the key heads (..., Hk, T, n) for the heads of x: grouped queries share their key's."""
    heads = tables.shape[-3]
    if x.shape[1] % heads:
        raise ValueError(
            f"{name} must have a multiple of {heads} heads, got {x.shape[1]}"
        )
    return tables.repeat_interleave(x.shape[1] // heads, -3)


def _block(head_dim: int, block: int | None) -> int:
    size = _checks.whole_number("block", head_dim if block is None else block, least=1)
    if _checks.whole_number("head_dim", head_dim, least=1) % size:
        raise ValueError(f"block must divide head_dim = {head_dim}, got {size}")
    return size


def _exponential_rotation(
    name: str, x: Tensor, positions_name: str, positions: Tensor, skew: Tensor
) -> Tensor:
    """exp(Σ_a p_a A_a) x, block by block, for skew matrices A (1 or H, axes, blocks, b, b) in float64.

    The exponent holds the angles, so it stays in float64 to the end; autocast leaves
    float64 alone.
    """
    axes, blocks, size = skew.shape[1:4]
    if axes == 1:
        coordinates = _checks.attention_positions(positions_name, positions)[..., None]
    else:
        coordinates = _checks.position_tensor(positions_name, positions)
    if coordinates.dim() not in (2, 3) or coordinates.shape[-1] != axes:
        raise ValueError(
            f"{positions_name} must have shape (T, {axes}) or (B, T, {axes}), got "
            f"{tuple(positions.shape)}"
        )
    if (
        _checks.floating_tensor(name, x, least_dims=4).dim() != 4
        or x.shape[-1] != blocks * size
    ):
        raise ValueError(
            f"{name} must have shape (B, H, T, {blocks * size}), got {tuple(x.shape)}"
        )
    exponent = torch.einsum("...ta,hanij->...htnij", _with_float64(coordinates), skew)
    if exponent.shape[-4] != x.shape[2]:
        raise ValueError(
            f"{positions_name} must name {x.shape[2]} tokens, got {exponent.shape[-4]}"
        )
    if x.shape[1] % skew.shape[0]:
        raise ValueError(
            f"{name} must have a multiple of {skew.shape[0]} heads, got {x.shape[1]}"
        )
    if skew.shape[0] > 1:
        exponent = exponent.repeat_interleave(x.shape[1] // skew.shape[0], -5)
    parts = _with_float64(x).reshape(*x.shape[:3], blocks, size, 1)
    return (
        (torch.matrix_exp(exponent) @ parts).reshape(x.shape).to(x.dtype).to(x.device)
    )


def _plane(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """(a bᵀ − b aᵀ) x for vectors x (..., d): sums, not products of matrices, which autocast makes in 16 bits."""
    return (x * b).sum(-1, keepdim=True) * a - (x * a).sum(-1, keepdim=True) * b
