"""Other schemes under which trained weights are run, for texts that are longer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from posenc_lib.attention import log_length_temperature, sliding_window, tempered
from posenc_lib.rotary import RoPE
from posenc_lib.rotary.scaling import (
    Schedule,
    linear_interpolation,
    ntk_aware,
    ntk_by_parts,
    yarn,
)
from posenc_lib.scheme import PositionScheme

if TYPE_CHECKING:
    from posenc_lib.lab.settings import Settings

FACTORS = (2, 4, 8)

Method = Callable[["Settings", PositionScheme], PositionScheme]


def unchanged(settings: Settings, scheme: PositionScheme) -> PositionScheme:
    """The scheme of training.

    Args:
        settings: unused.
        scheme: of the trained model.

    Chapter: 21
    """
    return scheme


def windowed(
    settings: Settings, scheme: PositionScheme, *, size: float = 1.0
) -> PositionScheme:
    """The same scheme, with a window: keys further away than that are hidden.

    Equation: allowed(m, n) = |n − m| < s L

    Args:
        settings: of the model: trained length L.
        scheme: of the trained model.
        size: s, in trained lengths.

    Chapter: 12
    """
    mask = partial(sliding_window, size=int(size * settings.length))
    return replace(scheme, mask=mask)


def logarithmic(settings: Settings, scheme: PositionScheme) -> PositionScheme:
    """The same scheme, with queries that grow with the logarithm of their position.

    Equation: q_m ← q_m · max(1, ln(m + 1)/ln L)

    Args:
        settings: of the model: trained length L.
        scheme: of the trained model.

    Source: kexue8823
    Chapter: 12
    """
    temperature = partial(log_length_temperature, trained_length=settings.length)

    def transform(q: Tensor, k: Tensor, m: Tensor, n: Tensor, **hidden: Tensor) -> Any:
        if scheme.transform is not None:
            q, k = scheme.transform(q, k, m, n, **scheme.states("transform", hidden))
        return tempered(q, k, m, n, temperature=temperature)

    return replace(scheme, transform=transform)


def _with_schedule(
    settings: Settings,
    scheme: PositionScheme,
    *,
    schedule: Callable[[int, float, int], Schedule],
) -> PositionScheme:
    """RoPE with other frequencies; only RoPE on all channels has any."""
    if settings.scheme not in BASES:
        raise ValueError(
            f"scheme must be one of {', '.join(BASES)} for another schedule of "
            f"frequencies, got {settings.scheme!r}"
        )
    dim = settings.width // settings.heads
    rotary = RoPE(**schedule(dim, BASES[settings.scheme], settings.length)._asdict())
    return replace(scheme, transform=rotary.transform)


BASES = {"rope": 10000.0, "rope-100": 100.0}  # θ of the schemes that can be extended


def _schedules(s: int) -> dict[str, Callable[[int, float, int], Schedule]]:
    """The schedules for a factor s.

    YaRN's β = 32 belongs to models whose fastest pair makes hundreds of full turns
    within L. With L = 32 it makes five, and a ramp that ends at 32 turns spares no
    pair; β = 4 does.
    """
    return {
        f"PI {s}": lambda d, base, _: linear_interpolation(d, base, factor=s),
        f"NTK {s}": lambda d, base, _: ntk_aware(d, base, factor=s),
        f"YaRN {s}": lambda d, base, length: yarn(
            d, base, factor=s, original_length=length
        ),
        f"ramp {s}": lambda d, base, length: yarn(
            d, base, factor=s, original_length=length, beta=4.0
        ),
        f"step {s}": lambda d, base, length: ntk_by_parts(
            d, base, factor=s, original_length=length, beta=1.0
        ),
    }


SCHEDULED = tuple(name for s in FACTORS for name in _schedules(s))
# Names of tests. The number is the factor s, or the window in trained lengths.
METHODS: dict[str, Method] = {
    "as trained": unchanged,
    "window 1/2": partial(windowed, size=0.5),
    "window 1": windowed,
    "window 2": partial(windowed, size=2.0),
    "log n": logarithmic,
    **{
        name: partial(_with_schedule, schedule=schedule)
        for s in FACTORS
        for name, schedule in _schedules(s).items()
    },
}
