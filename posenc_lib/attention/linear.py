"""Attention in linear time: kernels in place of the softmax, and positions for them.

The functions take features, φ(q) and φ(k), so that positions can enter before the
feature map (a sinusoid added to the tokens, `SineSPE`), inside it
(`cosformer_features`) or after it (a rotation of the numerator).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from posenc_lib import _checks
from posenc_lib._torch import values_known
from posenc_lib.attention._operands import feature_operands, quotient
from posenc_lib.positions import relative

Transform = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def elu_features(x: Tensor) -> Tensor:
    """The feature map of linear transformers: positive, smooth, as wide as its input.

    Equation: φ(x) = elu(x) + 1 = x + 1 for x > 0, else exp(x)      (katharopoulos2020)
    Shapes: (..., d) → (..., d)

    Computed by its second form: the first rounds at the size of 1, and in float32 is 0
    from x = −17 on.

    Args:
        x: queries or keys.

    Raises:
        TypeError, ValueError: x is not a floating-point tensor with at least one
            dimension.

    Source: katharopoulos2020
    Checked:
        idiap/fast-transformers@47187323149d:fast_transformers/feature_maps/base.py:elu_feature_map
    Chapter: 08
    """
    _checks.floating_tensor("x", x, least_dims=1)
    content = x.to(_checks.at_least_float32(x.dtype))
    features = torch.where(content > 0, content + 1, content.clamp(max=0).exp())
    return features.to(x.dtype)


def orthogonal_projection(
    features: int, dim: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """Random directions for `positive_features`: orthogonal in blocks of d.

    Equation: ω_1 … ω_M ~ N(0, I_d), made orthogonal in blocks of d, lengths drawn
        separately      (choromanski2021)
    Shapes: → (M, d), float64, on the CPU

    Each direction has the length of a Gaussian vector. The released code keeps the
    signs of its QR decomposition, whose blocks are not uniformly distributed.

    Args:
        features: M, at least 1.
        dim: d, at least 1.
        generator: of the draw, on the CPU.

    Raises:
        TypeError, ValueError: `features` or `dim` is not an integer ≥ 1.

    Source: choromanski2021
    Checked:
        google-research/google-research@0c1bbe5fc971:performer/fast_attention/jax/fast_attention.py:GaussianOrthogonalRandomMatrix.get_2d_array
    Chapter: 08
    """
    _checks.whole_number("features", features, least=1)
    _checks.whole_number("dim", dim, least=1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(
            *shape, generator=generator, dtype=torch.float64, device="cpu"
        )

    def orthogonal() -> Tensor:
        # LAPACK's Q never has a positive diagonal, which would bias features that are
        # not even. With the signs of R's diagonal all orthogonal matrices are equally
        # likely.
        q, r = torch.linalg.qr(normal(dim, dim))
        return torch.mul(q, r.diagonal().sign())

    blocks = [orthogonal() for _ in range(-(-features // dim))]
    lengths = normal(features, dim).norm(dim=-1, keepdim=True)
    return torch.mul(torch.cat(blocks)[:features], lengths)


def positive_features(x: Tensor, projection: Tensor) -> Tensor:
    """FAVOR+: random features whose dot products are on average exp(qᵀk).

    Equation: φ(x) = exp(Ω x − ‖x‖²/2) / √M,  E[φ(q)ᵀ φ(k)] = exp(qᵀ k)
        (choromanski2021 lemma 1)
    Shapes: x (..., d), projection (M, d) → (..., M)

    For exp(qᵀk/√d) give q d^(−1/4) and k d^(−1/4). The variance grows exponentially
    with ‖q + k‖²: luo2021 normalises both to length 1. The released code subtracts a
    maximum from the exponents and adds 10⁻⁶ to every feature; here neither is done, so
    features don't depend on their neighbours. They get small, since the exponent is at
    most ‖ω‖²/2 and falls with ‖x‖²: in float32 it is below −88, and the feature 0, in
    most directions once ‖x‖² passes 176, and a query without any feature finds no key.

    Args:
        x: queries or keys.
        projection: Ω, from `orthogonal_projection`.

    Raises:
        TypeError, ValueError: x is not a floating-point tensor; Ω has another width.

    Source: choromanski2021, luo2021
    Checked:
        google-research/google-research@0c1bbe5fc971:performer/fast_attention/jax/fast_attention.py:nonnegative_softmax_kernel_feature_creator
    Chapter: 08
    """
    _checks.floating_tensor("x", x, least_dims=1)
    _checks.floating_tensor("projection", projection, least_dims=2)
    if projection.shape[1:] != x.shape[-1:]:
        raise ValueError(
            f"projection must have shape (M, {x.shape[-1]}), got "
            f"{tuple(projection.shape)}"
        )
    compute = _checks.at_least_float32(x.dtype)
    content, omega = x.to(compute), projection.to(compute).to(x.device)
    exponent = content @ omega.mT - content.square().sum(-1, keepdim=True) / 2
    return (exponent.exp() / math.sqrt(omega.shape[0])).to(x.dtype)


def cosformer_features(x: Tensor, positions: Tensor, *, length: int) -> Tensor:
    """cosFormer: features that rotate by a quarter turn over the whole sequence.

    Equation: φ(x_m) = [ReLU(x) cos(πm/2M) | ReLU(x) sin(πm/2M)],
        φ(q_m)ᵀ φ(k_n) = ReLU(q)ᵀ ReLU(k) cos(π(m − n)/2M)      (qin2022)
    Shapes: x (B, H, T, d), positions (T,) or (B, T) → (B, H, T, 2d)

    Weights fall with distance and stay positive. These features carry the position in
    numerator and denominator alike: no transform is needed. The released code puts the
    sines first.

    Args:
        x: queries or keys.
        positions: 0 … M, also of keys in a cache.
        length: M, the longest distance, fixed for all queries and keys. The released
            code takes the current length: every new token changes all old keys.

    Raises:
        TypeError, ValueError: `length` is not an integer ≥ 1; shapes that don't fit; on
            plain CPU tensors a position outside 0 … M, whose features would be
            negative.

    Source: qin2022
    Checked: OpenNLPLab/cosFormer@17e3d7c07406:cosformer.py:CosformerAttention.forward
    Chapter: 08
    """
    _checks.whole_number("length", length, least=1)
    if _checks.floating_tensor("x", x, least_dims=4).dim() != 4:
        raise ValueError(f"x must have shape (B, H, T, d), got {tuple(x.shape)}")
    _checks.token_positions("positions", positions, batch=x.shape[0], length=x.shape[2])
    if values_known(positions) and bool(((positions < 0) | (positions > length)).any()):
        outside = positions[(positions < 0) | (positions > length)][0].item()
        raise ValueError(f"positions must lie in 0 … length = {length}, got {outside}")
    compute = _checks.at_least_float32(x.dtype)
    angle = positions.to(compute) * (math.pi / 2 / length)
    # (T, 1) or (B, 1, T, 1)
    angle = angle[:, None] if angle.dim() == 1 else angle[:, None, :, None]
    content = x.to(compute).relu()
    cos = angle.cos().clamp(min=0)  # at m = M it is 0, which rounding makes −4e-8
    return torch.cat((content * cos, content * angle.sin()), -1).to(x.dtype)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_positions: Tensor,
    k_positions: Tensor,
    transform: Transform | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Linear attention over all keys, which are summed once for all queries.

    Equation: o_m = Σ_n (R_m φ(q_m))ᵀ (R_n φ(k_n)) v_n / Σ_n φ(q_m)ᵀ φ(k_n)
        (su2021 eq. 19; R = 1 is katharopoulos2020)
    Shapes: q (B, H, Tq, f), k (B, Hk, Tk, f), v (B, Hk, Tk, d_v) → (B, H, Tq, d_v),
        in v's dtype

    Only the numerator is rotated: rotated features are no longer positive, and their
    sum can be zero or negative. So the weights may be negative, and they don't sum to
    1. Positions added to the tokens need no transform.

    Args:
        q: φ(q), no entry below 0.
        k: φ(k), no entry below 0; Hk divides H.
        v: values.
        q_positions: (Tq,) or (B, Tq).
        k_positions: (Tk,) or (B, Tk).
        transform: of the numerator's features, such as
            `RoPE(inverse_frequencies(f)).transform`.
        mask: (B, Tk), True for a token, False for padding. A query without any key gets
            zeros.

    Raises:
        TypeError, ValueError: shapes that don't fit. On plain CPU tensors: a negative
            feature.

    Source: su2021, katharopoulos2020
    Checked: derived, unchecked
    Chapter: 08
    """
    q, k, v, dtype = feature_operands(q, k, v, mask)
    _checks.token_positions(
        "q_positions", q_positions, batch=q.shape[0], length=q.shape[2]
    )
    _checks.token_positions(
        "k_positions", k_positions, batch=k.shape[0], length=k.shape[2]
    )
    rotated_q, rotated_k = _transformed(transform, q, k, q_positions, k_positions)
    return quotient(rotated_q @ (rotated_k.mT @ v), q @ k.sum(2)[..., None]).to(dtype)


class LinearState(NamedTuple):
    """The state of causal linear attention, which takes the place of a cache.

    Equation: S = Σ_n R_n φ(k_n) v_nᵀ,  z = Σ_n φ(k_n)
    Shapes: numerator (B, H, f, d_v), denominator (B, H, f)

    Args:
        numerator: S. Its keys are rotated by their own positions, so nothing in it
            changes with the next query.
        denominator: z.

    Source: katharopoulos2020
    Chapter: 08
    """

    numerator: Tensor
    denominator: Tensor


def causal_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    positions: Tensor,
    transform: Transform | None = None,
    mask: Tensor | None = None,
    state: LinearState | None = None,
) -> tuple[Tensor, LinearState]:
    """Causal linear attention by running sums.

    Equation: o_m = (R_m φ(q_m))ᵀ S_m / φ(q_m)ᵀ z_m,
        S_m = S_{m−1} + R_m φ(k_m) v_mᵀ,  z_m = z_{m−1} + φ(k_m)
        (katharopoulos2020; su2021 eq. 19)
    Shapes: q (B, H, T, f), k (B, Hk, T, f), v (B, Hk, T, d_v) → (B, H, T, d_v) and the
        state after the last token

    A recurrent step is the same function on one token. A prompt may be cut into pieces
    anywhere: give each call the state that the last one returned. Tokens are summed in
    the order of the axis, whatever their positions, so cut a packed row at its
    segments. Holds S for every token of one call, T·f·d_v numbers a head; short pieces
    need less.

    Args:
        q, k, v, transform: as in `linear_attention`.
        positions: (T,) or (B, T), of queries and keys.
        mask: (B, T), True for a token, False for padding.
        state: after the tokens before these; none at the beginning.

    Raises:
        TypeError, ValueError: as `linear_attention`.

    Source: katharopoulos2020, su2021
    Checked: derived, unchecked
    Chapter: 08
    """
    q, k, v, dtype = feature_operands(q, k, v, mask)
    _checks.token_positions("positions", positions, batch=q.shape[0], length=q.shape[2])
    _checks.token_positions("positions", positions, batch=k.shape[0], length=k.shape[2])
    rotated_q, rotated_k = _transformed(transform, q, k, positions, positions)
    # The products are not named: they would be kept beside their sums.
    numerator = (rotated_k[..., :, None] * v[..., None, :]).cumsum(
        2
    )  # (B, H, T, f, d_v)
    denominator = k.cumsum(2)  # (B, H, T, f)
    if state is not None:
        _check_state(state, LinearState(numerator[:, :, 0], denominator[:, :, 0]))
        numerator = numerator + state.numerator[:, :, None]
        denominator = denominator + state.denominator[:, :, None]
    out = quotient(
        (rotated_q[..., None, :] @ numerator).squeeze(-2),
        (q * denominator).sum(-1, keepdim=True),
    )
    return out.to(dtype), LinearState(numerator[:, :, -1], denominator[:, :, -1])


def retention_decays(heads: int) -> Tensor:
    """RetNet's decays: each head forgets half as fast as the one before.

    Equation: γ_h = 1 − 2^(−5−h),  h = 0 … H−1      (sun2023r)
    Shapes: → (H,), float64, on the CPU

    Args:
        heads: H, at least 1.

    Raises:
        TypeError, ValueError: `heads` is not an integer ≥ 1.

    Source: sun2023r
    Checked:
        microsoft/torchscale@05a9628309ae:torchscale/architecture/retnet.py:RetNetRelPos.__init__
    Chapter: 18
    """
    _checks.whole_number("heads", heads, least=1)
    return 1 - torch.exp2(-5 - torch.arange(heads, dtype=torch.float64, device="cpu"))


def retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_positions: Tensor,
    k_positions: Tensor,
    decays: Tensor,
    transform: Transform | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Retention, the quadratic form: weights decay exponentially, without a softmax.

    Equation: o_m = Σ_{n≤m} γ^(m−n) (R_m q_m)ᵀ (R_n k_n) v_n / √d      (sun2023r)
    Shapes: q (B, H, Tq, d), k (B, Hk, Tk, d), v (B, Hk, Tk, d_v), decays (H,)
        → (B, H, Tq, d_v), in v's dtype

    γ^(m−n) is exp of ALiBi's bias with slope −log γ. RetNet rotates query and key, in
    the released code by 10000^(−i/(d/2−1)) m, which are not RoPE's angles, and
    normalises each head of the output, which undoes any factor that a row has in
    common. Both are left to the caller.

    Args:
        q: queries, projected; no feature map.
        k: keys, projected.
        v: values.
        q_positions: (Tq,) or (B, Tq).
        k_positions: (Tk,) or (B, Tk).
        decays: γ of each head, above 0 and at most 1.
        transform: rotation of query and key, such as `RoPE(...).transform`.
        mask: (B, Tk), True for a token, False for padding.

    Raises:
        TypeError, ValueError: shapes that don't fit. On plain CPU tensors: a decay
            outside (0, 1].

    Source: sun2023r
    Checked:
        microsoft/torchscale@05a9628309ae:torchscale/component/multiscale_retention.py:MultiScaleRetention.parallel_forward
    Chapter: 18
    """
    q, k, v, dtype = feature_operands(q, k, v, mask, positive=False)
    _checks.token_positions(
        "q_positions", q_positions, batch=q.shape[0], length=q.shape[2]
    )
    _checks.token_positions(
        "k_positions", k_positions, batch=k.shape[0], length=k.shape[2]
    )
    rate = _log_decays(decays, q)[:, None, None]  # (H, 1, 1)
    rotated_q, rotated_k = _transformed(transform, q, k, q_positions, k_positions)
    r = relative(q_positions, k_positions)
    decay = (-rate * r.clamp(max=0).to(q.dtype)).exp()  # (H, Tq, Tk) or (B, H, Tq, Tk)
    decay = decay * (r <= 0)
    weights = rotated_q @ rotated_k.mT * decay / math.sqrt(q.shape[-1])
    return (weights @ v).to(dtype)


class RetentionState(NamedTuple):
    """The state of recurrent retention.

    Equation: S_m = γ^(m−m′) S_{m′} + R_m k_m v_mᵀ, m′ the token before
    Shapes: memory (B, H, d, d_v), positions () or (B,)

    Args:
        memory: S after the last token.
        positions: of the last token.

    Source: sun2023r
    Chapter: 18
    """

    memory: Tensor
    positions: Tensor


def recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    positions: Tensor,
    decays: Tensor,
    transform: Transform | None = None,
    mask: Tensor | None = None,
    state: RetentionState | None = None,
) -> tuple[Tensor, RetentionState]:
    """Retention, the recurrent form: one matrix a head, which decays with every step.

    Equation: S_m = γ^(m−m′) S_{m′} + R_m k_m v_mᵀ,  o_m = (R_m q_m)ᵀ S_m / √d,
        m′ the token before      (sun2023r, where m − m′ = 1)
    Shapes: as `retention` with Tq = Tk = T → (B, H, T, d_v) and the state after the
        last token

    Args:
        q, k, v, decays, transform, mask: as in `retention`.
        positions: (T,) or (B, T), of queries and keys, which never go back.
        state: after the tokens before these; none at the beginning.

    Raises:
        TypeError, ValueError: as `retention`. On plain CPU tensors: positions that go
            back.

    Source: sun2023r
    Checked:
        microsoft/torchscale@05a9628309ae:torchscale/component/multiscale_retention.py:MultiScaleRetention.recurrent_forward
    Chapter: 18
    """
    q, k, v, dtype = feature_operands(q, k, v, mask, positive=False)
    _checks.token_positions("positions", positions, batch=q.shape[0], length=q.shape[2])
    _checks.token_positions("positions", positions, batch=k.shape[0], length=k.shape[2])
    positions = _checks.attention_positions("positions", positions)
    rate = _log_decays(decays, q)  # (H,)
    rotated_q, rotated_k = _transformed(transform, q, k, positions, positions)
    empty = RetentionState(
        q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]), positions[..., 0]
    )
    if state is not None:
        _check_state(state, empty)
    memory, last = empty if state is None else state
    outputs = []
    for t in range(q.shape[2]):
        gap = positions[..., t] - last  # () or (B,)
        if values_known(gap) and bool((gap < 0).any()):
            raise ValueError(
                "positions must never go back, or what was forgotten would grow again: "
                f"cut a packed row at its segments; got a step of {gap.min().item()}"
            )
        step = gap.to(q.dtype)[..., None, None, None]  # (1, 1, 1) or (B, 1, 1, 1)
        decay = (rate[:, None, None] * step).exp()
        memory = decay * memory + rotated_k[:, :, t, :, None] * v[:, :, t, None, :]
        outputs.append(rotated_q[:, :, t, None, :] @ memory)
        last = positions[..., t]
    out = torch.cat(outputs, 2) / math.sqrt(q.shape[-1])
    return out.to(dtype), RetentionState(memory, last)


def _transformed(
    transform: Transform | None,
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
) -> tuple[Tensor, Tensor]:
    if transform is None:
        return q, k
    _checks.callable_("transform", transform)
    return transform(q, k, q_positions, k_positions)


def _check_state(
    state: LinearState | RetentionState, like: LinearState | RetentionState
) -> None:
    """Whether the state has the type and the shapes of another one.

    Positions may have another shape: a batch may share them.
    """
    if not isinstance(state, type(like)):
        raise TypeError(f"state must be a {type(like).__name__} or None, got {state!r}")
    for name, value, expected in zip(like._fields, state, like, strict=True):
        if value.shape != expected.shape and name != "positions":
            raise ValueError(
                f"state.{name} must have shape {tuple(expected.shape)}, got "
                f"{tuple(value.shape)}"
            )


def _log_decays(decays: Tensor, q: Tensor) -> Tensor:
    """log γ of each head (H,), in q's dtype."""
    _checks.floating_tensor("decays", decays, least_dims=1)
    if decays.shape != (q.shape[1],):
        raise ValueError(
            f"decays must have shape (H,) = ({q.shape[1]},), got {tuple(decays.shape)}"
        )
    if values_known(decays) and not bool(((decays > 0) & (decays <= 1)).all()):
        outside = decays[~((decays > 0) & (decays <= 1))][0].item()
        raise ValueError(f"decays must be above 0 and at most 1, got {outside}")
    # The logarithm is taken in the decays' own dtype: near 1 a γ that is rounded to
    # float32 has lost the digits of log γ.
    return decays.log().to(q.dtype).to(q.device)
