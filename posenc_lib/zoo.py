"""The zoo: every encoding of this library in one table, from the objects themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from posenc_lib import (
    attention,
    bias,
    content,
    embedding,
    frequencies,
    layers,
    multimodal_positions,
    positions,
    rotary,
    scheme,
)
from posenc_lib.scheme import NOPE, PositionScheme


@dataclass(frozen=True, eq=False)
class Entry:
    """An encoding as a row of the zoo.

    In `parameters` and `cost`: n tokens, width D, H heads of d channels, L trained
    positions. The cost is the work in one layer beside plain attention's n² D.

    Args:
        name: what people call it.
        where: a small example of it, whose places are the column "where"; or the place
            in words, where no scheme can hold it.
        source: the object whose docstring holds the equation, the citation and the
            chapter.
        parameters: how many are trained.
        cost: work beside plain attention.
        used_by: published models that use it; empty where we know of none.
        golden: beginnings of the names of the golden cases in tests/oracles that it is
            checked against.
        equation: its own, where the docstring of `source` states that of more than this
            encoding.

    Chapter: zoo
    """

    name: str
    where: PositionScheme | str
    source: Callable[..., Any] | type
    parameters: str
    cost: str
    used_by: str = ""
    golden: tuple[str, ...] = ()
    equation: str = ""


# Encodings whose equation we could not establish: the arXiv number, and what is
# missing.
OPEN: dict[str, tuple[str, str]] = {
    "BAM": (
        "2505.22842",
        "the parametrisation of its prior over distances was not at hand",
    ),
    "CABLE, bidirectional": (
        "2503.08067",
        "the form for keys after the query was not found; the causal one is here",
    ),
    "CARoPE": (
        "2507.23083",
        "the exact function that bounds its input-dependent steps was not found",
    ),
    "Circle-RoPE": (
        "2505.16416",
        "the projection of image coordinates onto its circle was not at hand",
    ),
    "ComRoPE-AP": (
        "2506.03737",
        "its axial form; the one with linearly dependent matrices is here",
    ),
    "FLT": (
        "2302.01925",
        "which of its learnable Fourier transforms its experiments use",
    ),
    "GRAPE, additive and contextual": (
        "2512.07805",
        "these two forms; the multiplicative one is here",
    ),
    "HoPE (high-frequency)": (
        "2410.21216",
        "the cut-off below which frequencies are dropped was not found",
    ),
    "HoPE (vision and language)": (
        "2505.20444",
        "its allocation of frequencies and its scaling of time",
    ),
    "iRPE on quantised distances": (
        "2107.14222",
        "how distances are ranked; its other three methods are here",
    ),
    "LRPE": ("2307.09270", "which of its unitary families its experiments use"),
    "MHRoPE": (
        "2510.23095",
        "how heads are shared among axes; the interleaved form of that paper is here",
    ),
    "nD-RoPE": ("2606.12146", "its directions and frequencies were not at hand"),
    "PaPE": ("2602.01418", "its equation was not at hand"),
    "PermuteFormer": ("2109.02377", "how its permutations are drawn"),
    "RoPE-ID": (
        "2603.18017",
        "the spacing of its frequencies and its temperature are missing",
    ),
    "Selective RoPE": (
        "2511.17388",
        "the paper's choice among its options was not at hand",
    ),
    "Spiral RoPE": ("2602.03227", "its directions and frequencies were not at hand"),
    "SSMax with a bias": (
        "2501.19399",
        "where its bias enters; the form without one is here",
    ),
    "VRoPE": ("2502.11664", "its rotation of video coordinates was not at hand"),
}

# What else people call an encoding, for those who look for it by that name.
ALSO: dict[str, str] = {
    "Position interpolation": "PI, linear scaling",
    "Sinusoidal": "absolute, the encoding of Attention Is All You Need",
    "Sinusoidal, 2-D": "2-D sincos",
    "Learned absolute": "absolute, APE, wpe",
    "CPE (PEG)": "conditional positional encoding",
    "RoPE, interleaved": "rotary position embedding, GPT-J style",
    "RoPE, half layout": "rotate_half, rotary in GPT-NeoX style",
    "RoPE, partial": "partial rotary",
    "Decoupled RoPE (MLA)": "multi-head latent attention",
    "PoPE": "polar coordinate position embedding",
    "Cayley-STRING": "STRING",
    "Dynamic NTK": "dynamic scaling",
    "NTK-aware": "NTK scaling, adjusted base",
    "p-RoPE": "proportional RoPE",
    "Clipped RoPE": "CoPE, as its paper of 2026 calls it",
    "Axial RoPE": "rotary 2-D, RoPE-2D, vision RoPE",
    "Mixed RoPE": "rotary 2-D, RoPE-Mixed",
    "Pixtral's RoPE": "rotary 2-D",
    "DINOv3's RoPE": "rotary 2-D",
    "Golden-gate RoPE": "rotary 2-D",
    "M-RoPE, in sections": "multimodal RoPE",
    "M-RoPE, interleaved": "multimodal RoPE, interleaved MRoPE",
    "T5 bias": "bucketed relative position bias",
    "ALiBi": "attention with linear biases",
    "FIRE": "functional interpolation",
    "Network of the distance": "continuous or dynamic position bias",
    "Swin's bias": "relative position bias table",
    "Shaw's relative vectors": "relative position representations, RPR",
    "CoPE": "contextual position encoding",
    "Forgetting Transformer": "FoX, data-dependent ALiBi",
    "Self-Extend": "grouped attention",
    "Dual chunk attention": "DCA",
    "LM-Infinite": "Λ-shaped mask",
    "StreamingLLM's positions": "attention sinks",
    "Sliding window": "SWA, local attention",
    "Kernel attention with relative bias": "NPRF, Toeplitz",
    "Command's layers": "RNoPE-SWA",
}


def encodings() -> tuple[Entry, ...]:
    """All encodings of the library, place by place.

    Shapes: → one `Entry` for each encoding

    Chapter: zoo
    """
    return (
        Entry(
            "NoPE",
            NOPE,
            PositionScheme,
            "0",
            "none",
            "some layers of Llama 4, SmolLM3 and Cohere models",
            equation="e_mn = q_mᵀ k_n / √d: no term for position; only a causal mask tells order",
        ),
        *_positions(),
        *_embeddings(),
        *_rotary(),
        *_schedules(),
        *_axes(),
        *_biases(),
        *_images(),
        *_content(),
        *_long_context(),
        *_linear(),
        *_layers(),
    )


def _draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _at(**places: Any) -> PositionScheme:
    """An example scheme that fills these places."""
    return PositionScheme("example", **places)


def _rope(schedule: rotary.Schedule) -> PositionScheme:
    return _at(transform=rotary.RoPE(**schedule._asdict()).transform)


def _positions() -> tuple[Entry, ...]:
    place, mixed = "position", multimodal_positions
    return (
        Entry(
            "Randomised positions",
            place,
            positions.randomised,
            "0",
            "one draw of O(L log L) for a batch",
        ),
        Entry(
            "Abacus",
            place,
            positions.abacus,
            "0 beside the table that they index",
            "O(n)",
        ),
        Entry("Position coupling", place, positions.coupled_addition, "0", "O(n)"),
        Entry(
            "Tree positions",
            place,
            positions.tree_positions,
            "0",
            "O(n)",
            "SpecInfer, Medusa (draft tokens)",
        ),
        Entry(
            "Merged grid",
            place,
            positions.merged_grid,
            "0",
            "O(n)",
            "the image encoder of Qwen2-VL",
        ),
        Entry("Resized grid", place, positions.resized_grid, "0", "O(n)", "EVA-02"),
        Entry("Centred grid", place, positions.centred_grid, "0", "O(n)", "DINOv3"),
        Entry(
            "Jittered coordinates",
            place,
            positions.jittered,
            "0",
            "O(n), in training only",
            "DINOv3",
        ),
        Entry(
            "M-RoPE positions",
            place,
            mixed.mrope_positions,
            "0",
            "O(n)",
            "Qwen2-VL, Qwen2.5-VL",
            ("mrope_position_ids_qwen2_vl", "mrope_position_ids_qwen2_5_vl"),
        ),
        Entry(
            "Timestamps as text",
            place,
            mixed.timestamped,
            "0",
            "a few text tokens a frame",
            "Qwen3-VL",
            ("mrope_position_ids_qwen3_vl",),
        ),
        Entry(
            "TMRoPE",
            place,
            mixed.audio_video_block,
            "0",
            "O(n)",
            "Qwen2.5-Omni",
            ("tmrope_position_ids",),
        ),
        Entry("VideoRoPE positions", place, mixed.videorope_positions, "0", "O(n)"),
    )


def _embeddings() -> tuple[Entry, ...]:
    once = "n D additions, before the first layer"
    sines = f"O(n D) sines, {once}"
    nodes = "on the graph's nodes"
    matrix = embedding.gaussian_matrix(4, 1, std=1.0, generator=_draw())
    return (
        Entry(
            "Sinusoidal",
            scheme.sinusoidal(8),
            embedding.sinusoidal,
            "0",
            sines,
            "the paper of 2017, Marian, Transformer-XL (of distances); an option in "
            "XLM's code",
            (
                "sinusoidal_interleaved",
                "sinusoidal_concat_marian",
                "sinusoidal_concat_transformerxl",
                "sinusoidal_scaled",
            ),
        ),
        Entry(
            "Sinusoidal, tensor2tensor",
            _at(embedding=partial(embedding.sinusoidal_tensor2tensor, dim=8)),
            embedding.sinusoidal_tensor2tensor,
            "0",
            sines,
            "fairseq models, Whisper, M2M-100, XGLM, Speech2Text",
            tuple(
                f"sinusoidal_concat_{peer}"
                for peer in ("fairseq", "whisper", "m2m100", "xglm", "speech2text")
            ),
        ),
        Entry(
            "Learned absolute",
            scheme.learned(16, 8, generator=_draw()),
            embedding.LearnedEmbedding,
            "L D",
            once,
            "BERT, RoBERTa (from padding_idx + 1), GPT-2, OPT (from 2)",
            ("learned_offset_opt", "position_ids_roberta"),
        ),
        Entry(
            "NeRF features",
            _at(embedding=partial(embedding.nerf, count=4)),
            embedding.nerf,
            "0",
            "O(n D) sines",
            "NeRF",
        ),
        Entry(
            "Random Fourier features",
            _at(embedding=partial(embedding.random_fourier, matrix=matrix)),
            embedding.random_fourier,
            "0: its matrix is drawn once and frozen",
            "O(n D) sines",
            golden=("gaussian_fourier_diffusers",),
        ),
        Entry(
            "Perceiver features",
            _at(
                embedding=partial(
                    embedding.perceiver_fourier, count=4, max_resolution=(16.0,)
                )
            ),
            embedding.perceiver_fourier,
            "0",
            "O(n D) sines",
            "Perceiver",
            ("fourier_perceiver",),
        ),
        Entry(
            "Learnable Fourier features",
            _at(
                embedding=embedding.LearnableFourier(
                    8, axes=2, features=8, hidden=8, generator=_draw()
                )
            ),
            embedding.LearnableFourier,
            "F A/2 + h (F + 1) + D (h + 1) for A axes, F features, h hidden units",
            "O(n h (F + D))",
        ),
        Entry(
            "Timestep embedding",
            _at(
                embedding=partial(
                    embedding.timestep, dim=8, shift=0.0, cosine_first=True
                )
            ),
            embedding.timestep,
            "0",
            "one vector for an image",
            "diffusion models since DDPM",
            ("timestep_embedding_diffusers",),
        ),
        Entry(
            "Sinusoidal, 2-D",
            _at(embedding=partial(embedding.sinusoidal_grid, dim=8)),
            embedding.sinusoidal_grid,
            "0",
            sines,
            "MAE",
            ("sincos2d_",),
        ),
        Entry(
            "Learned grid",
            _at(embedding=embedding.LearnedGrid((4, 4), 8, generator=_draw())),
            embedding.LearnedGrid,
            "L D, L places of the grid",
            once,
            "ViT",
        ),
        Entry(
            "Resized learned grid",
            "embedding, at another image size",
            embedding.resize_grid,
            "those of the grid",
            "16 n D, once for an image size",
            "ViT",
            ("learned_2d_bicubic",),
        ),
        Entry(
            "CPE (PEG)",
            "embedding, from the tokens' neighbours",
            embedding.PEG,
            "(k² + 1) D for a k × k filter",
            "k² n D",
            "CPVT, Twins",
        ),
        Entry(
            "Convolutional embedding",
            "embedding, from the frames' neighbours",
            embedding.ConvolutionalEmbedding,
            "k D²/g + D + k for k taps in g groups",
            "k n D²/g",
            "wav2vec 2.0",
        ),
        Entry(
            "Laplacian eigenvectors",
            f"embedding, {nodes}",
            embedding.laplacian_eigenvectors,
            "0",
            "O(n³), once",
        ),
        Entry(
            "SignNet",
            f"embedding, {nodes}",
            embedding.signnet,
            "those of its two networks",
            "2 k passes of one",
        ),
        Entry(
            "Random walk",
            f"embedding, {nodes}",
            embedding.random_walk,
            "0",
            "O(k n³), once",
        ),
    )


def _rotary() -> tuple[Entry, ...]:
    series, turn = (
        frequencies.inverse_frequencies(8),
        "6 n D, 3 d for each query and key",
    )
    rope = rotary.RoPE(series)

    def grape(
        q: torch.Tensor, k: torch.Tensor, m: torch.Tensor, n: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = torch.eye(8)[:2]
        return rotary.grape(q, m, a, b), rotary.grape(k, n, a, b)

    return (
        Entry(
            "RoPE, interleaved",
            scheme.rope(8),
            rotary.RoPE,
            "0",
            turn,
            "RoFormer, Llama in Meta's code, Cohere",
            (
                "rope_complex_interleaved_llama_official",
                "rope_interleaved",
                "rope_diffusers",
                "rope_rotary_embedding",
            ),
        ),
        Entry(
            "RoPE, half layout",
            scheme.rope(8, layout="half"),
            rotary.convert_layout,
            "0",
            turn,
            "Llama, Qwen, Mistral and Gemma in transformers",
            ("rope_half_split",),
        ),
        Entry(
            "RoPE, partial",
            scheme.rope(8, rotary_dim=4),
            rotary.RoPE,
            "0",
            "6 n H r, for the first r channels of each head",
            "GPT-J and CodeGen (interleaved), GPT-NeoX (half), GLM (interleaved)",
            (
                "rope_partial",
                "rope_interleaved_gptj_partial",
                "rope_interleaved_codegen_partial",
            ),
            "R_m turns channels 0 … r−1 of d, ω_i = θ^(−2i/r), i = 0 … r/2−1; the "
            "others pass unchanged",
        ),
        Entry(
            "Decoupled RoPE (MLA)",
            "transform, of r more channels",
            rotary.LatentKeys,
            "D r for the one rotary key, beside D c + c H (d + d_v) for keys and "
            "values from c latent channels",
            "the score has r more channels a head; the cache holds c + r numbers a "
            "token",
            "DeepSeek-V2, DeepSeek-V3",
            ("mla_decoupled_rope",),
        ),
        Entry(
            "xPos",
            _at(transform=rotary.XPos(series).transform),
            rotary.XPos,
            "0",
            "8 n D",
            golden=("xpos_",),
        ),
        Entry(
            "RoPER",
            _at(
                transform=rope.transform,
                values=partial(rotary.rotated_values, rope=rope),
            ),
            rotary.rotated_values,
            "0",
            "12 n D: RoPE's, and as much for values and sums",
        ),
        Entry(
            "PoPE",
            _at(transform=rotary.PoPE(8, heads=4).transform),
            rotary.PoPE,
            "D",
            "n² D more: the score has 2 d channels a head",
            golden=("pope_polar",),
        ),
        Entry(
            "LieRE",
            _at(
                transform=rotary.LieRE(8, axes=1, block=4, generator=_draw()).transform
            ),
            rotary.LieRE,
            "A d (b − 1)/2 for A axes and blocks of b channels",
            "n matrix exponentials of d/b blocks, O(n d b²), and O(n D b)",
        ),
        Entry(
            "ComRoPE, linearly dependent",
            _at(
                transform=rotary.ComRoPE(
                    8, axes=1, block=4, heads=4, generator=_draw()
                ).transform
            ),
            rotary.ComRoPE,
            "D (b − 1)/2 + A d/b for A axes and blocks of b channels",
            "n matrix exponentials of D/b blocks, O(n D b²)",
        ),
        Entry(
            "Cayley-STRING",
            _at(transform=rotary.CayleySTRING(8, rope.transform).transform),
            rotary.CayleySTRING,
            "d (d − 1)/2",
            "2 n D d beside the rotation; none where P is folded into the projections",
        ),
        Entry(
            "FoPE",
            _at(
                transform=rotary.FoPE(
                    8, length=512, heads=4, generator=_draw()
                ).transform
            ),
            rotary.FoPE,
            "2 H K² for the K pairs that turn within L",
            "O(n H K²) for the tables, and RoPE's 6 n D",
        ),
        Entry(
            "RePo",
            _at(
                transform=rotary.RePo(8, 4, rope, latent=4, generator=_draw()).transform
            ),
            rotary.RePo,
            "r (2 D + H) for r latent channels",
            "O(n r (D + H)) for the positions, and RoPE's 6 n D",
        ),
        Entry(
            "GRAPE, multiplicative",
            _at(transform=grape),
            rotary.grape,
            "2 d a plane",
            "O(n d) a plane and head",
        ),
        Entry(
            "TAPA", _at(scores=rotary.tapa), rotary.tapa, "0", "n² H powers and cosines"
        ),
    )


def _schedules() -> tuple[Entry, ...]:
    same = "6 n D, as plain RoPE"
    longrope = partial(
        rotary.longrope, short_factors=[1.0] * 4, long_factors=[2.0] * 4, length=128
    )
    return (
        Entry(
            "Position interpolation",
            _rope(rotary.linear_interpolation(8, 1e4, factor=4.0)),
            rotary.linear_interpolation,
            "0",
            same,
            "the global layers of Gemma 3 from 4B on",
            ("rope_linear",),
        ),
        Entry(
            "NTK-aware",
            _rope(rotary.ntk_aware(8, 1e4, factor=4.0)),
            rotary.ntk_aware,
            "0",
            same,
            golden=("rope_ntk_theta_rescale", "rope_xtransformers"),
        ),
        Entry(
            "Dynamic NTK",
            _rope(
                rotary.dynamic_ntk(8, 1e4, factor=4.0, length=128, original_length=64)
            ),
            rotary.dynamic_ntk,
            "0",
            f"{same}; cached keys must be turned anew when the length grows",
            golden=("rope_dynamic",),
        ),
        Entry(
            "NTK-by-parts",
            _rope(rotary.ntk_by_parts(8, 1e4, factor=4.0, original_length=64)),
            rotary.ntk_by_parts,
            "0",
            same,
        ),
        Entry(
            "NTK-by-parts, original",
            _rope(rotary.ntk_by_parts_original(8, 1e4, factor=4.0, original_length=64)),
            rotary.ntk_by_parts_original,
            "0",
            same,
            golden=("ntk_by_parts_original",),
        ),
        Entry(
            "YaRN, as in the paper",
            _rope(rotary.yarn(8, 1e4, factor=4.0, original_length=64)),
            rotary.yarn,
            "0",
            same,
        ),
        Entry(
            "YaRN, as released",
            _rope(rotary.yarn_released(8, 1e4, factor=4.0, original_length=64)),
            rotary.yarn_released,
            "0",
            same,
            "Qwen2.5, Qwen3, DeepSeek-V3, gpt-oss (not truncated), OLMo 3, SmolLM3",
            ("rope_yarn", "yarn_original_repo", "deepseek_official_yarn"),
        ),
        Entry(
            "DeepSeek's softmax scale",
            "scale",
            rotary.deepseek_softmax_scale,
            "0",
            "none",
            "DeepSeek-V2, DeepSeek-V3",
            ("deepseek_softmax_scale",),
        ),
        Entry(
            "LongRoPE",
            _rope(longrope(8, 1e4, factor=4.0, original_length=64)),
            rotary.longrope,
            "0: its factors are found by search",
            same,
            "Phi-3, Phi-3.5",
            ("rope_longrope",),
        ),
        Entry(
            "Llama 3.1's schedule",
            _rope(rotary.llama3(8, 1e4, factor=4.0, original_length=64)),
            rotary.llama3,
            "0",
            same,
            "Llama 3.1, Llama 3.2, Llama 4 Scout",
            ("rope_llama3",),
        ),
        Entry(
            "p-RoPE",
            _rope(rotary.proportional(8, 1e4, fraction=0.5)),
            rotary.proportional,
            "0",
            same,
            "the global layers of Gemma 4",
            ("rope_proportional",),
        ),
        Entry(
            "Clipped RoPE",
            _rope(
                rotary.clipped(rotary.linear_interpolation(8, 1e4, factor=1.0), count=3)
            ),
            rotary.clipped,
            "0",
            same,
        ),
    )


def _axes() -> tuple[Entry, ...]:
    series, same = frequencies.inverse_frequencies(8), "6 n D, as plain RoPE"

    def axes(matrix: torch.Tensor, layout: str = "half") -> PositionScheme:
        return _at(transform=rotary.AxialRoPE(matrix, layout=layout).transform)

    return (
        Entry(
            "Axial RoPE",
            axes(rotary.axial_frequencies((2, 2))),
            rotary.axial_frequencies,
            "0",
            same,
            "EVA-02, the image encoders of Qwen2-VL and Llama 4",
            ("rope2d_axial", "rope2d_timm_eva", "rope2d_llama4", "rope2d_qwen2_vl"),
        ),
        Entry(
            "Axial RoPE in pixel frequencies",
            axes(
                rotary.block_frequencies(*[frequencies.pixel_frequencies(2, 16.0)] * 2)
            ),
            frequencies.pixel_frequencies,
            "0",
            same,
            golden=(
                "rope2d_timm_pixel",
                "rope_axial_rotary_embedding",
                "fourier2d_timm",
            ),
        ),
        Entry(
            "Pixtral's RoPE",
            axes(rotary.pixtral_frequencies(series)),
            rotary.pixtral_frequencies,
            "0",
            same,
            "Pixtral",
            ("rope2d_pixtral",),
        ),
        Entry(
            "DINOv3's RoPE",
            axes(rotary.dinov3_frequencies(8)),
            rotary.dinov3_frequencies,
            "0",
            same,
            "DINOv3",
            ("rope2d_dinov3",),
        ),
        Entry(
            "Mixed RoPE",
            _at(transform=rotary.MixedRoPE(4, 8, generator=_draw()).transform),
            rotary.MixedRoPE,
            "D",
            f"{same}; tables of each head",
            "RoPE-ViT",
            ("rope2d_mixed",),
        ),
        Entry(
            "Golden-gate RoPE",
            axes(rotary.golden_gate_frequencies(4, 8, slowest=0.2, fastest=20.0)),
            rotary.golden_gate_frequencies,
            "0",
            f"{same}; tables of each head",
        ),
        Entry(
            "M-RoPE, in sections",
            axes(rotary.mrope_frequencies(series, (2, 1, 1))),
            rotary.mrope_frequencies,
            "0",
            same,
            "Qwen2-VL, Qwen2.5-VL, Qwen2.5-Omni",
            ("mrope_sections",),
        ),
        Entry(
            "M-RoPE, interleaved",
            axes(rotary.mrope_interleaved_frequencies(series, (2, 1, 1))),
            rotary.mrope_interleaved_frequencies,
            "0",
            same,
            "Qwen3-VL, Qwen3.5",
            ("mrope_interleaved",),
        ),
        Entry(
            "VideoRoPE",
            axes(rotary.videorope_frequencies(series, (2, 1, 1))),
            rotary.videorope_frequencies,
            "0",
            same,
        ),
    )


def _biases() -> tuple[Entry, ...]:
    look_up, network = "n² H look-ups and additions", "n² passes of the network"
    return (
        Entry(
            "T5 bias",
            scheme.t5(4, bidirectional=False, std=1.0, generator=_draw()),
            bias.T5Bias,
            "B H for B buckets, shared by all layers",
            look_up,
            "T5, mT5",
            ("t5_",),
        ),
        Entry(
            "ALiBi",
            scheme.alibi(4),
            bias.alibi,
            "0",
            "n² H multiplications and additions",
            "Bloom, MPT, some Falcon models",
            ("alibi_",),
        ),
        Entry(
            "KERPLE, logarithmic",
            _at(bias=bias.KerpleLog(4, generator=_draw())),
            bias.KerpleLog,
            "2 H",
            "n² H logarithms",
            golden=("kerple_log",),
        ),
        Entry(
            "KERPLE, power",
            _at(bias=bias.KerplePower(4, generator=_draw())),
            bias.KerplePower,
            "2 H",
            "n² H powers",
            golden=("kerple_power",),
        ),
        Entry(
            "FIRE",
            _at(bias=bias.FIRE(4, generator=_draw())),
            bias.FIRE,
            "h (H + 2) + H + 2 for h hidden units",
            network,
            golden=("fire",),
        ),
        Entry(
            "Sandwich",
            _at(bias=partial(bias.sandwich, heads=4)),
            bias.sandwich,
            "0",
            "O(n² d̄) cosines for all heads together; 2 n − 1 different values a head",
            golden=("sandwich_nemo",),
        ),
        Entry(
            "Network of the distance",
            _at(bias=bias.DistanceMLPBias(4, 8, generator=_draw())),
            bias.DistanceMLPBias,
            "w² + w (H + 3) + H for width w and depth 2",
            network,
            golden=("dynamic_position_bias",),
        ),
        Entry(
            "Relative bias as a Hankel view",
            "bias, without its matrix",
            attention.hankel_attention,
            "those of the bias",
            "n² H additions; O(n) memory a head in place of n²",
        ),
        Entry(
            "Relative bias for FlexAttention",
            "bias, inside the kernel",
            attention.relative_score_mod,
            "those of the bias",
            "n² H look-ups; O(n) memory a head",
        ),
    )


def _images() -> tuple[Entry, ...]:
    look_up = "n² H look-ups and additions"
    return (
        Entry(
            "Swin's bias",
            _at(bias=bias.WindowBias(4, (4, 4), generator=_draw())),
            bias.WindowBias,
            "(2 M − 1)² H in windows of M × M",
            look_up,
            "Swin",
            ("swin_relative",),
        ),
        Entry(
            "BEiT's bias",
            _at(bias=bias.ClsWindowBias(4, (4, 4))),
            bias.ClsWindowBias,
            "((2 M − 1)² + 3) H in windows of M × M",
            look_up,
            "BEiT",
            ("beit_",),
        ),
        Entry(
            "Swin-V2's bias",
            _at(bias=bias.LogCoordinateBias(4, (4, 4), generator=_draw())),
            bias.LogCoordinateBias,
            "h (H + 3) for h = 512 hidden units",
            "(2 M − 1)² passes of the network, and n² H look-ups",
            "Swin-V2",
            ("swinv2_",),
        ),
        Entry(
            "CrossFormer's bias",
            _at(bias=bias.DynamicPositionBias(4, 8, generator=_draw())),
            bias.DynamicPositionBias,
            "2 w² + w (A + H + 9) + H for width w and A axes",
            "n² passes of the network",
            "CrossFormer",
        ),
        Entry(
            "iRPE, bias",
            _at(bias=bias.IRPEBias(4)),
            bias.IRPEBias,
            "((2 ⌊β⌋ + 1)² + 1) H, product method in 2-D",
            look_up,
        ),
        Entry(
            "iRPE, contextual",
            _at(scores=bias.IRPEContextual(8).scores),
            bias.IRPEContextual,
            "((2 ⌊β⌋ + 1)² + 1) d, product method in 2-D",
            "n D products for each row of the table, and n² H look-ups",
        ),
    )


def _content() -> tuple[Entry, ...]:
    slopes = partial(bias.alibi, slopes=bias.alibi_slopes(4))
    shaw, deberta = (
        content.Shaw(8, 3, generator=_draw()),
        content.DeBERTa(4, 8, 8, 4, generator=_draw()),
    )
    keys, queries = deberta.tables()
    tables = {"position_keys": keys, "position_queries": queries}
    rows = "(2 K + 1) n D products, and n² H look-ups"
    return (
        Entry(
            "Shaw's relative vectors",
            _at(scores=shaw.scores, values=shaw.values),
            content.Shaw,
            "2 (2 K + 1) d, shared by the heads",
            f"for keys and for values {rows}",
        ),
        Entry(
            "Shaw's key term alone",
            _at(scores=shaw.scores),
            content.relative_key_scores,
            "(2 K + 1) d, shared by the heads",
            rows,
            "Wav2Vec2-BERT, SeamlessM4T v2, BERT as `relative_key`",
            ("shaw_bert_relative_key", "shaw_relative_key_wav2vec2bert"),
        ),
        Entry(
            "BERT's relative_key_query",
            _at(
                scores=partial(
                    content.relative_key_query_scores, table=torch.zeros(7, 8), left=3
                )
            ),
            content.relative_key_query_scores,
            "(2 K + 1) d, shared by the heads",
            f"for queries and for keys {rows}",
            golden=("shaw_bert_relative_key_query",),
        ),
        Entry(
            "Transformer-XL",
            _at(scores=content.TransformerXL(4, 8, 8, generator=_draw()).scores),
            content.TransformerXL,
            "D² + 2 D",
            "n² D for the distances: the score is computed twice",
            "Transformer-XL, XLNet, Parakeet and other Conformers",
            (
                "transformer_xl_",
                "xlnet_rel_shift",
                "parakeet_rel_shift",
                "conformer_relative",
                "music_transformer",
            ),
        ),
        Entry(
            "DeBERTa, as in the paper",
            _at(scores=deberta.scores),
            content.deberta_scores,
            "2 K D for all layers, and 2 D² a layer",
            "4 K n D products, and 2 n² H look-ups",
        ),
        Entry(
            "DeBERTa, as released",
            _at(scores=partial(content.deberta_released_scores, **tables)),
            content.deberta_released_scores,
            "the same",
            "the same",
            "DeBERTa",
        ),
        Entry(
            "DeBERTa-v2",
            _at(scores=partial(content.deberta_v2_scores, **tables, max_distance=6)),
            content.deberta_v2_scores,
            "the same",
            "the same",
            "DeBERTa-v2, DeBERTa-v3, SEW-D",
            ("deberta_v2_",),
        ),
        Entry(
            "TUPE",
            _at(bias=content.TUPE(16, 8, 4, 8, generator=_draw())),
            content.TUPE,
            "L D + 2 D² + 2 H, shared by all layers",
            "n² D once for all layers, then n² H additions",
        ),
        Entry(
            "CoPE",
            _at(scores=content.CoPE(8, 6).scores),
            content.CoPE,
            "p d for positions below p, shared by the heads",
            "n² H gates and sums, p n D products",
            golden=("cope_",),
        ),
        Entry(
            "DAPE",
            _at(scores=content.DAPE(4, slopes, generator=_draw()).scores),
            content.DAPE,
            "h (3 H + 1) + H for h hidden units, beside the bias",
            "n² passes of a network of 2 H inputs",
        ),
        Entry(
            "Forgetting Transformer",
            _at(bias=content.ForgetGate(8, 4, generator=_draw())),
            content.ForgetGate,
            "H (D + 1)",
            "n D H for the gates, n² H additions",
            golden=("data_dependent_alibi",),
        ),
        Entry(
            "PaTH",
            _at(scores=content.PaTH(8, 4, 8, rank=4, generator=_draw()).scores),
            content.path_scores,
            "2 r D + H (D + 1) for rank r",
            "a triangular system a head: O(n³ H) here, O(n²) by blocks in its authors' "
            "kernel",
        ),
        Entry(
            "Relative logits",
            _at(bias=content.RelativeLogits(8, 4, 5, rank=3, generator=_draw())),
            content.RelativeLogits,
            "r (H D + R) for rank r and distances below R",
            "r n H (D + R) products, and n² H look-ups",
            "Inkling",
        ),
    )


def _long_context() -> tuple[Entry, ...]:
    rope, twice = (
        rotary.RoPE(frequencies.inverse_frequencies(8)),
        "n² D more: two matrices of scores",
    )

    def branches(rule: Callable[..., Any], **arguments: int) -> PositionScheme:
        return _at(
            scores=partial(
                attention.branched_scores,
                rope=rope,
                branches=partial(rule, **arguments),
            )
        )

    def tempered(rule: Callable[..., Any], **arguments: int) -> PositionScheme:
        return _at(
            transform=partial(
                attention.tempered, temperature=partial(rule, **arguments)
            )
        )

    return (
        Entry(
            "ReRoPE", branches(attention.rerope, window=5), attention.rerope, "0", twice
        ),
        Entry(
            "Leaky ReRoPE",
            branches(attention.leaky_rerope, window=5, factor=4),
            attention.leaky_rerope,
            "0",
            twice,
        ),
        Entry(
            "Self-Extend",
            branches(attention.self_extend, window=6, group=3),
            attention.self_extend,
            "0",
            twice,
        ),
        Entry(
            "Dual chunk attention",
            branches(attention.dual_chunk, chunk=5, local=2),
            attention.dual_chunk,
            "0",
            "2 n² D more here, with three matrices of scores; none where each chunk is "
            "computed apart",
            "Qwen2.5-1M",
        ),
        Entry(
            "LM-Infinite",
            _at(
                scores=branches(attention.rerope, window=4).scores,
                mask=partial(attention.lambda_mask, sinks=2, window=4),
            ),
            attention.lambda_mask,
            "0",
            "less than plain attention: n (w + g) D in place of n² D",
        ),
        Entry(
            "StreamingLLM's positions",
            "position, in the cache",
            attention.evict,
            "0",
            "6 D for each key that is moved",
        ),
        Entry(
            "Sliding window",
            _at(mask=partial(attention.sliding_window, size=4)),
            attention.sliding_window,
            "0",
            "less than plain attention: n w D in place of n² D",
            "Gemma 3, gpt-oss, OLMo 3 and ModernBERT, in some layers",
        ),
        Entry(
            "Llama 4's temperature",
            tempered(attention.llama4_temperature),
            attention.llama4_temperature,
            "0",
            "n D multiplications",
            "the layers of Llama 4 without RoPE",
            ("llama4_attention_temperature",),
        ),
        Entry(
            "Logarithmic temperature",
            tempered(attention.log_length_temperature, trained_length=4),
            attention.log_length_temperature,
            "0",
            "n D multiplications",
        ),
        Entry(
            "SSMax",
            _at(transform=attention.SSMax(4).transform),
            attention.SSMax,
            "H",
            "n D multiplications",
        ),
    )


def _linear() -> tuple[Entry, ...]:
    place = "linear attention"
    sine, conv = (
        attention.SineSPE(4, 8, generator=_draw()),
        attention.ConvSPE(4, 8, kernel_size=4, generator=_draw()),
    )
    return (
        Entry(
            "RoPE in linear attention",
            place,
            attention.linear_attention,
            "0",
            "O(n d²) a head, in place of O(n² d)",
        ),
        Entry(
            "Linear Transformer",
            place,
            attention.causal_linear_attention,
            "0",
            "O(n d²) a head, in place of O(n² d)",
        ),
        Entry(
            "FAVOR+",
            place,
            attention.positive_features,
            "0: its M directions are drawn",
            "O(n M d) a head",
            "Performer",
        ),
        Entry(
            "cosFormer",
            place,
            attention.cosformer_features,
            "0",
            "O(n d²) a head",
            "cosFormer",
        ),
        Entry(
            "Kernel attention with relative bias",
            place,
            attention.toeplitz_attention,
            "(2 L − 1) H",
            "O(n log n · f d) a head for f features",
        ),
        Entry(
            "sineSPE",
            _at(
                transform=partial(sine.transform, noise=sine.draw(4, generator=_draw()))
            ),
            attention.SineSPE,
            "3 W D for W waves",
            "O(n R D) for R samples",
        ),
        Entry(
            "convSPE",
            _at(
                transform=partial(
                    conv.transform, noise=conv.draw(16, 4, generator=_draw())
                )
            ),
            attention.ConvSPE,
            "2 P D for filters of P taps",
            "O(n R D P) for R samples",
        ),
        Entry(
            "Retention",
            place,
            attention.retention,
            "0",
            "O(n d²) a head in its recurrent form",
            "RetNet",
        ),
    )


def _layers() -> tuple[Entry, ...]:
    place = "layer by layer"
    return (
        Entry(
            "Gemma 3's layers",
            place,
            layers.gemma3,
            "0",
            "6 n D; w keys a query in place of n in five of six layers",
            "Gemma 3",
            ("rope_gemma3_local_global",),
        ),
        Entry(
            "Llama 4's layers (iRoPE)",
            place,
            layers.llama4,
            "0",
            "6 n D, and a query sees its chunk in place of n keys, in three of four "
            "layers",
            "Llama 4",
            ("nope_layer_pattern",),
        ),
        Entry(
            "SmolLM3's layers",
            place,
            layers.smollm3,
            "0",
            "6 n D in three of four layers",
            "SmolLM3",
            ("nope_layer_pattern",),
        ),
        Entry(
            "Command's layers",
            place,
            layers.cohere2,
            "0",
            "6 n D, and w keys a query in place of n, in three of four layers",
            "Command R7B, Command A",
        ),
        Entry(
            "gpt-oss's layers",
            place,
            layers.gpt_oss,
            "0",
            "6 n D; 128 keys a query in place of n in every other layer",
            "gpt-oss",
        ),
        Entry(
            "ModernBERT's layers",
            place,
            layers.modernbert,
            "0",
            "6 n D; 129 keys a query in place of n in two of three layers",
            "ModernBERT",
        ),
        Entry(
            "DroPE", place, layers.drope, "0", "none; it needs a short recalibration"
        ),
    )
