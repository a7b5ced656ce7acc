"""Rotary embedding by the peers: functions of q and k, their tables made before."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
LLAMA = "transformers, Llama"

Peers = Iterator[tuple[str, str, Rotate]]


def rotations(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Peers:
    """(name, layout, function of q and k) of each installed peer.

    For q and k (B, H, T, d) at positions 0 … T − 1.
    """
    for peer in (_transformers, _x_transformers, _rotary_embedding_torch, _torchtune):
        yield from peer(shape, dtype, device)


def _transformers(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Peers:
    if importlib.util.find_spec("transformers") is None:
        return
    from transformers import LlamaConfig
    from transformers.models.gptj import modeling_gptj
    from transformers.models.llama import modeling_llama

    heads, length, dim = shape[1:]
    config = LlamaConfig(
        hidden_size=heads * dim, num_attention_heads=heads, rope_parameters=ROPE
    )
    tables = modeling_llama.LlamaRotaryEmbedding(config).to(device)
    cos, sin = tables(
        torch.empty(1, dtype=dtype, device=device),
        torch.arange(length, device=device)[None],
    )
    yield (
        LLAMA,
        "half",
        lambda q, k: modeling_llama.apply_rotary_pos_emb(q, k, cos, sin),
    )

    table = modeling_gptj.create_sinusoidal_positions(length, dim).to(
        device=device, dtype=dtype
    )[None]
    sines, cosines = table.chunk(2, -1)

    def gptj(x: Tensor) -> Tensor:
        return modeling_gptj.apply_rotary_pos_emb(
            x.transpose(1, 2), sines, cosines
        ).transpose(1, 2)

    yield "transformers, GPT-J", "interleaved", lambda q, k: (gptj(q), gptj(k))


def llama_layers(
    q: Tensor, *, count: int = 1
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Llama's table of positions (B, T), and q and k rotated in as many layers.

    None if it is absent.
    """
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama

    _, heads, _, dim = q.shape
    config = LlamaConfig(
        hidden_size=heads * dim, num_attention_heads=heads, rope_parameters=ROPE
    )
    module = modeling_llama.LlamaRotaryEmbedding(config).to(q.device)

    def rotated(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = module(q, positions)
        for _ in range(count):
            pair = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
        return pair

    return rotated


def _x_transformers(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Peers:
    if importlib.util.find_spec("x_transformers") is None:
        return
    from x_transformers import x_transformers

    freqs, scale = (
        x_transformers.RotaryEmbedding(shape[3])
        .to(device)
        .forward_from_seq_len(shape[2])
    )
    rotate = x_transformers.apply_rotary_pos_emb
    yield (
        "x-transformers",
        "interleaved",
        lambda q, k: (rotate(q, freqs, scale), rotate(k, freqs, scale)),
    )


def _rotary_embedding_torch(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Peers:
    if importlib.util.find_spec("rotary_embedding_torch") is None:
        return
    from rotary_embedding_torch import RotaryEmbedding

    rope = RotaryEmbedding(dim=shape[3]).to(device)
    # else a 16-bit q fills its cache wrongly
    rope.rotate_queries_or_keys(torch.empty(1, 1, *shape[2:], device=device))
    rotate = rope.rotate_queries_or_keys
    yield "rotary-embedding-torch", "interleaved", lambda q, k: (rotate(q), rotate(k))


def _torchtune(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Peers:
    module = _module_alone("torchtune", "modules/position_embeddings.py")
    if module is None:
        return
    rope = module.RotaryPositionalEmbeddings(shape[3], max_seq_len=shape[2]).to(device)
    yield (
        "torchtune",
        "interleaved",
        lambda q, k: tuple(rope(x.transpose(1, 2)).transpose(1, 2) for x in (q, k)),
    )


def _module_alone(package: str, path: str) -> ModuleType | None:
    """One file of a package whose import needs more packages than that file does."""
    parent = importlib.util.find_spec(package)
    if parent is None or not parent.submodule_search_locations:
        return None
    spec = spec_from_file_location(
        f"{package}_alone", Path(parent.submodule_search_locations[0]) / path
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
