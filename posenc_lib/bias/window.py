"""Biases of grids by the offset on each axis: those of Swin, BEiT and iRPE.

Positions are coordinates: (T, axes) or (B, T, axes), integers, as `positions.grid((H,
W))` gives them. A class token, where one is allowed, is at −1 on every axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib._torch import values_known
from posenc_lib.bias._pairs import (
    bucket_by_edges,
    heads_first,
    integer_coordinates,
    pairs,
)


def window_index(
    q_positions: Tensor, k_positions: Tensor, window: Sequence[int]
) -> Tensor:
    """Swin's index: the row of the bias table for each pair, by its offset.

    Equation: row = Σ_a (m_a − n_a + M_a − 1) Π_{b>a} (2 M_b − 1);
        in 2-D: (Δh + M_h − 1)(2 M_w − 1) + Δw + M_w − 1      (liu2021, released code)
    Shapes: coordinates (Tq, axes), (Tk, axes) → (Tq, Tk); with a batch on either side
        → (B, 1, Tq, Tk); int64

    The offset is query − key, unlike `relative`. The factor of an axis is the product
    of 2M − 1 over the axes after it, whatever their number: any other lets two offsets
    share a row.

    Args:
        q_positions: coordinates m of the queries, integers.
        k_positions: coordinates n of the keys, integers.
        window: M, the window's size on each axis, each at least 1.

    Raises:
        TypeError, ValueError: coordinates that are not integers (T, axes) or (B, T,
            axes); on plain CPU tensors an offset of M or more, which has no row.

    Source: liu2021
    Checked: parity;
        microsoft/Swin-Transformer@055c506510dd:models/swin_transformer.py:WindowAttention.__init__
    Chapter: 17
    """
    window = _checks.axis_sizes("window", window)
    m = integer_coordinates("q_positions", q_positions, len(window))
    n = integer_coordinates("k_positions", k_positions, len(window))
    m, n = pairs(m, n)
    offset = m - n  # (Tq, Tk, axes) or (B, 1, Tq, Tk, axes)
    if values_known(offset):
        for axis, size in enumerate(window):
            largest = int(offset[..., axis].abs().max())
            if largest >= size:
                raise ValueError(
                    f"q_positions and k_positions must be less than window[{axis}] = "
                    f"{size} apart on axis {axis}, got {largest}"
                )
    row = torch.zeros_like(offset[..., 0])
    for axis, size in enumerate(window):
        row = row * (2 * size - 1) + offset[..., axis] + size - 1
    return row


def cls_window_index(
    q_positions: Tensor, k_positions: Tensor, window: Sequence[int]
) -> Tensor:
    """BEiT's index: Swin's, and three more rows for pairs with a class token.

    Equation: R = Π_a (2 M_a − 1);  row = R for (class, token), R + 1 for (token,
        class), R + 2 for (class, class), else as `window_index`
        (bao2022, released code)
    Shapes: as `window_index`

    Args:
        q_positions: coordinates of the queries, integers; a class token is at −1 on
            every axis.
        k_positions: the same for the keys.
        window: as in `window_index`.

    Raises:
        TypeError, ValueError: as `window_index`.

    Source: bao2022
    Checked: parity
    Chapter: 17
    """
    window = _checks.axis_sizes("window", window)
    m = integer_coordinates("q_positions", q_positions, len(window))
    n = integer_coordinates("k_positions", k_positions, len(window))
    q_class, k_class = _class_tokens(m, n)
    row = window_index(m.clamp(min=0), n.clamp(min=0), window)
    rows = _window_rows(window)
    row = torch.where(k_class, torch.where(q_class, rows + 2, rows + 1), row)
    return torch.where(q_class & ~k_class, rows, row)


def _window_rows(window: Sequence[int]) -> int:
    """How many offsets a window has."""
    return math.prod([2 * size - 1 for size in window])


def _class_tokens(m: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Which queries and which keys are class tokens, to broadcast to all pairs."""
    for name, positions in (("q_positions", m), ("k_positions", n)):
        outside = (positions < 0).any(-1) & (positions != -1).any(-1)
        if values_known(outside) and bool(outside.any()):
            raise ValueError(
                f"{name} must be at least 0, or -1 on every axis for a class token; "
                f"got {tuple(positions[outside][0].tolist())}"
            )
    q_class, k_class = pairs(
        (m == -1).all(-1, keepdim=True), (n == -1).all(-1, keepdim=True)
    )
    return q_class.squeeze(-1), k_class.squeeze(-1)


class WindowBias(nn.Module):
    """Swin's bias: a learned number for each head and each offset inside the window.

    Equation: b_h(m, n) = B[row(m − n), h]      (liu2021 eq. 4)
    Shapes: coordinates (Tq, axes), (Tk, axes) → (1, H, Tq, Tk); with a batch
        → (B, H, Tq, Tk)

    Args:
        heads: H, at least 1.
        window: M, the window's size on each axis: (7, 7) for Swin, three numbers for
            video.
        std: the table is drawn from N(0, std²) as in the released code, 0.02.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1; when called, as
            `window_index`.

    Source: liu2021
    Checked: golden;
        microsoft/Swin-Transformer@055c506510dd:models/swin_transformer.py:WindowAttention.__init__
    Chapter: 17
    """

    def __init__(
        self,
        heads: int,
        window: Sequence[int],
        *,
        std: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        self.window = _checks.axis_sizes("window", window)
        rows = _window_rows(self.window)
        self.table = normal(rows, heads, std=std, generator=generator)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        rows = window_index(q_positions, k_positions, self.window)
        return heads_first(self.table[rows])


class ClsWindowBias(nn.Module):
    """BEiT's bias: Swin's, with three more rows for pairs with the class token.

    Equation: b_h(m, n) = B[row(m, n), h],  row as in `cls_window_index`
        (bao2022, released code)
    Shapes: coordinates (Tq, axes), (Tk, axes) → (1, H, Tq, Tk); with a batch
        → (B, H, Tq, Tk)

    Args:
        heads: H, at least 1.
        window: M, the size of the whole grid of patches: BEiT has no windows. The table
            begins at zero.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1; when called, as
            `cls_window_index`.

    Source: bao2022
    Checked: golden
    Chapter: 17
    """

    def __init__(self, heads: int, window: Sequence[int]) -> None:
        super().__init__()
        _checks.whole_number("heads", heads, least=1)
        self.window = _checks.axis_sizes("window", window)
        self.table = nn.Parameter(torch.zeros(_window_rows(self.window) + 3, heads))

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        rows = cls_window_index(q_positions, k_positions, self.window)
        return heads_first(self.table[rows])


IRPEMethod = Literal["product", "cross", "euclidean"]
IRPE_METHODS: tuple[IRPEMethod, ...] = get_args(IRPEMethod)


def irpe_edges(alpha: float, beta: float, gamma: float) -> list[int]:
    """The smallest distance of each bucket of iRPE's piecewise index.

    Equation: g(x) = x for x ≤ α, else min(⌊β⌋, [α + ln(x/α) / ln(γ/α) (β − α)]),
        [·] to the nearest integer      (wu2021 eq. 18)
    Shapes: → ⌊β⌋ + 1 ints; bucket j holds the distances edges[j] … edges[j+1]−1 (none
        where they are equal)

    The paper's defaults are α : β : γ = 1 : 2 : 8, times 1.9 in the released code. A β
    that is not an integer ends at ⌊β⌋ there and here.

    Args:
        alpha: α, up to which each distance has its own bucket, above 0.
        beta: β, the last bucket, above α and at least 1.
        gamma: γ, the distance at which the last bucket would be reached, above α.

    Raises:
        TypeError, ValueError: α, β or γ is not a number above 0, or they are not in
            this order.

    Source: wu2021
    Checked: microsoft/Cream@12aed81bb10a:iRPE/DeiT-with-iRPE/irpe.py:piecewise_index
    Chapter: 17
    """
    for name, value in (("alpha", alpha), ("beta", beta), ("gamma", gamma)):
        _checks.positive(name, value)
    if not (alpha < beta and alpha < gamma and beta >= 1):
        raise ValueError(
            f"alpha must be below beta and gamma, and beta at least 1; got {alpha}, "
            f"{beta}, {gamma}"
        )
    last, edges, distance = int(beta), [0], 0
    while len(edges) <= last:
        distance += 1
        bucket: float = distance
        if distance > alpha:
            steps = math.log(distance / alpha, gamma / alpha)
            bucket = alpha + steps * (beta - alpha)
        edges += [distance] * (min(last, round(bucket)) + 1 - len(edges))
    return edges


def irpe_index(
    relative_positions: Tensor,
    *,
    alpha: float = 1.9,
    beta: float = 3.8,
    gamma: float = 15.2,
) -> Tensor:
    """iRPE's piecewise index of an offset, with its sign.

    Equation: sign(x) g(|x|), g as in `irpe_edges`      (wu2021 eq. 18)
    Shapes: integers of any shape → the same shape, int64, values −⌊β⌋ … ⌊β⌋

    Near offsets have an index each, far ones share it in logarithmic buckets, and from
    γ on it is constant.

    Args:
        relative_positions: offsets on one axis, integers.
        alpha, beta, gamma: as in `irpe_edges`.

    Raises:
        TypeError, ValueError: offsets that are not integers; as `irpe_edges`.

    Source: wu2021
    Checked: microsoft/Cream@12aed81bb10a:iRPE/DeiT-with-iRPE/irpe.py:piecewise_index
    Chapter: 17
    """
    x = _checks.position_tensor("relative_positions", relative_positions)
    if x.is_floating_point():
        raise TypeError(f"relative_positions must be integers, got {x.dtype}")
    return x.sign() * bucket_by_edges(x.abs(), irpe_edges(alpha, beta, gamma))


def irpe_rows(
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    axes: int = 2,
    method: IRPEMethod = "product",
    alpha: float = 1.9,
    beta: float = 3.8,
    gamma: float = 15.2,
) -> Tensor:
    """The rows of iRPE's table whose entries are added up for each pair.

    Equation: with S = 2⌊β⌋ + 1 and i_a = ⌊β⌋ + sign(x_a) g(|x_a|), x = m − n:
        product: one row, Σ_a i_a S^(axes−1−a);
        cross: a row i_a in the table of each axis, one table after the other;
        euclidean: one row, ⌊β⌋ + g(‖x‖), the norm rounded first
        (wu2021 and released code)
    Shapes: coordinates (Tq, axes), (Tk, axes) → (Tq, Tk, r) or (B, 1, Tq, Tk, r);
        r = axes for cross, else 1

    The offset is query − key as in the released code, unlike `relative`. Each table
    ends with one more row, for pairs with a class token. The fourth method,
    quantization, is left out: the released code differs from the paper.

    Args:
        q_positions: coordinates of the queries, integers; a class token is at −1 on
            every axis.
        k_positions: the same for the keys.
        axes: number of axes, at least 1.
        method: "product", "cross" or "euclidean".
        alpha, beta, gamma: as in `irpe_edges`.

    Raises:
        TypeError, ValueError: coordinates that are not integers (T, axes) or (B, T,
            axes), sizes as in `irpe_edges`, an unknown method.

    Source: wu2021
    Checked:
        microsoft/Cream@12aed81bb10a:iRPE/DeiT-with-iRPE/irpe.py:get_bucket_ids_2d_without_skip
    Chapter: 17
    """
    _checks.one_of("method", method, IRPE_METHODS)
    _checks.whole_number("axes", axes, least=1)
    m = integer_coordinates("q_positions", q_positions, axes)
    n = integer_coordinates("k_positions", k_positions, axes)
    q_class, k_class = _class_tokens(m, n)
    m, n = pairs(m, n)
    offset = m - n  # (Tq, Tk, axes) or (B, 1, Tq, Tk, axes)
    if method == "euclidean":
        norm = offset.square().sum(-1, keepdim=True).to(torch.float32).sqrt()
        offset = norm.round().to(torch.int64)
    index = irpe_index(offset, alpha=alpha, beta=beta, gamma=gamma)  # checks all three
    last = int(beta)
    row = index + last
    if method == "product":
        powers = [(2 * last + 1) ** (axes - 1 - axis) for axis in range(axes)]
        row = (row * torch.tensor(powers, device=row.device)).sum(-1, keepdim=True)
    size = _irpe_table_rows(method, axes, beta) // row.shape[-1]
    row = torch.where((q_class | k_class)[..., None], size - 1, row)
    return row + size * torch.arange(row.shape[-1], device=row.device)


def _irpe_table_rows(method: IRPEMethod, axes: int, beta: float) -> int:
    """Rows of the table, or of all tables, those for class tokens included."""
    indices = 2 * int(beta) + 1
    if method == "product":
        return math.prod([indices] * axes) + 1
    return (axes if method == "cross" else 1) * (indices + 1)


class _IRPE(nn.Module):
    """What both modes of iRPE share: the index and its settings, a table of zeros."""

    def __init__(
        self,
        columns: int,
        axes: int,
        method: IRPEMethod,
        alpha: float,
        beta: float,
        gamma: float,
    ) -> None:
        super().__init__()
        _checks.whole_number("axes", axes, least=1)
        _checks.one_of("method", method, IRPE_METHODS)
        irpe_edges(alpha, beta, gamma)  # raises now rather than in the first forward
        self.axes, self.method = axes, method
        self.alpha, self.beta, self.gamma = alpha, beta, gamma
        rows = _irpe_table_rows(method, axes, beta)
        self.table = nn.Parameter(torch.zeros(rows, columns))

    def _rows(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """`irpe_rows` with these settings."""
        return irpe_rows(
            q_positions,
            k_positions,
            axes=self.axes,
            method=self.method,
            alpha=self.alpha,
            beta=self.beta,
            gamma=self.gamma,
        )


class IRPEBias(_IRPE):
    """iRPE, bias mode: a learned number for each head and each bucket of offsets.

    Equation: b_h(m, n) = Σ_rows B[row, h],  rows as in `irpe_rows`      (wu2021)
    Shapes: coordinates (Tq, axes), (Tk, axes) → (1, H, Tq, Tk); with a batch
        → (B, H, Tq, Tk)

    The paper has it inside the factor 1/√d; the released code adds it after that
    factor, as this library does. By default the released code shares one table between
    all heads.

    Args:
        heads: H, at least 1.
        axes, method, alpha, beta, gamma: as in `irpe_rows`. The table begins at zero,
            as in the released code.

    Raises:
        TypeError, ValueError: as `irpe_rows`.

    Source: wu2021
    Checked:
        microsoft/Cream@12aed81bb10a:iRPE/DeiT-with-iRPE/irpe.py:iRPE.forward_rpe_transpose
    Chapter: 17
    """

    def __init__(
        self,
        heads: int,
        *,
        axes: int = 2,
        method: IRPEMethod = "product",
        alpha: float = 1.9,
        beta: float = 3.8,
        gamma: float = 15.2,
    ) -> None:
        _checks.whole_number("heads", heads, least=1)
        super().__init__(heads, axes, method, alpha, beta, gamma)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        rows = self._rows(q_positions, k_positions)
        return heads_first(self.table[rows].sum(-2))


class IRPEContextual(_IRPE):
    """iRPE, contextual mode on keys: a learned vector for each bucket of offsets.

    Equation: s_mn = q_mᵀ k_n + Σ_rows q_mᵀ r_row,  rows as in `irpe_rows`
        (wu2021; unscaled)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d), coordinates (T, axes) or (B, T, axes)
        → (B, H, Tq, Tk)

    It is not a bias but fills a scheme's `scores`, since it depends on content. The
    vectors are shared by all heads and begin at zero, as by default in the released
    code.

    Args:
        head_dim: d, at least 1.
        axes, method, alpha, beta, gamma: as in `irpe_rows`.

    Raises:
        TypeError, ValueError: as `irpe_rows`; q and k that are not (B, H, T, d).

    Source: wu2021
    Checked:
        microsoft/Cream@12aed81bb10a:iRPE/DeiT-with-iRPE/irpe.py:iRPE.forward_rpe_transpose
    Chapter: 17
    """

    def __init__(
        self,
        head_dim: int,
        *,
        axes: int = 2,
        method: IRPEMethod = "product",
        alpha: float = 1.9,
        beta: float = 3.8,
        gamma: float = 15.2,
    ) -> None:
        _checks.whole_number("head_dim", head_dim, least=1)
        super().__init__(head_dim, axes, method, alpha, beta, gamma)

    def scores(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        if _checks.heads_tensor("q", q).shape[3] != self.table.shape[1]:
            raise ValueError(
                f"q must have shape (B, H, T, {self.table.shape[1]}), got "
                f"{tuple(q.shape)}"
            )
        _checks.equal_heads(q, k)
        for name, positions, x in (
            ("q_positions", q_positions, q),
            ("k_positions", k_positions, k),
        ):
            _check_coordinates(name, positions, x, self.axes)
        rows = self._rows(q_positions, k_positions)  # (Tq, Tk, r) or (B, 1, Tq, Tk, r)
        dtype = torch.promote_types(q.dtype, k.dtype)
        q, k = (x.to(_checks.at_least_float32(dtype)) for x in (q, k))
        # Each row of the table meets each query once.
        products = q @ self.table.to(q.dtype).mT  # (B, H, Tq, rows of the table)
        shape = (*q.shape[:3], k.shape[2])
        terms = sum(products.gather(-1, row.expand(shape)) for row in rows.unbind(-1))
        return (q @ k.mT + terms).to(dtype)


def _check_coordinates(name: str, positions: Tensor, x: Tensor, axes: int) -> None:
    """Whether there are integer coordinates for each token of x (B, H, T, d)."""
    shape = tuple(integer_coordinates(name, positions, axes).shape[:-1])
    batch, length = x.shape[0], x.shape[2]
    if shape not in ((length,), (1, length), (batch, length)):
        raise ValueError(
            f"{name} must have shape {(length, axes)} or {(batch, length, axes)}, got "
            f"{tuple(positions.shape)}"
        )
