"""Stochastic positional encoding: a relative kernel as an average over noise.

Linear attention, which has no matrix of scores, can use it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from posenc_lib import _checks
from posenc_lib._draws import normal
from posenc_lib._torch import values_known


class _StochasticPositions(nn.Module):
    """What sineSPE and convSPE share: q̂_m = Σ_c q_mc Q̄_c(m),  k̂_n = Σ_c k_nc K̄_c(n).

    They differ in the codes Q̄ and K̄.
    """

    def transform(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        *,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Query and key, each as R realizations."""
        q_codes, k_codes = self.codes(q_positions, k_positions, noise)
        return (
            _realized("q", q, q_positions, q_codes),
            _realized("k", k, k_positions, k_codes),
        )

    def codes(
        self, q_positions: Tensor, k_positions: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class SineSPE(_StochasticPositions):
    """sineSPE: random sines of the position, whose correlation is a learned kernel.

    Equation: q̂_m = Σ_c q_mc Q̄_c(m),  k̂_n = Σ_c k_nc K̄_c(n),
        E[q̂_mᵀ k̂_n] / √R = Σ_c q_mc k_nc P_c(m − n) / √d,
        P_c(r) = Σ_j λ_cj² cos(2π f_cj r + θ_cj) / 2J
        (liutkus2021; normalised as in the released code)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, R), (B, H, Tk, R)

    The caller draws the noise and holds it: the same for queries and keys, in every
    layer or anew in each, for as long as a cache lives. With `partial(spe.transform,
    noise=noise)` as a scheme's transform, attention's own scale 1/√R is right. For
    linear attention apply the feature map to q̂ and k̂. No gate is included.

    Args:
        heads: H.
        head_dim: d.
        sines: J, for each channel. f = σ(frequencies)/2 and λ = softplus(gains) begin
            as in the released code.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1. When called: shapes that
            don't fit.

    Source: liutkus2021
    Checked: aliutkus/spe@1fb474afae5c:src/pytorch/spe/spe.py:SineSPE.forward
    Chapter: 18
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        sines: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.sizes(heads=heads, head_dim=head_dim, sines=sines)
        self.frequencies, self.offsets, self.gains = (
            normal(heads, head_dim, sines, std=1.0, generator=generator)
            for _ in range(3)
        )
        with torch.no_grad():
            self.frequencies.sub_(4)  # long wavelengths, for a long reach
            self.gains.mul_(2 / self.gains.norm(dim=-1, keepdim=True).sqrt())

    def draw(
        self, realizations: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Noise z ~ N(0, 1) for R realizations: (H, d, 2J, R)."""
        _checks.whole_number("realizations", realizations, least=1)
        heads, head_dim, sines = self.gains.shape
        shape = heads, head_dim, 2 * sines, realizations
        return _noise(*shape, like=self.gains, generator=generator)

    def kernel(self, relative_positions: Tensor) -> Tensor:
        """P_c(m − n), given n − m (key − query) of any shape S: (H, d, *S)."""
        r = _checks.position_tensor("relative_positions", relative_positions)
        r = r[..., None]  # (*S, 1)
        f, theta, power = (
            x.reshape(*x.shape[:2], *[1] * (r.dim() - 1), -1) for x in _sines(self)
        )
        precise = _checks.float64_on(r.device)
        angle = theta - 2 * math.pi * f.to(precise) * r.to(precise)
        return (power * angle.cos().to(power.dtype)).sum(-1).to(self.gains.dtype)

    def codes(
        self, q_positions: Tensor, k_positions: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Q̄ and K̄, R realizations of each: (H, d, T, R) or (B, H, d, T, R)."""
        f, theta, power = _sines(self)
        _check_noise(noise, power, least=2 * power.shape[2], most=2 * power.shape[2])
        scales = power.sqrt().repeat_interleave(2, -1)[..., None]  # (H, d, 2J, 1)
        amplitudes = scales * noise.to(power.dtype)  # (H, d, 2J, R)

        def code(name: str, positions: Tensor, offsets: Tensor | float) -> Tensor:
            p = _column(_checks.attention_positions(name, positions))
            # (H, d, T, J) or (B, H, d, T, J)
            phase = 2 * math.pi * f[:, :, None].to(p.dtype) * p + offsets
            sines = torch.stack((phase.cos(), phase.sin()), -1).flatten(-2)
            return sines.to(amplitudes.dtype) @ amplitudes

        return (
            code("q_positions", q_positions, theta[:, :, None]),
            code("k_positions", k_positions, 0.0),
        )


class ConvSPE(_StochasticPositions):
    """convSPE: noise along the positions, smoothed by two learned filters.

    Equation: Q̄_c(m) = Σ_p φ_cp z_c(m + p),  K̄_c(n) = Σ_p ψ_cp z_c(n + p),
        p = 0 … P−1;  then as in `SineSPE`, with P_c(r) = Σ_p φ_cp ψ_c,p+r,
        zero from |r| = P on      (liutkus2021)
    Shapes: q (B, H, Tq, d), k (B, H, Tk, d) → (B, H, Tq, R), (B, H, Tk, R)

    Args:
        heads: H.
        head_dim: d.
        kernel_size: P, the reach. The filters begin uniform in [0, √(2/P)), as in the
            released code.
        generator: of the draw.

    Raises:
        TypeError, ValueError: sizes that are not integers ≥ 1. When called: shapes that
            don't fit, positions that are not integers; on plain CPU tensors a position
            outside the noise.

    Source: liutkus2021
    Checked: aliutkus/spe@1fb474afae5c:src/pytorch/spe/spe.py:ConvSPE.forward
    Chapter: 18
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        kernel_size: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.sizes(heads=heads, head_dim=head_dim, kernel_size=kernel_size)

        def uniform() -> nn.Parameter:
            taps = torch.empty(heads, head_dim, kernel_size)
            most = (2 / kernel_size) ** 0.5
            return nn.Parameter(nn.init.uniform_(taps, 0, most, generator=generator))

        self.q_filter, self.k_filter = uniform(), uniform()

    def draw(
        self,
        length: int,
        realizations: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Noise z ~ N(0, 1) for positions 0 … length−1: (H, d, length + P − 1, R)."""
        _checks.sizes(length=length, realizations=realizations)
        heads, head_dim, size = self.q_filter.shape
        shape = heads, head_dim, length + size - 1, realizations
        return _noise(*shape, like=self.q_filter, generator=generator)

    def kernel(self, relative_positions: Tensor) -> Tensor:
        """P_c(m − n), given n − m (key − query) of any shape S: (H, d, *S)."""
        distance = -_checks.position_tensor("relative_positions", relative_positions)
        if distance.is_floating_point():
            raise TypeError(
                f"relative_positions must be integers, got {relative_positions.dtype}"
            )
        size = self.q_filter.shape[-1]
        padded = nn.functional.pad(self.k_filter, (size - 1, size))
        shifted = padded.unfold(-1, size, 1)  # (H, d, 2P, P)
        # Of m − n = −(P−1) … P; the last one is zero, as is P_c from there on.
        table = (shifted * self.q_filter[..., None, :]).sum(-1)
        index = torch.where(distance.abs() < size, distance + size - 1, 2 * size - 1)
        return table[..., index]

    def codes(
        self, q_positions: Tensor, k_positions: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Q̄ and K̄, R realizations of each: (H, d, T, R) or (B, H, d, T, R)."""
        _check_noise(noise, self.q_filter, least=self.q_filter.shape[2], most=None)

        return (
            _smoothed("q_positions", q_positions, noise, self.q_filter),
            _smoothed("k_positions", k_positions, noise, self.k_filter),
        )


def _smoothed(name: str, positions: Tensor, noise: Tensor, taps: Tensor) -> Tensor:
    """The noise, smoothed by a filter, at the positions."""
    length = noise.shape[2] - taps.shape[-1] + 1
    positions = _noise_positions(name, positions, length)
    channels = noise.to(taps.dtype).flatten(0, 1)  # (H·d, length + P − 1, R)
    channels = channels.movedim(-1, 0)  # (R, H·d, length + P − 1)
    smooth = nn.functional.conv1d(
        channels, taps.flatten(0, 1)[:, None], groups=channels.shape[1]
    )
    codes = smooth.reshape(-1, *taps.shape[:2], length)[..., positions]
    if positions.dim() == 1:
        return codes.movedim(0, -1)  # (R, H, d, T) → (H, d, T, R)
    return codes.movedim(3, 0).movedim(1, -1)  # (R, H, d, B, T) → (B, H, d, T, R)


def _noise(*shape: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    noise = torch.randn(shape, generator=generator, dtype=like.dtype, device="cpu")
    return noise.to(like.device)


def _check_noise(noise: Tensor, like: Tensor, *, least: int, most: int | None) -> None:
    heads, head_dim = like.shape[:2]
    shape = tuple(_checks.floating_tensor("noise", noise, least_dims=4).shape)
    if (
        len(shape) != 4
        or shape[:2] != (heads, head_dim)
        or shape[2] < least
        or (most is not None and shape[2] > most)
    ):
        raise ValueError(
            f"noise must be what draw(...) of this module gave, ({heads}, {head_dim}, "
            f"…, R); got {shape}"
        )


def _sines(spe: SineSPE) -> tuple[Tensor, Tensor, Tensor]:
    """f, θ and λ²/2J of sineSPE, in float32 at least."""
    compute = _checks.at_least_float32(spe.gains.dtype)
    frequencies, offsets, gains = (
        x.to(compute) for x in (spe.frequencies, spe.offsets, spe.gains)
    )
    power = nn.functional.softplus(gains).square() / (2 * gains.shape[-1])
    return frequencies.sigmoid() / 2, offsets, power


def _column(positions: Tensor) -> Tensor:
    """Positions as (T, 1) or (B, 1, 1, T, 1), to go with heads, channels and sines.

    They are in float64 where the device has it.
    """
    x = positions.to(_checks.float64_on(positions.device))
    return x[:, None] if x.dim() == 1 else x[:, None, None, :, None]


def _noise_positions(name: str, positions: Tensor, length: int) -> Tensor:
    """Positions as indices into noise that was drawn for 0 … length − 1."""
    positions = _checks.attention_positions(name, positions)
    if positions.is_floating_point():
        raise TypeError(
            f"{name} must be integers, positions in the noise; got {positions.dtype}"
        )
    outside = (positions < 0) | (positions >= length)
    if values_known(outside) and bool(outside.any()):
        raise ValueError(
            f"{name} must lie in 0 … {length - 1}, for which noise was drawn; got "
            f"{positions[outside][0].item()}"
        )
    return positions


def _realized(name: str, x: Tensor, positions: Tensor, code: Tensor) -> Tensor:
    """x (B, H, T, d) with a code (H, d, T, R) or (B, H, d, T, R) → (B, H, T, R)."""
    heads, head_dim = code.shape[-4:-2]
    _checks.floating_tensor(name, x, least_dims=4)
    if x.dim() != 4 or x.shape[1] != heads or x.shape[3] != head_dim:
        raise ValueError(
            f"{name} must have shape (B, {heads}, T, {head_dim}), got {tuple(x.shape)}"
        )
    _checks.token_positions(
        f"{name}_positions", positions, batch=x.shape[0], length=x.shape[2]
    )
    compute = _checks.at_least_float32(x.dtype, code.dtype)
    batch = "b" if code.dim() == 5 else ""
    encoded = torch.einsum(f"bhtc,{batch}hctr->bhtr", x.to(compute), code.to(compute))
    return (encoded / math.sqrt(math.sqrt(code.shape[-1] * head_dim))).to(x.dtype)
