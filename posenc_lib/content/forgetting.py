"""The forget gate of the Forgetting Transformer, also known as data-dependent ALiBi."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib._torch import values_known
from posenc_lib.content._rows import integer_relative, select


def path_sums(steps: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """The sum of the steps of all tokens after a key, the query's included.

    Equation: D_mn = Σ_{l=n+1}^{m} a_l = C_m − C_n,  C the running sum of a
        (lin2025 §3)
    Shapes: steps (B, H, Tk) → (B, H, Tq, Tk)

    With the logarithms of forget gates as steps it is the bias of the Forgetting
    Transformer. The query's own token is a key, m − n tokens after key n: that holds
    with a cache, behind left padding, and in each segment of a packed row. For pairs
    from different segments and keys after the query the result is meaningless; mask
    them. The difference costs |C| roundings of the dtype: keep it float32 or better.

    Args:
        steps: a_l of each key, at least float32.
        q_positions: positions m of the queries, integers; each is also the position of
            a key.
        k_positions: positions n of the keys, consecutive integers within a segment.

    Raises:
        TypeError, ValueError: shapes that don't fit, positions that are not integers.
            On plain CPU tensors: a key missing between two others, or a query that is
            not among the keys.

    Source: lin2025
    Checked:
        zhixuan-lin/forgetting-transformer@0c44f84b22d8:src/forgetting_transformer/ops/forgetting_attention.py:_fwd_kernel
    Chapter: 07
    """
    _checks.floating_tensor("steps", steps, least_dims=3)
    batch, _, keys = steps.shape
    _checks.token_positions("k_positions", k_positions, batch=batch, length=keys)
    k_positions = _checks.attention_positions("k_positions", k_positions)
    r = integer_relative(q_positions, k_positions)  # n − m: (Tq, Tk) or (B, 1, Tq, Tk)
    _check_steps_are_complete(r, q_positions, k_positions)

    totals = steps.to(_checks.at_least_float32(steps.dtype)).cumsum(-1)
    totals = totals[:, :, None]  # (B, H, 1, Tk)
    # Index of query m on the key axis, counted from key n.
    q_index = (torch.arange(keys, device=r.device) - r).clamp(0, keys - 1)
    return select(totals.expand(-1, -1, q_index.shape[-2], -1), q_index) - totals


def _check_steps_are_complete(
    r: Tensor, q_positions: Tensor, k_positions: Tensor
) -> None:
    """Whether there is a key at every position between a key and a query."""
    if not values_known(r):
        return
    gaps = k_positions.diff() > 1
    if bool(gaps.any()):
        raise ValueError(
            "k_positions must be consecutive within a segment, or the steps of missing "
            f"keys are lost; got a jump after {k_positions[..., :-1][gaps][0].item()}"
        )
    without_key = ~(r == 0).any(-1).reshape(-1, r.shape[-2])  # (1 or B, Tq)
    if bool(without_key.any()):
        position = q_positions.expand(without_key.shape)[without_key][0].item()
        raise ValueError(
            "q_positions must all be positions of keys too, since the query's own step "
            f"counts; got {position}"
        )


class ForgetGate(nn.Module):
    """Forgetting Transformer: each token's content decides how much is forgotten.

    Equation: e_mn = q_mᵀ k_n / √d + Σ_{l=n+1}^{m} log f_l,  f_l = σ(w_hᵀ x_l + b_h)
        (lin2025 §3)
    Shapes: k_x (B, Tk, D) → bias (B, H, Tq, Tk)

    A gate that ignores x is ALiBi with slope −log σ(b_h). The sum begins after the key:
    its own gate is not in it. With a cache keep k_x, or the gates, of all keys: a sum
    over the new tokens alone forgets nothing older. CABLE (veisi2025) adds up
    −softplus(z_l) in place of log σ(z_l) in its released code: the same bias, with z
    negated.

    Args:
        dim: D, width of the hidden states.
        heads: H.
        std: w is drawn from N(0, std²), 0.02 in the released code; b begins at 0.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1. When called: no k_x, or
            one of another shape; positions as in `path_sums`.

    Source: lin2025, veisi2025
    Checked: golden; parity;
        zhixuan-lin/forgetting-transformer@0c44f84b22d8:src/forgetting_transformer/ops/forgetting_attention.py:_fwd_kernel
    Chapter: 07
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        std: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.whole_number("dim", dim, least=1)
        _checks.whole_number("heads", heads, least=1)
        self.weight = normal(heads, dim, std=std, generator=generator)
        self.bias = nn.Parameter(torch.zeros(heads))

    def forward(
        self,
        q_positions: Tensor,
        k_positions: Tensor,
        *,
        q_x: Tensor | None = None,
        k_x: Tensor | None = None,
    ) -> Tensor:
        x = _checks.hidden_states(
            "k_x", k_x, self.weight.shape[1], "k_positions", k_positions
        )
        logits = x @ self.weight.to(x.dtype).mT + self.bias.to(x.dtype)  # (B, Tk, H)
        log_gates = torch.nn.functional.logsigmoid(logits).mT
        return path_sums(log_gates, q_positions, k_positions)
