"""Golden cases and example schemes of the variants of the rotation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from helpers import seeded
from torch import Tensor

from posenc_lib.frequencies import inverse_frequencies
from posenc_lib.positions import arange
from posenc_lib.rotary.rope import RoPE
from posenc_lib.rotary.variants import (
    CayleySTRING,
    FoPE,
    PoPE,
    XPos,
    grape,
)
from posenc_lib.scheme import PositionScheme

Case = dict[str, Any]
Fields = dict[str, Tensor]


def xpos_rotary_embedding_torch(p: Case, x: Case) -> Fields:
    positions = arange(p["length"])
    xpos = XPos(
        inverse_frequencies(p["dim"]),
        scale_base=p["xpos_scale_base"],
        centre=p["length"] // 2,
    )
    q, k = xpos.transform(
        torch.tensor(x["q"]), torch.tensor(x["k"]), positions, positions
    )
    scale = xpos.scales(positions).repeat_interleave(2, -1)
    return {"scale": scale, "q_out": q, "k_out": k, "logits": q @ k.mT}


def xpos_torchscale(p: Case, x: Case) -> Fields:
    # The peer's powers run from −⌈(L + offset)/2⌉, which is −centre at position 0.
    total = p["length"] + p["offset"]
    xpos = XPos(
        inverse_frequencies(p["head_dim"]),
        scale_base=p["scale_base"],
        centre=(total + 1) // 2,
    )
    positions = arange(p["length"], offset=p["offset"])
    q, k = xpos.transform(
        torch.tensor(x["q"])[:, None],
        torch.tensor(x["k"])[:, None],
        positions,
        positions,
    )
    return {"q_out": q[:, 0], "k_out": k[:, 0], "logits": (q @ k.mT)[:, 0]}


def pope_polar_xtransformers(p: Case, x: Case) -> Fields:
    pope = PoPE(p["dim"], heads=p["heads"])
    pope.load_state_dict({"phase": torch.tensor(x["learned_bias"])[:, 0]})
    positions, t = arange(p["length"]), torch.tensor(x["t"])
    with torch.no_grad():
        q, k = pope.transform(t, t, positions, positions)
    return {"query_side": q, "key_side": k}


ADAPTERS: dict[str, Callable[[Case, Case], Fields]] = {
    "pope_polar_xtransformers": pope_polar_xtransformers,
    "xpos_rotary_embedding_torch": xpos_rotary_embedding_torch,
    "xpos_torchscale": xpos_torchscale,
}

WIDTH, HEADS = 8, 4


def grape_transform(
    q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
) -> tuple[Tensor, Tensor]:
    """One learned plane, drawn from a seed."""
    a, b = torch.randn(2, WIDTH, generator=seeded(7))
    return grape(q, q_positions, a, b, frequency=0.3), grape(
        k, k_positions, a, b, frequency=0.3
    )


def fope(layout: str) -> FoPE:
    return FoPE(WIDTH, length=512, heads=HEADS, layout=layout, generator=seeded(7))


def started(module: CayleySTRING) -> CayleySTRING:
    """A basis away from the identity, where the module begins."""
    torch.nn.init.normal_(module.upper, generator=seeded(7))
    return module


def phased(module: PoPE) -> PoPE:
    """Phases between the ends of their range, where they begin."""
    torch.nn.init.uniform_(module.phase, -2, -1, generator=seeded(7))
    return module


ROPE = RoPE(inverse_frequencies(WIDTH))

SCHEMES: dict[str, PositionScheme] = {
    "xPos, half": PositionScheme(
        "xPos, half",
        transform=XPos(inverse_frequencies(WIDTH), layout="half").transform,
    ),
    "FoPE, half": PositionScheme("FoPE, half", transform=fope("half").transform),
    "GRAPE, one plane": PositionScheme("GRAPE", transform=grape_transform),
}

MIXED = "mixed tables are not a rotation"
NOT: dict[tuple[str, str], str] = {
    **{
        ("FoPE, half", p): MIXED
        for p in ("relative", "Toeplitz", "norm", "nothing at position zero")
    },
    **{(name, "decays with distance"): "its cosines turn back up" for name in SCHEMES},
    ("xPos, half", "norm"): "queries and keys are scaled by their positions",
}
