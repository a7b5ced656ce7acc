"""Longer contexts without training: bounded distances, evicted keys, temperatures.

ReRoPE, Self-Extend and dual chunk attention share one idea: no distance may be larger
than those seen in training. One rotation of q and one of k give only n − m. For other
distances the scores are computed two or three times with other positions, and each
pair takes the score of its branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._torch import values_known
from posenc_lib.positions import relative
from posenc_lib.rotary.rope import RoPE, checked_rope


class Branch(NamedTuple):
    """Positions to rotate by, and the pairs whose score comes from them.

    Equation: e_mn = (R_{m′/s} q_m)ᵀ (R_{n′/s} k_n) where pairs(m, n)
    Shapes: q_positions (Tq,) or (B, Tq), k_positions (Tk,) or (B, Tk), pairs (Tq, Tk)
        or (B, 1, Tq, Tk)

    Args:
        q_positions: m′.
        k_positions: n′.
        pairs: True where this branch counts; every pair belongs to one branch.
        divisor: s, which stretches the positions: R_{m/s} has the frequencies ω_i/s.

    Chapter: 16
    """

    q_positions: Tensor
    k_positions: Tensor
    pairs: Tensor
    divisor: int = 1


Branches = Callable[[Tensor, Tensor], tuple[Branch, ...]]


def _checked_positions(
    q_positions: Tensor, k_positions: Tensor
) -> tuple[Tensor, Tensor]:
    """The positions, integers as int64: m + w may not fit into m's narrower type."""
    relative(q_positions, k_positions)  # checks both
    return (
        _checks.attention_positions("q_positions", q_positions),
        _checks.attention_positions("k_positions", k_positions),
    )


def rerope(
    q_positions: Tensor, k_positions: Tensor, *, window: int
) -> tuple[Branch, ...]:
    """ReRoPE: distances grow up to w and stay there.

    Equation: distance = m − n if m − n < w, else w      (kexue9708)
    Shapes: positions (Tq,), (Tk,) or (B, Tq), (B, Tk) → two `Branch`es

    The second branch rotates every query by w and no key. Keys after the query keep
    their own distance: mask them.

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        window: w, at least 1 and at most the trained length − 1.

    Raises:
        TypeError, ValueError: `window` is not an integer ≥ 1; then as
            `positions.relative`.

    Source: kexue9708
    Checked: bojone/rerope@2cbd019fcafe:rerope_patch.py:forward_with_rerope
    Chapter: 16
    """
    _checks.whole_number("window", window, least=1)
    q_positions, k_positions = _checked_positions(q_positions, k_positions)
    near = relative(q_positions, k_positions) > -window
    far = Branch(
        torch.full_like(q_positions, window), torch.zeros_like(k_positions), ~near
    )
    return Branch(q_positions, k_positions, near), far


def leaky_rerope(
    q_positions: Tensor, k_positions: Tensor, *, window: int, factor: int
) -> tuple[Branch, ...]:
    """Leaky ReRoPE: beyond w distances grow k times slower.

    Equation: distance = m − n if m − n < w, else w + (m − n − w)/k      (kexue9708)
    Shapes: as `rerope`

    k = 1 is RoPE; ReRoPE is the limit of large k.

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        window: w, at least 1.
        factor: k, a whole number: then all positions are whole, and exact.

    Raises:
        TypeError, ValueError: `window` or `factor` is not an integer ≥ 1; then as
            `positions.relative`.

    Source: kexue9708
    Checked: bojone/rerope@2cbd019fcafe:leaky_rerope_patch.py:forward_with_leaky_rerope
    Chapter: 16
    """
    _checks.whole_number("window", window, least=1)
    _checks.whole_number("factor", factor, least=1)
    q_positions, k_positions = _checked_positions(q_positions, k_positions)
    near = relative(q_positions, k_positions) > -window
    far = Branch(q_positions + window * (factor - 1), k_positions, ~near, factor)
    return Branch(q_positions, k_positions, near), far


def self_extend(
    q_positions: Tensor, k_positions: Tensor, *, window: int, group: int
) -> tuple[Branch, ...]:
    """Self-Extend: far keys share a position with their neighbours.

    Equation: distance = m − n if m − n < w, else ⌊m/G⌋ − ⌊n/G⌋ + w − ⌊w/G⌋
        (jin2024)
    Shapes: as `rerope`

    The released code's prompt pass has w/G without the floor. The largest distance in L
    tokens is ⌊(L−1)/G⌋ + w − ⌊w/G⌋. Which keys share a position depends on where
    counting begins: a shift of all positions by less than G changes the scores.

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        window: w, at least 1. A multiple of G makes the distance continuous at w.
        group: G, at least 1; 1 is RoPE.

    Raises:
        TypeError, ValueError: `window` or `group` is not an integer ≥ 1; then as
            `positions.relative`.

    Source: jin2024
    Checked:
        datamllab/LongLM@18950b5a9230:self_extend_patch/Llama.py:self_extend_forward
    Chapter: 16
    """
    _checks.whole_number("window", window, least=1)
    _checks.whole_number("group", group, least=1)
    q_positions, k_positions = _checked_positions(q_positions, k_positions)
    near = relative(q_positions, k_positions) > -window
    far = Branch(
        q_positions // group + window - window // group, k_positions // group, ~near
    )
    return Branch(q_positions, k_positions, near), far


def dual_chunk(
    q_positions: Tensor, k_positions: Tensor, *, chunk: int, local: int
) -> tuple[Branch, ...]:
    """Dual chunk attention: keys are counted within their chunk.

    Equation: n′ = n mod c;  m′ = m mod c in the same chunk, min(m mod c + c, c + ℓ) for
        the chunk before, and c + ℓ for all earlier ones      (an2024)
    Shapes: positions (Tq,), (Tk,) or (B, Tq), (B, Tk) → three `Branch`es

    The query's position depends on how many chunks lie between it and the key. The last
    ℓ keys keep their true distances across a chunk's boundary. Beyond, unlike ReRoPE's
    and Self-Extend's, distances are not monotone: they start again in every chunk. Keys
    are rotated once, so they can be cached rotated. In the released code chunk_size is
    c + ℓ and local_window ℓ.

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        chunk: c, at least 1. c + ℓ is the largest distance, below the trained length.
        local: ℓ, from 0 to c − 1.

    Raises:
        TypeError, ValueError: `chunk` or `local` is not an integer or too small, ℓ is
            not below c; then as `positions.relative`.

    Source: an2024, qwen2.5-1M
    Checked:
        HKUNLP/ChunkLlama@15c5787c79ee:chunkllama_attn_replace.py:ChunkLlamaRotaryEmbedding._set_cos_sin_cache
    Chapter: 16
    """
    _checks.whole_number("chunk", chunk, least=1)
    _checks.whole_number("local", local, least=0)
    if local >= chunk:
        raise ValueError(f"local must be below chunk = {chunk}, got {local}")
    q_positions, k_positions = _checked_positions(q_positions, k_positions)
    chunks_ahead = relative(q_positions // chunk, k_positions // chunk)
    m, n = q_positions % chunk, k_positions % chunk
    return (
        Branch(m, n, chunks_ahead >= 0),
        Branch((m + chunk).clamp(max=chunk + local), n, chunks_ahead == -1),
        Branch(torch.full_like(m, chunk + local), n, chunks_ahead < -1),
    )


def branched_scores(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    rope: RoPE,
    branches: Branches,
) -> Tensor:
    """Scores with the distances of `rerope`, `self_extend` or another rule.

    Equation: e_mn = (R_{m′} q_m)ᵀ (R_{n′} k_n), m′ and n′ of the pair's branch;
        unscaled
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, Tk)

    One score matrix for each branch, then a choice: two to three times the work of
    RoPE. As a scheme: `PositionScheme("ReRoPE", scores=partial(branched_scores,
    rope=rope, branches=partial(rerope, window=512)))`.

    Args:
        q: queries, not rotated.
        k: keys, not rotated; keep these in the cache.
        q_positions: (Tq,) or (B, Tq).
        k_positions: (Tk,) or (B, Tk).
        rope: the checkpoint's rotation.
        branches: `rerope`, `leaky_rerope`, `self_extend` or `dual_chunk`, its sizes
            filled in by `partial`.

    Raises:
        TypeError, ValueError: q and k don't fit one another; then as `Rotation` and
            `branches`.

    Source: jin2024, an2024, kexue9708
    Chapter: 16
    """
    _checks.equal_heads(q, k)
    checked_rope("rope", rope)
    _checks.callable_("branches", branches)
    dtype = torch.promote_types(q.dtype, k.dtype)
    q, k = (x.to(_checks.at_least_float32(dtype)) for x in (q, k))
    scores = q.new_zeros(())
    for branch in branches(q_positions, k_positions):
        stretched = replace(rope, frequencies=rope.frequencies / branch.divisor)
        rotated_q, rotated_k = stretched.transform(
            q, k, branch.q_positions, branch.k_positions
        )
        scores = torch.where(branch.pairs, rotated_q @ rotated_k.mT, scores)
    return scores.to(dtype)


def branched_relative(
    q_positions: Tensor, k_positions: Tensor, *, branches: Branches
) -> Tensor:
    """The relative positions that the model sees with `branched_scores`.

    Equation: r′_mn = (n′ − m′)/s of the pair's branch, key − query
    Shapes: (Tq,), (Tk,) → (Tq, Tk); (B, Tq), (B, Tk) → (B, 1, Tq, Tk), float64

    Args:
        q_positions: positions m of the queries.
        k_positions: positions n of the keys.
        branches: as in `branched_scores`.

    Raises:
        TypeError, ValueError: as `positions.relative`.

    Chapter: 16
    """
    _checks.callable_("branches", branches)
    relative(q_positions, k_positions)  # checks both
    dtype = _checks.float64_on(q_positions.device)
    distances = torch.zeros((), dtype=dtype, device=q_positions.device)
    for branch in branches(q_positions, k_positions):
        r = relative(branch.q_positions, branch.k_positions).to(dtype) / branch.divisor
        distances = torch.where(branch.pairs, r, distances)
    return distances


def evict(positions: Tensor, *, sinks: int, window: int) -> tuple[Tensor, Tensor]:
    """StreamingLLM's cache: the slots that stay, and the positions they get.

    Equation: slots 0 … S−1 and the last w stay, at positions 0, 1, 2, …      (xiao2024)
    Shapes: (T,) → two of (min(T, S + w),), int64

    Positions count slots of the cache, not tokens of the text: no query is ever further
    than S + w from a key. The next query's position is the number of slots that stay.
    Use the slots on keys and values; move the keys with `rerotate`.

    Args:
        positions: of the cached keys, in the order of their slots.
        sinks: S, the slots at the beginning that always stay, at least 0.
        window: w, recent slots that stay, at least 1.

    Raises:
        TypeError, ValueError: positions of another shape (rows of a padded batch lose
            different slots: evict them one at a time); `sinks` or `window` is not an
            integer or too small. On plain CPU tensors: positions that don't grow.

    Source: xiao2024
    Checked:
        mit-han-lab/streaming-llm@d729b3ffc947:streaming_llm/kv_cache.py:StartRecentKVCache.__call__
    Chapter: 20
    """
    _checks.whole_number("sinks", sinks, least=0)
    _checks.whole_number("window", window, least=1)
    positions = _checks.attention_positions("positions", positions)
    if positions.dim() != 1:
        raise ValueError(
            "positions must have shape (T,), one row: each row of a batch loses other "
            f"slots; got {tuple(positions.shape)}"
        )
    if values_known(positions) and bool((positions.diff() <= 0).any()):
        slot = int((positions.diff() <= 0).nonzero()[0])
        raise ValueError(
            "positions must grow from slot to slot, got "
            f"{positions[slot : slot + 2].tolist()}"
        )
    slots = torch.arange(positions.shape[0], device=positions.device)
    if positions.shape[0] > sinks + window:
        slots = torch.cat((slots[:sinks], slots[-window:]))
    return slots, torch.arange(slots.shape[0], device=positions.device)


def rerotate(
    k: Tensor, positions: Tensor, new_positions: Tensor, *, rope: RoPE
) -> Tensor:
    """Move rotated keys to other positions: rotate them by the difference.

    Equation: R_{n′} k = R_{n′−n} (R_n k)      (the group law)
    Shapes: k (B, H, T, d) → (B, H, T, d)

    Each call rounds the keys once more. Where memory allows, keep keys unrotated and
    rotate them when they are used, as StreamingLLM's released code does. Not for
    schedules that depend on the length: there old and new keys have different
    frequencies.

    Args:
        k: keys, rotated by `positions`, the attention factor included.
        positions: n, (T,) or (B, T).
        new_positions: n′, the same shape.
        rope: the rotation that was applied.

    Raises:
        TypeError, ValueError: two shapes of positions; then as `Rotation`.

    Source: su2021, xiao2024
    Chapter: 20
    """
    positions = _checks.attention_positions("positions", positions)
    new_positions = _checks.attention_positions("new_positions", new_positions)
    if new_positions.shape != positions.shape:
        raise ValueError(
            f"new_positions must have the shape of positions {tuple(positions.shape)}, "
            f"got {tuple(new_positions.shape)}"
        )
    _checks.floating_tensor("k", k, least_dims=4)
    checked_rope("rope", rope)
    without_factor = replace(rope, attention_factor=1.0)  # it is in k already
    rotation = without_factor(
        new_positions - positions, _checks.at_least_float32(k.dtype)
    )
    return rotation(k)


def llama4_temperature(
    positions: Tensor,
    dtype: torch.dtype = torch.float32,
    *,
    floor_scale: int = 8192,
    attn_scale: float = 0.1,
) -> Tensor:
    """Llama 4's temperature: queries without RoPE grow in steps with their position.

    Equation: t_m = 1 + a ln(1 + ⌊(m + 1)/L⌋)      (llama4)
    Shapes: (T,) or (B, T) → the same

    It keeps the softmax from becoming flat where there are many keys.

    Args:
        positions: m, at least 0. At m = L − 1 the first step is taken.
        dtype: of the result.
        floor_scale: L, 8192 in Llama 4.
        attn_scale: a, 0.1 in Llama 4.

    Raises:
        TypeError, ValueError: positions that are not a tensor of numbers ≥ 0,
            `floor_scale` is not an integer ≥ 1, `attn_scale` is not a finite number
            above 0.

    Source: llama4
    Checked: golden;
        meta-llama/llama-models@408c577168a1:models/llama4/model.py:Attention.forward
    Chapter: 14
    """
    _checks.whole_number("floor_scale", floor_scale, least=1)
    _checks.positive("attn_scale", attn_scale)
    _checks.floating_dtype("dtype", dtype)
    steps = (_from_zero("positions", positions) + 1) // floor_scale
    return 1 + attn_scale * steps.to(dtype).log1p()


def log_length_temperature(
    positions: Tensor, dtype: torch.dtype = torch.float32, *, trained_length: int
) -> Tensor:
    """Logarithmic scaling: queries grow past the trained length.

    Equation: t_m = max(1, ln(m + 1) / ln L)      (kexue8823)
    Shapes: (T,) or (B, T) → the same

    The queries grow so that the entropy of the weights does not.

    Args:
        positions: m, at least 0: a causal query has m + 1 keys.
        dtype: of the result.
        trained_length: L, at least 2.

    Raises:
        TypeError, ValueError: positions that are not a tensor of numbers ≥ 0,
            `trained_length` is not an integer ≥ 2.

    Source: kexue8823
    Checked: bojone/rerope@2cbd019fcafe:rerope_patch.py:forward_with_rerope
    Chapter: 16
    """
    _checks.whole_number("trained_length", trained_length, least=2)
    _checks.floating_dtype("dtype", dtype)
    keys = (_from_zero("positions", positions) + 1).to(dtype)
    trained = torch.tensor(trained_length, dtype=dtype, device=keys.device)
    return (keys.log() / trained.log()).clamp(min=1)


def _from_zero(name: str, positions: Tensor) -> Tensor:
    """Positions of at least 0, which count: a causal query at m has m + 1 keys."""
    positions = _checks.attention_positions(name, positions)
    if values_known(positions) and bool((positions < 0).any()):
        raise ValueError(
            f"{name} must be at least 0, since a query at m has m + 1 keys; got "
            f"{positions.min().item()}"
        )
    return positions


def tempered(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    temperature: Callable[..., Tensor],
) -> tuple[Tensor, Tensor]:
    """Multiply each query by a temperature that depends on its position.

    Equation: e_mn = t_m q_mᵀ k_n / √d
    Shapes: q (B, H, Tq, d) → the same

    It is a scheme's `transform` that leaves the keys unchanged. A factor and a rotation
    commute: apply it before or after RoPE. It needs no cache and no positions of keys.

    Args:
        q: queries.
        k: keys, returned as they are.
        q_positions: (Tq,) or (B, Tq).
        k_positions: unused.
        temperature: `temperature(positions, dtype)`, such as `llama4_temperature`.

    Raises:
        TypeError, ValueError: q has another shape, or as `temperature`.

    Source: llama4
    Chapter: 14
    """
    if _checks.floating_tensor("q", q, least_dims=4).dim() != 4:
        raise ValueError(f"q must have shape (B, H, T, d), got {tuple(q.shape)}")
    _checks.attention_positions("q_positions", q_positions)
    _checks.callable_("temperature", temperature)
    compute = _checks.at_least_float32(q.dtype)
    t = temperature(q_positions, compute)
    if tuple(t.shape) not in ((q.shape[2],), (1, q.shape[2]), (q.shape[0], q.shape[2])):
        raise ValueError(
            f"q_positions must have shape ({q.shape[2]},) or "
            f"{(q.shape[0], q.shape[2])}, got {tuple(q_positions.shape)}"
        )
    per_query = t[:, None] if t.dim() == 1 else t[:, None, :, None]
    return (q.to(compute) * per_query).to(q.dtype), k


class SSMax(nn.Module):
    """Scalable softmax: each head learns how its scores grow with the number of keys.

    Equation: α_mn = exp(s_h ln(N_m) e_mn) / Σ_l exp(s_h ln(N_m) e_ml),
        N_m = m + 1 keys of a causal query      (nakanishi2025)
    Shapes: q (B, H, Tq, d) → the same, k unchanged

    The score e is the scaled one, without a bias. A query at position 0 attends to its
    only key, whatever the score.

    Args:
        heads: H.
        initial: s at the beginning. The default is our choice: it makes s ln N average
            1 over N = 1 … 1024. The paper's text is not available to us, and ports
            differ.

    Raises:
        TypeError, ValueError: `heads` is not an integer ≥ 1, `initial` is not a finite
            number above 0; when called, shapes that don't fit.

    Source: nakanishi2025
    Checked: derived, unchecked
    Chapter: 16
    """

    def __init__(self, heads: int, *, initial: float = 0.168) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        _checks.positive("initial", initial)
        self.scale = nn.Parameter(torch.full((heads,), initial))

    def transform(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Queries multiplied by s_h ln(m + 1); keys as they are."""
        _checks.floating_tensor("q", q, least_dims=4)
        if q.dim() != 4 or q.shape[1] != self.scale.shape[0]:
            raise ValueError(
                f"q must have shape (B, {self.scale.shape[0]}, T, d), got "
                f"{tuple(q.shape)}"
            )

        def logarithm(positions: Tensor, dtype: torch.dtype) -> Tensor:
            return (_from_zero("q_positions", positions) + 1).to(dtype).log()

        compute = _checks.at_least_float32(q.dtype)
        scaled, k = tempered(
            q.to(compute), k, q_positions, k_positions, temperature=logarithm
        )
        return (scaled * self.scale.to(compute)[:, None, None]).to(q.dtype), k
