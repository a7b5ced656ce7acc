"""Multi-head latent attention with decoupled RoPE (DeepSeek-V2, V3).

Content goes through a latent and is never rotated; position has separate channels,
[content ; rotated] in every query and key. So the score scale is 1/√(d_c + d_r),
`attention`'s default, or `deepseek_softmax_scale` under YaRN.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import linear, normal
from posenc_lib.rotary.rope import RoPE, checked_rope


class LatentQueries(nn.Module):
    """The queries of latent attention: content and rotary channels from one latent.

    Equation: c^Q = W^DQ x,  q_h = [W^UQ_h c^Q ; R_m W^QR_h c^Q]      (deepseekv2 §2.1)
    Shapes: x (B, T, D), positions (T,) or (B, T) → q (B, H, T, d_c + d_r)

    The released models normalise the latent (RMSNorm) before W^UQ; the equations don't.

    Args:
        width: D of the model.
        heads: H.
        latent: width of c^Q.
        content_dim: channels d_c of a head; `qk_nope_head_dim` in the released code.
        rope: rotates d_r more channels, twice the number of its frequencies;
            `qk_rope_head_dim` in the released code.
        std: all weights are drawn from N(0, std²), DeepSeek-V2's by default.
        generator: of the draw.

    Raises:
        TypeError, ValueError: a size that is not an integer ≥ 1; when called, x or
            positions of another shape.

    Source: deepseekv2
    Chapter: 19
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        latent: int,
        content_dim: int,
        rope: RoPE,
        std: float = 0.006,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.heads = _checks.whole_number("heads", heads, least=1)
        self.rope = checked_rope("rope", rope)
        _checks.sizes(width=width, latent=latent, content_dim=content_dim)
        rotary_dim = 2 * rope.frequencies.shape[0]
        draw = partial(normal, std=std, generator=generator)
        self.down = linear(draw(latent, width))  # W^DQ
        self.up = linear(draw(heads * content_dim, latent))  # W^UQ
        self.rotary = linear(draw(heads * rotary_dim, latent))  # W^QR

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        latent = self.down(_tokens("x", x, self.down.in_features))
        content = _by_head(self.up(latent), self.heads)
        rotary = _by_head(self.rotary(latent), self.heads)
        return torch.cat((content, _rotated(self.rope, rotary, positions)), -1)


class LatentKeys(nn.Module):
    """The keys and values of latent attention, compressed and expanded.

    Equation: c^KV = W^DKV x,  k^R = R_n W^KR x;  k_h = [W^UK_h c^KV ; k^R],
        v_h = W^UV_h c^KV      (deepseekv2 §2.1)
    Shapes: x (B, T, D) → c^KV (B, T, d_kv), k^R (B, 1, T, d_r);  `expand` →
        k (B, H, T, d_c + d_r), v (B, H, T, d_v)

    `forward` gives what a cache holds, `expand` keys and values from it. k^R is one for
    all heads and comes from x, not from the latent: a rotation between W^UK and W^UQ
    would keep these from being multiplied into one matrix. The cache is d_kv + d_r
    numbers a token, whatever the number of heads.

    Args:
        width, heads, content_dim, rope, std, generator: as in `LatentQueries`.
        latent: width d_kv of c^KV.
        value_dim: channels d_v of a value.

    Raises:
        TypeError, ValueError: as `LatentQueries`.

    Source: deepseekv2
    Checked: golden
    Chapter: 19
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        latent: int,
        content_dim: int,
        value_dim: int,
        rope: RoPE,
        std: float = 0.006,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.heads = _checks.whole_number("heads", heads, least=1)
        self.rope = checked_rope("rope", rope)
        _checks.sizes(width=width, latent=latent)
        _checks.sizes(content_dim=content_dim, value_dim=value_dim)
        draw = partial(normal, std=std, generator=generator)
        self.down = linear(draw(latent, width))  # W^DKV
        self.rotary = linear(draw(2 * rope.frequencies.shape[0], width))  # W^KR
        self.key_up = linear(draw(heads * content_dim, latent))  # W^UK
        self.value_up = linear(draw(heads * value_dim, latent))  # W^UV

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        tokens = _tokens("x", x, self.down.in_features)
        rotary = self.rotary(tokens)[:, None]  # (B, 1, T, d_r)
        return self.down(tokens), _rotated(self.rope, rotary, positions)

    def expand(self, latent: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        _tokens("latent", latent, self.key_up.in_features)
        _checks.floating_tensor("rotary", rotary, least_dims=4)
        batch, length, rotary_dim = *latent.shape[:2], self.rotary.out_features
        if rotary.shape != (batch, 1, length, rotary_dim):
            raise ValueError(
                "rotary must have shape (B, 1, T, d_r) = "
                f"{(batch, 1, length, rotary_dim)}, got {tuple(rotary.shape)}"
            )
        content = _by_head(self.key_up(latent), self.heads)
        key = torch.cat((content, rotary.expand(-1, self.heads, -1, -1)), -1)
        return key, _by_head(self.value_up(latent), self.heads)


def _tokens(name: str, x: Tensor, width: int) -> Tensor:
    _checks.floating_tensor(name, x, least_dims=3)
    if x.dim() != 3 or x.shape[-1] != width:
        raise ValueError(
            f"{name} must have shape (B, T, {width}), got {tuple(x.shape)}"
        )
    return x


def _by_head(x: Tensor, heads: int) -> Tensor:
    """(B, T, H·d) → (B, H, T, d)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _rotated(rope: RoPE, x: Tensor, positions: Tensor) -> Tensor:
    _checks.token_positions("positions", positions, batch=x.shape[0], length=x.shape[2])
    return rope(positions, _checks.at_least_float32(x.dtype))(x)
