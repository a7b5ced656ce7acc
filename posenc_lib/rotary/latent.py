"""Multi-head latent attention with decoupled RoPE (DeepSeek-V2, V3): its queries, and its compressed keys and values.

Content goes through a latent and is never rotated; position has channels of its own,
[content ; rotated] in every query and key. So the score scale is 1/√(d_c + d_r),
`attention`'s default, or `deepseek_softmax_scale` under YaRN.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import linear, normal
from posenc_lib.rotary.rope import RoPE, checked_rope


class LatentQueries(nn.Module):
    """The queries of latent attention: content and rotary channels, both from one latent.

    Equation: c^Q = W^DQ x,  q_h = [W^UQ_h c^Q ; R_m W^QR_h c^Q]      (deepseekv2 §2.1)
    Shapes: x (B, T, D), positions (T,) or (B, T) → q (B, H, T, d_c + d_r)

    The released models normalise the latent (RMSNorm) before it goes up; the equations
    don't.

    Args:
        width: D of the model.
        heads: H.
        latent: width of c^Q.
        content_dim: channels d_c of a head.
        rope: turns the rotary channels, d_r = twice the number of its frequencies.
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
        self.heads, self.rope = (
            _checks.whole_number("heads", heads, least=1),
            checked_rope("rope", rope),
        )
        self.down = _linear("width", width, "latent", latent, 1, std, generator)  # W^DQ
        self.up = _linear(
            "latent", latent, "content_dim", content_dim, heads, std, generator
        )  # W^UQ
        self.rotary = _linear(
            "latent",
            latent,
            "rotary",
            2 * rope.frequencies.shape[0],
            heads,
            std,
            generator,
        )  # W^QR

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        latent = self.down(_tokens("x", x, self.down.in_features))
        turned = _turned(
            self.rope, _by_head(self.rotary(latent), self.heads), positions
        )
        return torch.cat((_by_head(self.up(latent), self.heads), turned), -1)


class LatentKeys(nn.Module):
    """The keys and values of latent attention, in two steps: `forward` gives what a cache holds, `expand` the rest.

    Equation: c^KV = W^DKV x,  k^R = R_n W^KR x;  k_h = [W^UK_h c^KV ; k^R],  v_h =
        W^UV_h c^KV      (deepseekv2 §2.1)
    Shapes: x (B, T, D) → c^KV (B, T, d_kv), k^R (B, 1, T, d_r);  `expand` → k (B, H, T,
        d_c + d_r), v (B, H, T, d_v)

    k^R is one for all heads and comes from x, not from the latent: a rotation between
    W^UK and W^UQ would keep these from being multiplied into one matrix. The cache is
    d_kv + d_r numbers a token, whatever the number of heads.

    Args:
        width, heads, content_dim, rope, std, generator: as in `LatentQueries`.
        latent: width d_kv of c^KV.
        value_dim: channels d_v of a value.

    Raises:
        TypeError, ValueError: as `LatentQueries`.

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
        value_dim: int,
        rope: RoPE,
        std: float = 0.006,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.rope = (
            _checks.whole_number("heads", heads, least=1),
            checked_rope("rope", rope),
        )
        self.down = _linear(
            "width", width, "latent", latent, 1, std, generator
        )  # W^DKV
        self.rotary = _linear(
            "width", width, "rotary", 2 * rope.frequencies.shape[0], 1, std, generator
        )  # W^KR
        self.key_up = _linear(
            "latent", latent, "content_dim", content_dim, heads, std, generator
        )  # W^UK
        self.value_up = _linear(
            "latent", latent, "value_dim", value_dim, heads, std, generator
        )  # W^UV

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        tokens = _tokens("x", x, self.down.in_features)
        return self.down(tokens), _turned(
            self.rope, self.rotary(tokens)[:, None], positions
        )

    def expand(self, latent: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        content = _by_head(
            self.key_up(_tokens("latent", latent, self.key_up.in_features)), self.heads
        )
        wanted = (
            latent.shape[0],
            1,
            latent.shape[1],
            2 * self.rope.frequencies.shape[0],
        )
        if _checks.floating_tensor("rotary", rotary, least_dims=4).shape != wanted:
            raise ValueError(
                f"rotary must have shape (B, 1, T, d_r) = {wanted}, got "
                f"{tuple(rotary.shape)}"
            )
        key = torch.cat((content, rotary.expand(-1, self.heads, -1, -1)), -1)
        return key, _by_head(self.value_up(latent), self.heads)


def _linear(
    inputs_name: str,
    inputs: int,
    outputs_name: str,
    outputs: int,
    heads: int,
    std: float,
    generator: torch.Generator | None,
) -> nn.Linear:
    _checks.sizes(**{inputs_name: inputs, outputs_name: outputs})
    return linear(normal(heads * outputs, inputs, std=std, generator=generator))


def _tokens(name: str, x: Tensor, width: int) -> Tensor:
    if (
        _checks.floating_tensor(name, x, least_dims=3).dim() != 3
        or x.shape[-1] != width
    ):
        raise ValueError(
            f"{name} must have shape (B, T, {width}), got {tuple(x.shape)}"
        )
    return x


def _by_head(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], heads, -1).transpose(
        1, 2
    )  # (B, T, H·d) → (B, H, T, d)


def _turned(rope: RoPE, x: Tensor, positions: Tensor) -> Tensor:
    _checks.token_positions("positions", positions, batch=x.shape[0], length=x.shape[2])
    return rope(positions, _checks.at_least_float32(x.dtype))(x)
