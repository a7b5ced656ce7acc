"""PaTH: the key is reflected by each token between it and the query."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib.content._rows import operands, segments_by_restart, split_heads
from posenc_lib.positions import relative


def path_scores(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    w: Tensor,
    beta: Tensor,
) -> Tensor:
    """PaTH's score for given reflections: those of all tokens after the key.

    Equation: s_mn = k_nᵀ H_{n+1} H_{n+2} ⋯ H_m q_m,  H_t = I − β_t w_t w_tᵀ
        (yang2025p; unscaled)
    Shapes: q (B, H, Tq, d), k and w (B, H, Tk, d), beta (B, H, Tk) → (B, H, Tq, Tk)

    The key meets H_{n+1} first and H_m, the query's own, last. What reflection t takes
    away from key n is w_t x_tn, and x_tn = β_t w_tᵀ (k_n − Σ_{n<s<t} w_s x_sn): a
    triangular system, solved for all keys at once. Then
    s_mn = q_mᵀ k_n − Σ_{n<t≤m} q_mᵀ w_t x_tn.

    Args:
        q, k, q_positions, k_positions: as `PositionScheme.scores` gets them; keys are
            in the order of their positions, and a position that does not grow begins a
            new segment, whose keys meet no reflections of others.
        w: w_t of each key, of length 1.
        beta: β_t of each key, 0 … 2: 0 is no reflection, 2 a Householder reflection.
            With all 0, NoPE.

    Raises:
        TypeError, ValueError: shapes that don't fit.

    Source: yang2025p
    Checked:
        fla-org/flash-linear-attention@27289fcb1edd:fla/layers/path_attn.py:PaTHAttention.forward
    Chapter: 07
    """
    q, k, dtype = operands(q, k, q_positions, k_positions)
    if _checks.floating_tensor("w", w, least_dims=4).shape != k.shape:
        raise ValueError(
            f"w must have k's shape {tuple(k.shape)}, got {tuple(w.shape)}"
        )
    if _checks.floating_tensor("beta", beta, least_dims=3).shape != k.shape[:3]:
        raise ValueError(
            f"beta must have shape {tuple(k.shape[:3])}, got {tuple(beta.shape)}"
        )
    w, beta = w.to(q.dtype), beta.to(q.dtype)[..., None]  # (B, H, Tk, d), (B, H, Tk, 1)
    segment = segments_by_restart(k_positions)
    same_segment = segment[..., :, None] == segment[..., None, :]
    if same_segment.dim() == 3:
        same_segment = same_segment[:, None]
    later = same_segment.tril(-1)  # [t, n]: t after n, (Tk, Tk) or (B, 1, Tk, Tk)
    identity = torch.eye(k.shape[2], dtype=q.dtype, device=q.device)
    x = torch.linalg.solve_triangular(
        identity + beta * (w @ w.mT) * later, beta * (w @ k.mT) * later, upper=False
    )  # (B, H, Tk, Tk)
    future = relative(q_positions, k_positions) > 0
    q_w = (q @ w.mT).masked_fill(future, 0)  # q_mᵀ w_t for t ≤ m
    scores: Tensor = q @ k.mT - q_w @ x
    return scores.to(dtype)


class PaTH(nn.Module):
    """PaTH: relative position is a product of reflections that depend on the tokens.

    Equation: w_t = W_up W_down x_t / ‖·‖,  β_t = 2 σ(w_βᵀ x_t + b_β) in each head;
        the score is `path_scores`      (yang2025p; the maps as in the authors' code)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d), k_x (B, Tk, D) → (B, H, Tq, Tk)

    The authors' layer also sends w through a short convolution along the tokens before
    it is normalised, and can add a forget gate. With grouped queries it shares w within
    a group and makes it by one full-rank map. None of this is done here.

    Args:
        dim: D, width of the hidden states.
        heads: H.
        head_dim: d.
        rank: of the low-rank map to w, 32 in the authors' code.
        std: weights are drawn from N(0, std²); b_β begins at 0, so β at 1.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1; when called, no k_x, or
            shapes that don't fit.

    Source: yang2025p
    Checked:
        fla-org/flash-linear-attention@27289fcb1edd:fla/layers/path_attn.py:PaTHAttention.forward
    Chapter: 07
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        rank: int = 32,
        std: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.sizes(dim=dim, heads=heads, head_dim=head_dim, rank=rank)
        self.down_weight = normal(rank, dim, std=std, generator=generator)
        self.up_weight = normal(heads * head_dim, rank, std=std, generator=generator)
        self.beta_weight = normal(heads, dim, std=std, generator=generator)
        self.beta_bias = nn.Parameter(torch.zeros(heads))

    def reflections(self, k_x: Tensor) -> tuple[Tensor, Tensor]:
        """w (B, H, T, d) and beta (B, H, T) from hidden states (B, T, D)."""
        parameters = (
            self.down_weight,
            self.up_weight,
            self.beta_weight,
            self.beta_bias,
        )
        down, up, weight, bias = (p.to(k_x.dtype) for p in parameters)
        w = split_heads(k_x @ down.mT @ up.mT, weight.shape[0])
        beta = 2 * (k_x @ weight.mT + bias).sigmoid().mT
        return torch.nn.functional.normalize(w, dim=-1), beta

    def scores(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        *,
        q_x: Tensor | None = None,
        k_x: Tensor | None = None,
    ) -> Tensor:
        w, beta = self.reflections(
            _checks.hidden_states(
                "k_x", k_x, self.down_weight.shape[1], "k_positions", k_positions
            )
        )
        return path_scores(q, k, q_positions, k_positions, w=w, beta=beta)
