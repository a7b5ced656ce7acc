"""Variants of the rotation: other magnitudes, planes and angles, rotated values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import linear, normal, uniform
from posenc_lib._torch import values_known
from posenc_lib.frequencies import cos_sin, inverse_frequencies
from posenc_lib.positions import relative
from posenc_lib.rotary._apply import apply_rotary_per_head
from posenc_lib.rotary.pairs import LAYOUTS, Layout
from posenc_lib.rotary.rope import RoPE, Rotation, check_tokens, checked_rope


@dataclass(frozen=True, eq=False)
class XPos:
    """xPos: RoPE whose pairs also fade with distance, the fast pairs most.

    Equation: q → ζ_i^((m−c)/S) R_m q,  k → ζ_i^(−(n−c)/S) R_n k on pair i, which gives
        its part of the score the factor ζ_i^((m−n)/S);  ζ_i = (2i/d + γ)/(1 + γ)
        (sun2023x, pairs counted from 0; c as in the released code)
    Shapes: as `RoPE.transform`

    For causal attention only: a key in the future is amplified. The centre c cancels in
    the score as long as queries and keys, cached ones too, share it. It keeps the
    powers in range: float32 overflows at |m − c| ≈ 70 S for γ = 0.4.

    Args:
        frequencies: (r/2,) ω_i, as in `RoPE`.
        layout: as in `RoPE`; both channels of a pair fade alike.
        gamma: γ, above 0.
        scale_base: S, the positions over which pair i fades by ζ_i.
        centre: c, a position.

    Raises:
        TypeError, ValueError: as `RoPE`; γ or S not above 0; a centre that is not a
            finite number.

    Source: sun2023x
    Checked: golden; parity
    Chapter: 11
    """

    frequencies: Tensor
    layout: Layout = "interleaved"
    gamma: float = 0.4
    scale_base: float = 512.0
    centre: float = 0.0

    def __post_init__(self) -> None:
        RoPE(self.frequencies, layout=self.layout)
        _checks.positive("gamma", self.gamma)
        _checks.positive("scale_base", self.scale_base)
        _checks.finite("centre", self.centre)

    def scales(self, positions: Tensor) -> Tensor:
        """ζ_i^((p−c)/S) in float64: (T,) or (B, T) → (..., T, r/2)."""
        p = _checks.in_float64(_checks.attention_positions("positions", positions))
        pairs = self.frequencies.shape[0]
        index = torch.arange(pairs, dtype=torch.float64, device=p.device)
        zeta = (index / pairs + self.gamma) / (1 + self.gamma)
        return zeta ** ((p[..., None] - self.centre) / self.scale_base)

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each rotated and scaled by its own positions."""
        scaled_q = self._scaled("q", q, q_positions, 1)
        return scaled_q, self._scaled("k", k, k_positions, -1)

    def _scaled(self, name: str, x: Tensor, positions: Tensor, power: int) -> Tensor:
        _checks.floating_tensor(name, x, least_dims=2)
        _checks.attention_positions(f"{name}_positions", positions)
        scales = self.scales(positions) ** power
        p, dtype = _checks.in_float64(positions), _checks.at_least_float32(x.dtype)
        tables = cos_sin(p, self.frequencies, dtype=torch.float64)
        cos, sin = ((table * scales).to(dtype).to(positions.device) for table in tables)
        rotation = Rotation(cos, sin, self.layout)
        check_tokens(x, rotation.cos, name, f"{name}_positions")
        return rotation(x)


def rotated_values(
    weights: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor, *, rope: RoPE
) -> Tensor:
    """RoPER: values are rotated as well, and their sum is rotated back.

    Equation: o_m = R_m⁻¹ Σ_n α_mn R_n v_n = Σ_n α_mn R_{n−m} v_n      (harik2023)
    Shapes: weights (B, H, Tq, Tk), v (B, H, Tk, d_v) → (B, H, Tq, d_v)

    So the output depends on the distance of each value. The field `values` of a scheme:
    `values=partial(rotated_values, rope=rope)`. A port based on the author's code
    rotates half of the value channels by default.

    Args:
        weights: α, as `attention` computes them.
        v: values, one a head.
        q_positions: (Tq,) or (B, Tq).
        k_positions: (Tk,) or (B, Tk).
        rope: the rotation, of at most d_v channels.

    Raises:
        TypeError, ValueError: weights and v of another batch, or number of heads or
            keys; positions of another shape; v with fewer channels than `rope` rotates.

    Source: harik2023
    Checked:
        labmlai/annotated_deep_learning_paper_implementations@09d09379c216:labml_nn/transformers/rope/value_pe/__init__.py:RotaryValuePEMultiHeadAttention.forward
    Chapter: 11
    """
    for name, x in (("weights", weights), ("v", v)):
        _checks.heads_tensor(name, x)
    if weights.shape[:2] != v.shape[:2] or weights.shape[3] != v.shape[2]:
        raise ValueError(
            "weights and v must agree in batch, heads and keys "
            "(`attention` repeats grouped values); "
            f"got weights {tuple(weights.shape)} and v {tuple(v.shape)}"
        )
    batch, _, q_length, k_length = weights.shape
    _checks.token_positions("q_positions", q_positions, batch=batch, length=q_length)
    _checks.token_positions("k_positions", k_positions, batch=batch, length=k_length)
    checked_rope("rope", rope)
    dtype = _checks.at_least_float32(weights.dtype, v.dtype)
    rotation = rope(k_positions, dtype)
    check_tokens(v, rotation.cos, "v", "k_positions")
    summed = weights.to(dtype) @ rotation(v.to(dtype))
    return rope(q_positions, dtype).inverse()(summed).to(v.dtype)


class PoPE(nn.Module):
    """PoPE: content alone sets a channel's magnitude, position alone its phase.

    Equation: s_mn = Σ_c μ(q_c) μ(k_c) cos((n − m) ω_c + δ_c),  μ(x) = ln(1 + eˣ),
        ω_c = θ^(−c/d),  −2π ≤ δ_c ≤ 0
        (gopalakrishnan2025, as implemented in x-transformers)
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d) → (B, H, Tq, 2d), (B, Hk, Tk, 2d): d
        cosines, then d sines

    Every channel has a frequency, so there are d of them rather than d/2, and the
    result is twice as wide. The score scale stays that of the d channels: set the
    scheme's `scale` to 1/√d.

    Args:
        head_dim: d, at least 1, odd ones too.
        base: θ.
        heads: Hk, heads of the keys: δ is learned for each, and begins at 0.

    Raises:
        TypeError, ValueError: sizes below 1; when called, q or k of another width or
            number of heads.

    Source: gopalakrishnan2025
    Checked: golden; parity
    Chapter: 22
    """

    def __init__(self, head_dim: int, base: float = 10000.0, *, heads: int) -> None:
        super().__init__()
        _checks.sizes(head_dim=head_dim, heads=heads)
        self.frequencies = inverse_frequencies(2 * head_dim, base)
        self.phase = nn.Parameter(torch.zeros(heads, head_dim))

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key in polar form; the key's phases are ahead by δ."""
        heads, head_dim = self.phase.shape
        _tokens_of_heads("q", q, q_positions, width=head_dim)
        _tokens_of_heads("k", k, k_positions, width=head_dim)
        if k.shape[1] != heads:
            raise ValueError(
                f"k must have {heads} heads, one for each row of the phases; "
                f"got {k.shape[1]}"
            )
        delta = self.phase.clamp(-2 * math.pi, 0)[:, None]  # (Hk, 1, d)
        return self._polar(q, q_positions, None), self._polar(k, k_positions, delta)

    def _polar(self, x: Tensor, positions: Tensor, delta: Tensor | None) -> Tensor:
        compute = _checks.at_least_float32(x.dtype, self.phase.dtype)
        tables = cos_sin(positions, self.frequencies, dtype=compute)
        cos, sin = (_over_heads(table) for table in tables)
        if delta is not None:  # the angles add up
            cos_delta, sin_delta = delta.to(compute).cos(), delta.to(compute).sin()
            cos, sin = (
                cos * cos_delta - sin * sin_delta,
                sin * cos_delta + cos * sin_delta,
            )
        magnitude = nn.functional.softplus(x.to(compute))
        return torch.cat((magnitude * cos, magnitude * sin), -1).to(x.dtype)


class LieRE(nn.Module):
    """LieRE: a learned rotation of many channels at once, for positions of any axes.

    Equation: q → R(p) q,  R(p) = exp(Σ_a p_a A_a),  A_a = U_a − U_aᵀ, U_a strictly
        upper triangular      (ostmeier2024)
    Shapes: q (B, H, T, d); positions (T,) or (B, T) for one axis, (T, axes) or
        (B, T, axes) for more → the same as q

    With one axis the score depends on n − m alone. With more it does not, unless the
    A_a commute, as in `ComRoPE`. The released code scales positions into 0 … 1.

    Args:
        head_dim: d.
        axes: coordinates of a position.
        block: channels of a block on the diagonal of A_a, a divisor of d; one block of
            d by default.
        generator: of the draw: entries of U_a are uniform in 0 … 2π.

    Raises:
        TypeError, ValueError: `block` does not divide `head_dim`; when called,
            positions of another number of axes.

    Source: ostmeier2024
    Checked:
        StanfordMIMI/LieRE@b27b41ba0d27:models/rope_vit.py:LierePositionEncoder.forward
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
        _checks.whole_number("axes", axes, least=1)
        size = _block_size(head_dim, block)
        self.upper = nn.Parameter(torch.empty(axes, head_dim // size, size, size))
        nn.init.uniform_(self.upper, 0, 2 * math.pi, generator=generator)

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each rotated by its own positions."""
        upper = _checks.in_float64(self.upper).triu(1)
        skew = (upper - upper.mT)[None]  # (1, axes, blocks, b, b): one for all heads
        rotated_q = _exponential_rotation("q", q, q_positions, skew)
        return rotated_q, _exponential_rotation("k", k, k_positions, skew)


class ComRoPE(nn.Module):
    """ComRoPE with linearly dependent angle matrices: LieRE whose axes commute.

    Equation: R(p) = exp(Σ_a p_a A_a),  A_a = c_a (F − Fᵀ) block by block: all A_a are
        multiples of one matrix      (yu2025)
    Shapes: as `LieRE`

    So scores are relative again. The released code has positions (i + ½)/N on an axis
    of N, the class token at ½.

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
    Checked:
        Longin-Yu/ComRoPE@7aeef083f8af:model.py:ComRoPELDAttention.get_exponent_matrix
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
        _checks.sizes(axes=axes, block=block, heads=heads)
        blocks = head_dim // _block_size(head_dim, block)
        draw = partial(normal, std=1.0, generator=generator)
        self.matrix = draw(heads, blocks, block, block)
        self.multiplier = draw(axes, blocks)

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each rotated by its own positions."""
        matrix = _checks.in_float64(self.matrix)
        multiplier = _checks.in_float64(self.multiplier)
        base = (matrix - matrix.mT)[:, None]  # (H, 1, blocks, b, b)
        skew = multiplier[:, :, None, None] * base  # (H, axes, blocks, b, b)
        rotated_q = _exponential_rotation("q", q, q_positions, skew)
        return rotated_q, _exponential_rotation("k", k, k_positions, skew)


class CayleySTRING(nn.Module):
    """Cayley-STRING: RoPE in a learned orthogonal basis.

    Equation: q → R_m P q,  k → R_n P k,  P = (I − S)(I + S)⁻¹,  S = U − Uᵀ
        (schenck2025 eq. 9–10)
    Shapes: as `transform`

    It is the most general exactly relative rotation. The paper's form P R_m Pᵀ has one
    more P, which cancels in every score. U begins at 0, where P = I and all is as
    `transform` makes it: our choice, since the paper's start is not available to us. We
    know of no code by the authors; a port has the same form and begins at a random
    orthogonal P.

    Args:
        head_dim: d, channels that P mixes; one P for all heads.
        transform: the rotation in the new basis, `RoPE(...).transform` or one of more
            axes.

    Raises:
        TypeError, ValueError: `head_dim` is below 1, `transform` is not callable; when
            called, vectors of other width.

    Source: schenck2025
    Checked:
        RationAI/lsp-detr@04848363c9db:lsp_detr/modeling/layers/cayley_string.py:CayleySTRING.forward
    Chapter: 17
    """

    def __init__(
        self, head_dim: int, transform: Callable[..., tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        _checks.callable_("transform", transform)
        _checks.whole_number("head_dim", head_dim, least=1)
        self.rotate = transform
        owner = getattr(transform, "__self__", None)
        if isinstance(owner, nn.Module):
            # The parameters of a MixedRoPE, say, are this module's too.
            self.learned = owner
        self.upper = nn.Parameter(torch.zeros(head_dim, head_dim))

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key in the learned basis, then rotated."""
        width = self.upper.shape[0]
        for name, x in (("q", q), ("k", k)):
            _checks.floating_tensor(name, x, least_dims=2)
            if x.shape[-1] != width:
                raise ValueError(
                    f"{name} must have {width} channels, got {x.shape[-1]}"
                )
        compute = _checks.at_least_float32(q.dtype, k.dtype, self.upper.dtype)
        upper = self.upper.to(compute).triu(1)
        skew = upper - upper.mT
        identity = torch.eye(width, dtype=compute, device=upper.device)
        # P: its two factors commute
        basis = torch.linalg.solve(identity + skew, identity - skew)
        in_basis = q.to(compute) @ basis.mT, k.to(compute) @ basis.mT
        rotated_q, rotated_k = self.rotate(*in_basis, q_positions, k_positions)
        return rotated_q.to(q.dtype), rotated_k.to(k.dtype)


class FoPE(nn.Module):
    """Fourier position embedding: each pair has a learned mixture of frequencies.

    Equation: cos(p ω_i) → Σ_j C_ji cos(p ω_j),  sin(p ω_i) → Σ_j S_ji sin(p ω_j) over
        the pairs with ω_j ≥ 2π/L; 1 and 0 for the others      (hua2024)
    Shapes: as `RoPE.transform`

    The tables are no longer a rotation, and the score depends on m and n, not on n − m
    alone. The authors' code has 1 for the sine of the others as well, keeps at most d/4
    pairs, and draws noise by Xavier's rule. Ours is vLLM's form.

    Args:
        dim: rotated channels d, even.
        base: θ.
        length: L, the trained length; slower pairs never made a full turn in it.
        heads: heads of the keys, each with its own C and S.
        layout: as in `RoPE`.
        gain: C and S begin at I plus normal noise of standard deviation gain/√K for K
            pairs kept.
        generator: of the draw.

    Raises:
        TypeError, ValueError: no pair is kept; then as `RoPE`; when called, heads that
            `heads` does not divide.

    Source: hua2024
    Checked:
        vllm-project/vllm@151a2c744af6:vllm/model_executor/layers/rotary_embedding/fope.py:FourierRotaryEmbedding._compute_cos_sin_cache;
        TsinghuaC3I/Fourier-Position-Embedding@bd94b20d82bf:olmo/model.py:FourierEmbedding.apply_rotary_pos_emb
    Chapter: 22
    """

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        *,
        length: int,
        heads: int,
        layout: Layout = "interleaved",
        gain: float = 0.3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.one_of("layout", layout, LAYOUTS)
        _checks.sizes(length=length, heads=heads)
        _checks.positive("gain", gain)
        frequencies = inverse_frequencies(dim, base)
        kept = int((frequencies >= 2 * math.pi / length).sum())
        if not kept:
            raise ValueError(
                "length must let at least one pair make a full turn (7 or more), "
                f"got {length}"
            )
        self.layout: Layout = layout
        self.pairs, self.frequencies = dim // 2, frequencies[:kept]
        std = gain * kept**-0.5
        noise = normal(2, heads, kept, kept, std=std, generator=generator).detach()
        self.cos_mixture, self.sin_mixture = (
            nn.Parameter(part + torch.eye(kept)) for part in noise
        )

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each with the mixed tables of its own positions."""
        return self._mixed("q", q, q_positions), self._mixed("k", k, k_positions)

    def _mixed(self, name: str, x: Tensor, positions: Tensor) -> Tensor:
        _tokens_of_heads(name, x, positions)
        compute = _checks.at_least_float32(x.dtype, self.cos_mixture.dtype)
        # Tables and mixtures are in float64, so the result is rounded once; autocast
        # leaves products in float64 alone.
        p = _checks.in_float64(positions)
        tables = cos_sin(p, self.frequencies, dtype=torch.float64)
        mixtures = (self.cos_mixture, self.sin_mixture)
        mixed = (
            (_over_heads(table) @ _checks.in_float64(mixture)).to(compute).to(x.device)
            for table, mixture in zip(tables, mixtures, strict=True)
        )
        # (H, T, kept) or (B, H, T, kept)
        cos, sin = (_per_head(name, table, x) for table in mixed)
        others = (0, self.pairs - self.frequencies.shape[0])
        cos = nn.functional.pad(cos, others, value=1.0)
        sin = nn.functional.pad(sin, others)
        return apply_rotary_per_head(name, x, cos, sin, self.layout)


class RePo(nn.Module):
    """RePo: each head reads a token's position for RoPE from its hidden state.

    Equation: z_h(x) = w_hᵀ (SiLU(W_g x) ⊙ W_c x);  q → R_{z(x_m)} q,  k → R_{z(x_n)} k
        (li2025r)
    Shapes: q, k (B, H, T, d) with hidden states q_x, k_x (B, T, D) → the same as q, k

    The token's index enters through the causal mask alone.

    Args:
        width: D of the model.
        heads: H, of queries and keys.
        rope: the rotation; positions may be any real numbers.
        latent: width of W_g x and W_c x; D/8 in the released code.
        generator: of the draws; weights are uniform in ±1/√(inputs), PyTorch's for
            linear layers, and normal in the released code.

    Raises:
        TypeError, ValueError: sizes below 1; when called, hidden states that are
            missing or of another shape.

    Source: li2025r
    Checked:
        SakanaAI/repo@1508a73ac730:OLMo/olmo/model.py:OLMoSequentialBlock.dynamic_position_encoding_swigluex_multihead
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
            latent = nn.functional.silu(x @ gate.mT) * (x @ content.mT)
            return (latent @ heads.mT).mT

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
        """Query and key, each rotated by the positions read from its hidden states."""
        rotated_q = self._rotated("q", q, q_positions, q_x)
        return rotated_q, self._rotated("k", k, k_positions, k_x)

    def _rotated(
        self, name: str, x: Tensor, positions: Tensor, hidden: Tensor | None
    ) -> Tensor:
        _tokens_of_heads(name, x, positions)
        compute = _checks.at_least_float32(x.dtype)
        states = _checks.hidden_states(
            f"{name}_x", hidden, self.gate.in_features, f"{name}_positions", positions
        )
        z = self.positions(states)  # (B, H, T)
        cos, sin = cos_sin(z, self.rope.frequencies, dtype=compute)  # (B, H, T, r/2)
        a = self.rope.attention_factor
        return apply_rotary_per_head(name, x, cos * a, sin * a, self.rope.layout)


def grape(
    x: Tensor, positions: Tensor, a: Tensor, b: Tensor, *, frequency: float = 1.0
) -> Tensor:
    """Multiplicative GRAPE: a rotation in the plane of any two vectors, from b to a.

    Equation: exp(n ω L) x = x + (sin nωs / s) L x + ((1 − cos nωs) / s²) L² x,
        L = a bᵀ − b aᵀ,  s² = |a|²|b|² − (aᵀb)²      (zhang2025g)
    Shapes: x (B, H, T, d), positions (T,) or (B, T), a and b (d,) → the same as x

    RoPE is d/2 such rotations in coordinate planes. Rotations in planes that are
    orthogonal to one another commute, and then scores stay relative. The formula is
    that of the authors' README; their code rotates coordinate planes only, by −nω.
    There, learned frequencies are `RoPE` with a tensor that requires a gradient.

    Args:
        x: queries or keys.
        positions: n, of the tokens of x.
        a: one vector of the plane, not parallel to b.
        b: the other.
        frequency: ω; the angle of one position is ω s.

    Raises:
        TypeError, ValueError: a or b is not a vector of d numbers; they are parallel; x
            or positions of another shape.

    Source: zhang2025g
    Checked: model-architectures/GRAPE@f5b539f35066:README.md:Multiplicative-GRAPE
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
    a, b = _checks.in_float64(a), _checks.in_float64(b)
    u = a / a.norm()
    # The part of b at right angles to a: s = |a| |across|, without cancellation.
    across = b - (u * b).sum() * u
    if values_known(across) and not across.norm() > rounding * b.norm():
        raise ValueError(
            "a and b must span a plane, but as far as their dtype can tell "
            "they are parallel or zero"
        )
    angle = (frequency * a.norm() * across.norm())[None]  # ω s
    tables = cos_sin(positions, angle, dtype=compute)
    cos, sin = (_over_heads(table) for table in tables)  # (…, T, 1)
    v = across / across.norm()  # L = s (u vᵀ − v uᵀ)
    u, v = u.to(compute).to(x.device), v.to(compute).to(x.device)
    in_plane = _plane(x.to(compute), u, v)  # L x / s
    twice = _plane(in_plane, u, v)  # L² x / s²
    return (x.to(compute) + sin * in_plane + (1 - cos) * twice).to(x.dtype)


def tapa(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    fraction: float = 0.5,
    power: float = 0.1,
) -> Tensor:
    """Token-aware phase attention: an amplitude, and a phase that grows with distance.

    Equation: s_mn = (q_Aᵀ k_A / √(θd)) cos(2π |m − n|^α q_Pᵀ k_P / √((1 − θ)d))
        (wang2025t eq. 12)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, Tk)

    The field `scores` of a scheme with `scale=1.0`: the equation has its own scale. A
    is the first θd channels, P the others. The released code has no 2π in the phase.

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
    Checked:
        AIMRelease/tapa-attention@25acd8dde7a8:reference_naive.py:naive_tapa_attention
    Chapter: 22
    """
    width = _tokens_of_heads("q", q, q_positions).shape[-1]
    _tokens_of_heads("k", k, k_positions, width=width)
    _checks.equal_heads(q, k)
    _checks.positive("fraction", fraction)
    _checks.positive("power", power)
    split = round(fraction * width)
    if not (0 < split < width and math.isclose(split, fraction * width)):
        raise ValueError(
            f"fraction must split the {width} channels in two whole parts, "
            f"got {fraction}"
        )
    compute = _checks.at_least_float32(q.dtype, k.dtype)
    q, k = q.to(compute), k.to(compute)
    amplitude = q[..., :split] @ k[..., :split].mT * split**-0.5
    phase = q[..., split:] @ k[..., split:].mT * (width - split) ** -0.5
    distance = relative(q_positions, k_positions).abs().to(compute) ** power
    scores: Tensor = amplitude * (2 * math.pi * distance * phase).cos()
    return scores


def _tokens_of_heads(
    name: str, x: Tensor, positions: Tensor, *, width: int | None = None
) -> Tensor:
    """`x` if it is (B, H, T, d) with one token for each position."""
    positions_name = "positions" if name == "x" else f"{name}_positions"
    shape = tuple(_checks.attention_positions(positions_name, positions).shape)
    _checks.floating_tensor(name, x, least_dims=4)
    if x.dim() != 4 or width not in (None, x.shape[-1]):
        raise ValueError(
            f"{name} must have shape (B, H, T, {width or 'd'}), got {tuple(x.shape)}"
        )
    length = x.shape[2]
    if shape not in ((length,), (1, length), (x.shape[0], length)):
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, so its positions must be "
            f"(T,) or (B, T); got {shape}"
        )
    return x


def _over_heads(table: Tensor) -> Tensor:
    """(B, T, n) → (B, 1, T, n); (T, n) as it is."""
    return table[:, None] if table.dim() == 3 else table


def _per_head(name: str, tables: Tensor, x: Tensor) -> Tensor:
    """Tables of the key heads (..., Hk, T, n) for the heads of x.

    Grouped queries share the table of their key.
    """
    heads = tables.shape[-3]
    if x.shape[1] % heads:
        raise ValueError(
            f"{name} must have a multiple of {heads} heads, got {x.shape[1]}"
        )
    return tables.repeat_interleave(x.shape[1] // heads, -3)


def _block_size(head_dim: int, block: int | None) -> int:
    size = head_dim if block is None else block
    _checks.sizes(block=size, head_dim=head_dim)
    if head_dim % size:
        raise ValueError(f"block must divide head_dim = {head_dim}, got {size}")
    return size


def _exponential_rotation(
    name: str, x: Tensor, positions: Tensor, skew: Tensor
) -> Tensor:
    """exp(Σ_a p_a A_a) x, block by block, for skew A (1 or H, axes, blocks, b, b).

    The exponent holds the angles, so it stays in float64 to the end; autocast leaves
    float64 alone.
    """
    heads, axes, blocks, size = skew.shape[:4]
    positions_name = f"{name}_positions"
    if axes == 1:
        p = _checks.attention_positions(positions_name, positions)[..., None]
    else:
        p = _checks.coordinates(positions_name, positions, axes=axes, batched=True)
    _checks.floating_tensor(name, x, least_dims=4)
    if x.dim() != 4 or x.shape[-1] != blocks * size:
        raise ValueError(
            f"{name} must have shape (B, H, T, {blocks * size}), got {tuple(x.shape)}"
        )
    # t tokens, a axes, h heads, n blocks of i × j channels
    exponent = torch.einsum("...ta,hanij->...htnij", _checks.in_float64(p), skew)
    if exponent.shape[-4] != x.shape[2]:
        raise ValueError(
            f"{positions_name} must name {x.shape[2]} tokens, got {exponent.shape[-4]}"
        )
    if x.shape[1] % heads:
        raise ValueError(
            f"{name} must have a multiple of {heads} heads, got {x.shape[1]}"
        )
    if heads > 1:
        exponent = exponent.repeat_interleave(x.shape[1] // heads, -5)
    blocks_of_x = _checks.in_float64(x).reshape(*x.shape[:3], blocks, size, 1)
    rotated = torch.matrix_exp(exponent) @ blocks_of_x
    return rotated.reshape(x.shape).to(x.dtype).to(x.device)


def _plane(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """(a bᵀ − b aᵀ) x for vectors x (..., d).

    Sums, not matrix products, which autocast makes in 16 bits.
    """
    return (x * b).sum(-1, keepdim=True) * a - (x * a).sum(-1, keepdim=True) * b
