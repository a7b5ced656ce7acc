"""Golden cases and example schemes of `posenc_lib.content`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from helpers import READING_HIDDEN_STATES, seeded
from torch import Tensor, nn

from posenc_lib.attention import attention, attention_weights, causal
from posenc_lib.bias import alibi, alibi_slopes
from posenc_lib.content import (
    DAPE,
    TUPE,
    CoPE,
    DeBERTa,
    ForgetGate,
    PaTH,
    RelativeLogits,
    Shaw,
    TransformerXL,
    contextual_positions,
    deberta_log_bucket,
    deberta_released_scores,
    deberta_v2_scores,
    relative_key_query_scores,
    relative_key_scores,
    relative_shift,
)
from posenc_lib.embedding import sinusoidal
from posenc_lib.positions import arange, relative
from posenc_lib.scheme import PositionScheme

Fields = dict[str, Tensor]
Case = dict[str, Any]


def double(value: Any) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def filled(module: nn.Module, **values: Tensor) -> Any:
    """The module in float64, with these parameters."""
    module = module.double()
    for name, value in values.items():
        parameter = module.get_parameter(name)
        assert parameter.shape == value.shape
        parameter.data.copy_(value)
    return module


# ---- Shaw


def bert_layer(p: Case, x: Case, scores: Callable[..., Tensor]) -> Fields:
    """BERT's self-attention.

    Its distance is query − key, so its table is ours with the rows reversed.
    """
    table = double(x["distance_embedding.weight"]).flip(0)
    hidden = double(x["hidden_states"])
    q, k, v = (
        (hidden @ double(x[f"{name}.weight"]).mT + double(x[f"{name}.bias"]))
        .unflatten(-1, (p["heads"], p["head_dim"]))
        .transpose(1, 2)
        for name in ("query", "key", "value")
    )
    scheme = PositionScheme(
        "BERT",
        scores=partial(scores, table=table, left=p["max_position_embeddings"] - 1),
    )
    positions = {
        "q_positions": arange(p["seq_len"]),
        "k_positions": arange(p["seq_len"]),
        "scheme": scheme,
    }
    return {
        "attention_probs": attention_weights(q, k, **positions),
        "output": attention(q, k, v, **positions).transpose(1, 2).flatten(-2),
    }


def shaw_bert_relative_key(p: Case, x: Case) -> Fields:
    return bert_layer(p, x, relative_key_scores)


def shaw_bert_relative_key_query(p: Case, x: Case) -> Fields:
    return bert_layer(p, x, relative_key_query_scores)


def shaw_relative_key_wav2vec2bert(p: Case, x: Case) -> Fields:
    q, table = torch.tensor(x["query"]), torch.tensor(x["distance_embedding"])
    assert (
        len(table)
        == p["left_max_position_embeddings"] + 1 + p["right_max_position_embeddings"]
    )
    positions, left = arange(q.shape[2]), p["left_max_position_embeddings"]
    no_content = torch.zeros_like(q)  # the peer returns the relative term alone
    return {
        "position_bias": relative_key_scores(
            q, no_content, positions, positions, table=table, left=left
        )
        * p["scaling"]
    }


# ---- Transformer-XL and its shift


def transformer_xl_rel_shift(p: Case, x: Case) -> Fields:
    shifted = relative_shift(torch.tensor(x["x"]).permute(2, 3, 0, 1)).permute(
        2, 3, 0, 1
    )  # the peer: (q, k, B, H)
    allowed = causal(arange(p["qlen"], offset=p["klen"] - p["qlen"]), arange(p["klen"]))
    assert torch.equal(allowed.long(), torch.tensor(x["causal_valid_mask"]))
    return {
        "shifted": shifted,
        "shifted_zero_triu": shifted * allowed[:, :, None, None],
    }


def transformer_xl_rel_attention(p: Case, x: Case) -> Fields:
    """The whole layer.

    Its R is random, so the distances are shifted into place as in the peer.
    """
    assert p["mem_len"] == 0
    heads, dim, positions = p["n_head"], p["d_head"], arange(p["qlen"])
    tokens = double(x["w"]).transpose(0, 1)  # (B, T, D)

    def split(y: Tensor) -> Tensor:
        return y.unflatten(-1, (heads, dim)).transpose(-3, -2)

    q, k, v = (split(y) for y in (tokens @ double(x["qkv_net"]).mT).chunk(3, -1))
    of_distance = split(double(x["r"]) @ double(x["r_net"]).mT)  # (H, K, d)
    content = filled(
        TransformerXL(heads, dim, 2),
        u=double(x["r_w_bias"]),
        v=double(x["r_r_bias"]),
        weight=torch.zeros(heads * dim, 2).double(),
    )

    def scores(q: Tensor, k: Tensor, m: Tensor, n: Tensor) -> Tensor:
        by_distance = (q + content.v[:, None]) @ of_distance.mT
        return content.scores(q, k, m, n) + relative_shift(by_distance)

    allowed = causal(positions, positions)
    assert torch.equal(~allowed, torch.tensor(x["attn_mask_true_is_masked"]).bool())
    scheme = PositionScheme("Transformer-XL", scores=scores)
    out = attention(
        q,
        k,
        v,
        q_positions=positions,
        k_positions=positions,
        scheme=scheme,
        mask=allowed,
    )
    mixed = tokens + out.transpose(1, 2).flatten(-2) @ double(x["o_net"]).mT
    return {
        "output": nn.functional.layer_norm(mixed, (p["d_model"],), eps=1e-5).transpose(
            0, 1
        )
    }


def xlnet_rel_shift_bnij(p: Case, x: Case) -> Fields:
    return {"shifted": relative_shift(torch.tensor(x["x"])[..., 1:])[..., : p["klen"]]}


def parakeet_rel_shift(p: Case, x: Case) -> Fields:
    shifted = relative_shift(torch.tensor(x["x"]))
    return {"shifted": shifted, "shifted_first_L_columns": shifted[..., : p["length"]]}


def music_transformer_skew(p: Case, x: Case) -> Fields:
    skewed, positions = relative_shift(torch.tensor(x["QEr"])), arange(p["length"])
    return {
        "Srel": skewed,
        "Srel_causal": skewed.masked_fill(~causal(positions, positions), 0),
    }


def conformer_relative_position(p: Case, x: Case) -> Fields:
    heads, dim, length = p["heads"], p["head_dim"], p["length"]
    weight = double(x["linear_pos_weight"])
    halves = torch.cat(
        (torch.arange(0, heads * dim, 2), torch.arange(1, heads * dim, 2))
    )  # its sinusoid is interleaved
    layer = filled(
        TransformerXL(heads, dim, heads * dim),
        u=double(x["pos_bias_u"]),
        v=double(x["pos_bias_v"]),
        weight=weight[:, halves],
    )
    q, positions = double(x["query"]), arange(length)
    # Unit vectors as keys show q + u itself, zeros leave the term of the distance
    # alone.
    units = torch.eye(dim, dtype=torch.float64).expand(*q.shape[:2], -1, -1)
    far = torch.full((dim,), 0)
    distances = length - 1 - arange(2 * length - 1)
    silent = filled(layer_like(layer), u=layer.u.detach())
    return {
        "relative_position_embeddings": sinusoidal(distances, heads * dim)[None],
        "query_plus_u": silent.scores(q, units, positions, far),
        "position_scores": layer.scores(q, torch.zeros_like(q), positions, positions)
        * dim**-0.5,
    }


def layer_like(layer: TransformerXL) -> TransformerXL:
    """A layer of the same sizes whose parameters are all 0."""
    other = TransformerXL(*layer.u.shape, layer.dim)
    for parameter in other.parameters():
        parameter.data.zero_()
    return other


# ---- DeBERTa


def deberta_v2_build_relative_position(p: Case, x: Case) -> Fields:
    assert p["bucket_size"] == p["max_position"] == -1  # no buckets
    return {
        "relative_pos": -relative(arange(p["query_size"]), arange(p["key_size"]))[None]
    }


def deberta_v2_log_bucket(p: Case, x: Case) -> Fields:
    distance = torch.arange(*x["relative_pos"]["arange"])
    bucket = deberta_log_bucket(
        distance, num_buckets=p["bucket_size"], max_distance=p["max_position"]
    )
    return {"bucket": bucket, "float64_formula": bucket}


def deberta_v2_disentangled_bias(p: Case, x: Case) -> Fields:
    assert p["att_span"] == p["position_buckets"]
    assert p["scale_factor"] == 3
    heads = p["heads"]
    q, k = (
        double(x[name])[None] for name in ("query_layer", "key_layer")
    )  # the peer folds batch and heads into one
    keys, queries = (
        (
            double(x["rel_embeddings"]) @ double(x[f"{name}.weight"]).mT
            + double(x[f"{name}.bias"])
        )
        .unflatten(-1, (heads, -1))
        .transpose(0, 1)
        for name in ("key_proj", "query_proj")
    )
    positions = arange(q.shape[2])
    scores = deberta_v2_scores(
        q,
        k,
        positions,
        positions,
        position_keys=keys,
        position_queries=queries,
        max_distance=p["max_relative_positions"],
    )
    return {"bias": (scores - q @ k.mT)[0] * (3 * p["head_dim"]) ** -0.5}


# ---- contextual positions


def cope_xtransformers(p: Case, x: Case) -> Fields:
    assert not p["soft_onehot"]
    assert not p["talking_heads"]
    cope = filled(CoPE(p["dim"], p["max_pos"]), table=double(x["pos_emb"]))
    q, positions = double(x["query"]), arange(len(x["query"][0][0]))
    return {
        "cope_logits": cope.interpolate(
            q, contextual_positions(double(x["attn_logits"]), positions, positions)
        )
    }


def data_dependent_alibi_xtransformers(p: Case, x: Case) -> Fields:
    assert p["causal"]
    gate = filled(
        ForgetGate(p["dim"], p["heads"]),
        weight=double(x["weight"]),
        bias=double(x["bias"]),
    )
    k_x, positions = double(x["x"]), arange(len(x["x"][0]))
    return {"bias_out": gate(positions, positions, k_x=k_x)}


ADAPTERS: dict[str, Callable[[Case, Case], Fields]] = {
    "conformer_relative_position": conformer_relative_position,
    "cope_xtransformers": cope_xtransformers,
    "data_dependent_alibi_xtransformers": data_dependent_alibi_xtransformers,
    "deberta_v2_build_relative_position": deberta_v2_build_relative_position,
    "deberta_v2_disentangled_bias": deberta_v2_disentangled_bias,
    "deberta_v2_log_bucket_b256_m512": deberta_v2_log_bucket,
    "deberta_v2_log_bucket_b32_m128": deberta_v2_log_bucket,
    "music_transformer_skew": music_transformer_skew,
    "parakeet_rel_shift": parakeet_rel_shift,
    "shaw_bert_relative_key": shaw_bert_relative_key,
    "shaw_bert_relative_key_query": shaw_bert_relative_key_query,
    "shaw_relative_key_wav2vec2bert": shaw_relative_key_wav2vec2bert,
    "transformer_xl_rel_attention": transformer_xl_rel_attention,
    "transformer_xl_rel_shift": transformer_xl_rel_shift,
    "xlnet_rel_shift_bnij": xlnet_rel_shift_bnij,
}

COUNTS_ON = (
    "the peer counts on past max_distance; ours stops at ±num_buckets, "
    "where δ cuts both off"
)


def cut_off(theirs: Tensor, p: Case) -> Tensor:
    return theirs.clamp(-p["bucket_size"], p["bucket_size"])


CORRECTED: dict[str, tuple[str, Callable[[Tensor, Case], Tensor]]] = {
    "deberta_v2_log_bucket_b32_m128:bucket": (COUNTS_ON, cut_off),
    "deberta_v2_log_bucket_b32_m128:float64_formula": (COUNTS_ON, cut_off),
}


# ---- examples: 4 heads of 8 channels, hidden states of width 8, all in float64

HEADS, WIDTH = 4, 8


def example_cope() -> CoPE:
    cope = CoPE(WIDTH, 6).double()
    nn.init.normal_(cope.table, generator=seeded(5))
    return cope


def example_tupe() -> TUPE:
    tupe = TUPE(2048, WIDTH, HEADS, WIDTH, std=1.0, generator=seeded(4)).double()
    nn.init.normal_(tupe.theta, generator=seeded(40))
    return tupe


shaw = Shaw(WIDTH, 3, generator=seeded(1)).double()
xl = TransformerXL(HEADS, WIDTH, WIDTH, std=0.5, generator=seeded(2)).double()
deberta = DeBERTa(HEADS, WIDTH, WIDTH, 4, std=0.5, generator=seeded(3)).double()
position_keys, position_queries = (table.detach() for table in deberta.tables())
tables = {"position_keys": position_keys, "position_queries": position_queries}
dape = DAPE(
    HEADS,
    partial(alibi, slopes=alibi_slopes(HEADS), dtype=torch.float64),
    generator=seeded(6),
).double()
forget = ForgetGate(WIDTH, HEADS, std=0.5, generator=seeded(7)).double()
path = PaTH(WIDTH, HEADS, WIDTH, rank=4, std=0.5, generator=seeded(8)).double()
curves = RelativeLogits(WIDTH, HEADS, 5, rank=3, std=0.5, generator=seeded(9)).double()
untied, thirds = (2 * WIDTH) ** -0.5, (3 * WIDTH) ** -0.5

SCHEMES: dict[str, PositionScheme] = {
    "Shaw's relative vectors": PositionScheme(
        "Shaw's relative vectors", scores=shaw.scores, values=shaw.values
    ),
    "Shaw's key term alone": PositionScheme(
        "Shaw's key term alone", scores=shaw.scores
    ),
    "BERT's relative_key_query": PositionScheme(
        "BERT's relative_key_query",
        scores=partial(
            relative_key_query_scores, table=shaw.key_table.detach(), left=3
        ),
    ),
    "Transformer-XL": PositionScheme("Transformer-XL", scores=xl.scores),
    "DeBERTa, as in the paper": PositionScheme(
        "DeBERTa, as in the paper", scores=deberta.scores, scale=thirds
    ),
    "DeBERTa, as released": PositionScheme(
        "DeBERTa, as released",
        scores=partial(deberta_released_scores, **tables),
        scale=thirds,
    ),
    "DeBERTa-v2": PositionScheme(
        "DeBERTa-v2",
        scores=partial(deberta_v2_scores, **tables, max_distance=6),
        scale=thirds,
    ),
    "TUPE": PositionScheme("TUPE", bias=example_tupe(), scale=untied),
    "CoPE": PositionScheme("CoPE", scores=example_cope().scores),
    "DAPE": PositionScheme("DAPE", scores=dape.scores, scale=1.0),
    "Forgetting Transformer": PositionScheme("Forgetting Transformer", bias=forget),
    "PaTH": PositionScheme("PaTH", scores=path.scores),
    "Relative logits": PositionScheme("Relative logits", bias=curves),
}

# These need hidden states: `attention(..., q_x=…, k_x=…)`, each of shape (B, T, WIDTH).
HIDDEN: frozenset[str] = frozenset(
    {"Forgetting Transformer", "PaTH", "Relative logits"}
)

NOT: dict[tuple[str, str], str] = {
    **{("TUPE", p): "its positions are absolute" for p in ("relative", "Toeplitz")},
    **{
        (
            name,
            "blind to order when positions move along",
        ): "it counts or sums along the tokens, in their order"
        for name in ("CoPE", "Forgetting Transformer", "PaTH")
    },
    (
        "Shaw's relative vectors",
        "nothing at position zero",
    ): "distance 0 has a vector too, which is added to every value",
    ("TUPE", "nothing at position zero"): "the scores are divided by √(2d)",
    ("CoPE", "nothing at position zero"): "it counts open gates, not positions",
    (
        "DAPE",
        "nothing at position zero",
    ): "a network of the scores is added, whatever the distance",
    **{
        (
            name,
            "nothing at position zero",
        ): "distance 0 has a vector too, which meets the content of the key"
        for name in (
            "BERT's relative_key_query",
            "Transformer-XL",
            "DeBERTa, as in the paper",
            "DeBERTa, as released",
            "DeBERTa-v2",
        )
    },
    **{
        (name, "decays with distance"): "what the distance does is learned"
        for name in SCHEMES
        if name != "Forgetting Transformer"
    },
}


def unit(x: Tensor) -> Tensor:
    return nn.functional.normalize(x, dim=-1)


READING_HIDDEN_STATES.update(SCHEMES[name].name for name in HIDDEN)
