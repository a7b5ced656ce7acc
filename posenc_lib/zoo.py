"""The zoo: every encoding of this library as one table, from the objects themselves."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
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

ROOT = Path(__file__).resolve().parents[1]  # of the repository, if this is a clone


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """An encoding as a row of the zoo.

    In `parameters` and `cost`: n tokens, width D, H heads of d channels, L trained
    positions. The cost is the work in one layer beside plain attention's n² D.

    Args:
        name: its name in the literature.
        where: a small example, whose fields are the column "where"; or the field in
            words, where no scheme can hold the encoding.
        source: the object whose docstring holds the equation, the citation and the
            chapter.
        parameters: the number of trained parameters.
        cost: work beside plain attention.
        test: the strongest test that needs no golden case, as "file::function", the
            file under tests: a plain loop of the equation, or else an exact property.
        golden: names of the golden cases in tests/oracles that it is checked against.
        used_by: published models that use it; empty where we know of none.
        aliases: other names that readers search for.
        equation: its own equation, where the docstring of `source` states that of more
            than this encoding.
        lacks: the properties of tests/test_properties.py that it does not have, each
            with the reason.

    Chapter: zoo
    """

    name: str
    where: PositionScheme | str
    source: Callable[..., Any] | type
    parameters: str
    cost: str
    test: str
    golden: tuple[str, ...] = ()
    used_by: str = ""
    aliases: tuple[str, ...] = ()
    equation: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)

    def lacks_in_words(self) -> str:
        """The properties that it lacks, those of one reason together."""
        reasons: dict[str, list[str]] = {}
        for name, reason in self.lacks.items():
            reasons.setdefault(reason, []).append(name)
        return "; ".join(f"{', '.join(p)} ({why})" for why, p in reasons.items())


# Encodings whose equation is not available to us: the arXiv number, and what we miss.
MISSING: dict[str, tuple[str, str]] = {
    "BAM": (
        "2505.22842",
        "the parametrisation of its prior over distances is not available to us",
    ),
    "CABLE, bidirectional": (
        "2503.08067",
        "we did not find the form for keys after the query; the causal one is here",
    ),
    "CARoPE": (
        "2507.23083",
        "we did not find the exact function that bounds its input-dependent steps",
    ),
    "Circle-RoPE": (
        "2505.16416",
        "the projection of image coordinates onto its circle is not available to us",
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
        "we did not find the cut-off below which frequencies are dropped",
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
    "nD-RoPE": (
        "2606.12146",
        "its directions and frequencies are not available to us",
    ),
    "PaPE": ("2602.01418", "its equation is not available to us"),
    "PermuteFormer": ("2109.02377", "how its permutations are drawn"),
    "RoPE-ID": (
        "2603.18017",
        "the spacing of its frequencies and its temperature are missing",
    ),
    "Selective RoPE": (
        "2511.17388",
        "the paper's choice among its options is not available to us",
    ),
    "Spiral RoPE": (
        "2602.03227",
        "its directions and frequencies are not available to us",
    ),
    "SSMax with a bias": (
        "2501.19399",
        "where its bias enters; the form without one is here",
    ),
    "VRoPE": (
        "2502.11664",
        "its rotation of video coordinates is not available to us",
    ),
}


def _at_zero(reason: str) -> dict[str, str]:
    return {"nothing at position zero": reason}


# Reasons why an encoding lacks a property, where several share them.
_OWN_POSITION = "each token has its own position, which meets the others' content too"
_ADDED = dict.fromkeys(("relative", "Toeplitz"), _OWN_POSITION)
_COS_ZERO = _at_zero("cos 0 = 1 is added")
_FIRST_ROW = _at_zero("position 0 has a vector like any other")
_OWN_VECTOR = _at_zero("distance 0 has a vector like any other")
_RISE = {"decays with distance": "dot products of its vectors rise again"}
_COSINES = {"decays with distance": "its cosines turn back up"}
_FACTOR = dict.fromkeys(("nothing at position zero", "norm"), "its factor scales")
_LEARNED = {"decays with distance": "what the distance does is learned"}
_COUNTS = {
    "blind to order when positions move along": "it sums along the tokens, in order"
}
_START = dict.fromkeys(
    ("relative", "Toeplitz"), "which keys are near depends on where counting begins"
)
_WARMTH = "a query's temperature depends on its own position"
_NOISE = dict.fromkeys(
    ("relative", "Toeplitz"), "relative on average over the noise only"
) | dict.fromkeys(
    ("nothing at position zero", "norm", "decays with distance"),
    "queries and keys are multiplied by noise",
)


def encodings() -> tuple[Entry, ...]:
    """All encodings of the library, field by field of a scheme.

    Shapes: → one `Entry` for each encoding

    Chapter: zoo
    """
    return (
        Entry(
            name="NoPE",
            where=NOPE,
            source=PositionScheme,
            equation="e_mn = q_mᵀ k_n / √d: no term for position; "
            "only a causal mask tells order",
            parameters="0",
            cost="none",
            used_by="some layers of Llama 4, SmolLM3 and Cohere models",
            test="test_scheme.py::test_nope_is_the_equation",
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


def find(name: str) -> tuple[Entry, ...]:
    """The encodings whose name, aliases or models hold every word of a text.

    Words match as in the filter of the zoo's page: without capitals and hyphens,
    anywhere in a word, those with a digit only where a word begins; "llama 4" is
    "llama4".
    Encodings whose name matches come first.

    Args:
        name: the words, such as "mrope" or "qwen3-vl".

    Raises:
        ValueError: no encoding matches; names near it are in the message.

    Chapter: zoo
    """
    words = _plain(name).split()
    texts = {entry: _plain(_searched(entry)) for entry in encodings()}
    matches = [entry for entry, text in texts.items() if words and _holds(text, words)]
    if not matches:
        shown = name if len(name) <= 60 else f"{name[:60]}…"
        raise ValueError(f"no encoding matches {shown!r}{_near(words, texts)}")
    return tuple(sorted(matches, key=lambda e: not _holds(_plain(e.name), words)))


def as_dict(entry: Entry) -> dict[str, Any]:
    """An encoding for programs: where it acts, equation, source, tests and papers.

    Shapes: → {"name": …, "aliases": [name, …], …, "chapter": …}, JSON values alone

    Every encoding has all keys; a text is empty where there is nothing to say.

    Args:
        entry: a row of `encodings()`.

    Chapter: zoo
    """
    parts = _parts(inspect.getdoc(entry.source) or "")
    where = entry.where
    if isinstance(where, PositionScheme):
        where = ", ".join(where.places)
    return {
        "name": entry.name,
        "aliases": list(entry.aliases),
        "where": where or "nowhere",
        "equation": entry.equation or parts.get("Equation", ""),
        "parameters": entry.parameters,
        "cost": entry.cost,
        "used_by": entry.used_by,
        "source": f"{_source_line(entry.source)}  {entry.source.__name__}",
        "paper": parts.get("Source", ""),
        "test": _test_line(entry.test),
        "golden": list(entry.golden),
        "checked": parts.get("Checked", ""),
        "lacks": dict(entry.lacks),
        "chapter": parts.get("Chapter", ""),
    }


def describe(entry: Entry) -> str:
    """An encoding in words: where it acts, equation, source, tests, papers and chapter.

    Args:
        entry: a row of `encodings()`.

    Chapter: zoo
    """
    rows = as_dict(entry) | {
        "golden": ", ".join(entry.golden),
        "lacks": entry.lacks_in_words(),
    }
    del rows["name"], rows["aliases"]
    aliases = f" ({', '.join(entry.aliases)})" if entry.aliases else ""
    lines = [
        textwrap.indent(f"{title.replace('_', ' '):<10}  {_wrapped(text)}", "  ")
        for title, text in rows.items()
        if text
    ]
    return "\n".join([entry.name + aliases, *lines])


def _wrapped(text: str) -> str:
    """Lines of at most 88 columns, those after the first below its beginning."""
    lines = [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(
            line,
            74,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
            drop_whitespace=True,
        )
    ]
    return ("\n" + " " * 12).join(lines)


def _searched(entry: Entry) -> str:
    """What `find` looks into."""
    return " | ".join((entry.name, *entry.aliases, entry.used_by))


def _plain(text: str) -> str:
    """Lower case, without hyphens, and without the space before a number."""
    text = re.sub("[-\u2011]", "", text.lower()).replace("’", "'")
    return re.sub(r"\s+(?=\d[\d.]*(?!\w))", "", text)


def _holds(text: str, words: list[str]) -> bool:
    """Whether a text holds all words, one with a digit only where a word begins."""
    return all(
        re.search(rf"(?<!\w){re.escape(word)}", text)
        if re.search(r"\d", word)
        else word in text
        for word in words
    )


def _near(words: list[str], texts: dict[Entry, str]) -> str:
    """The encodings with a word like one of these, for a message."""
    known = sorted(
        {word for text in texts.values() for word in re.findall(r"\w+", text)}
    )
    names: list[str] = []
    for word in words:
        for close in difflib.get_close_matches(word, known, n=2):
            names += [e.name for e, text in texts.items() if _holds(text, [close])]
    if not names:
        return f"; encodings() lists all {len(texts)}"
    return "; near it: " + ", ".join(list(dict.fromkeys(names))[:5])


def _parts(docstring: str) -> dict[str, str]:
    """The parts of a docstring by heading, without their indentation."""
    headings = "Equation|Shapes|Args|Raises|Source|Checked|Chapter"
    pieces = re.split(rf"^({headings}):[ \n]?", docstring, flags=re.MULTILINE)
    parts = {}
    for heading, text in zip(pieces[1::2], pieces[2::2], strict=True):
        part = text.split("\n\n")[0]
        first, *rest = part.strip("\n").split("\n")
        rest = [line.strip() for line in rest]
        parts[heading] = " ".join([first, *rest])
        if heading == "Checked":  # a line may end within an item
            parts[heading] = re.sub(": ", ":", parts[heading])
    return parts


def _source_line(value: Callable[..., Any] | type) -> str:
    """File and line of an object."""
    value = inspect.unwrap(value)
    file = Path(inspect.getsourcefile(value) or "").resolve()
    return f"{file.relative_to(ROOT)}:{inspect.getsourcelines(value)[1]}"


def _test_line(test: str) -> str:
    """File and name of a test; its line too, where the tests are."""
    file, name = test.split("::")
    path = ROOT / "tests" / file
    if not path.is_file():
        return f"tests/{test}"
    [line] = [
        node.lineno
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    return f"tests/{file}:{line}  {name}"


def _draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _example(**fields: Any) -> PositionScheme:
    """A scheme that fills these fields."""
    return PositionScheme("example", **fields)


def _rope(schedule: rotary.Schedule) -> PositionScheme:
    return _example(transform=rotary.RoPE(**schedule._asdict()).transform)


def _positions() -> tuple[Entry, ...]:
    where, mixed = "position", multimodal_positions
    return (
        Entry(
            name="Randomised positions",
            where=where,
            source=positions.randomised,
            parameters="0",
            cost="one draw of O(L log L) for a batch",
            test="test_positions.py::test_randomised_positions_are_an_ordered_sample",
        ),
        Entry(
            name="Abacus",
            where=where,
            source=positions.abacus,
            parameters="0 beside the table that they index",
            cost="O(n)",
            test="test_positions.py::test_abacus_brute_force",
        ),
        Entry(
            name="Position coupling",
            where=where,
            source=positions.coupled_addition,
            parameters="0",
            cost="O(n)",
            test="test_positions.py::test_coupled_addition_gives_a_place_value_one_position",
        ),
        Entry(
            name="Tree positions",
            where=where,
            source=positions.tree_positions,
            parameters="0",
            cost="O(n)",
            used_by="SpecInfer, Medusa (draft tokens)",
            test="test_positions.py::test_tree_brute_force",
        ),
        Entry(
            name="Merged grid",
            where=where,
            source=positions.merged_grid,
            parameters="0",
            cost="O(n)",
            used_by="the image encoder of Qwen2-VL",
            test="test_positions.py::test_merged_grid_goes_block_by_block",
        ),
        Entry(
            name="Resized grid",
            where=where,
            source=positions.resized_grid,
            parameters="0",
            cost="O(n)",
            used_by="EVA-02",
            test="test_positions.py::test_grids_of_coordinates",
        ),
        Entry(
            name="Centred grid",
            where=where,
            source=positions.centred_grid,
            parameters="0",
            cost="O(n)",
            used_by="DINOv3",
            test="test_positions.py::test_grids_of_coordinates",
        ),
        Entry(
            name="Jittered coordinates",
            where=where,
            source=positions.jittered,
            parameters="0",
            cost="O(n), in training only",
            used_by="DINOv3",
            test="test_positions.py::test_jitter_is_the_released_order_of_steps",
        ),
        Entry(
            name="M-RoPE positions",
            where=where,
            source=mixed.mrope_positions,
            parameters="0",
            cost="O(n)",
            used_by="Qwen2-VL, Qwen2.5-VL",
            golden=(
                "mrope_position_ids_qwen2_5_vl_a",
                "mrope_position_ids_qwen2_5_vl_b",
                "mrope_position_ids_qwen2_vl_a",
                "mrope_position_ids_qwen2_vl_b",
                "mrope_position_ids_qwen2_vl_left_padded_batch",
            ),
            test="test_multimodal_positions.py::test_prompts_token_by_token",
        ),
        Entry(
            name="Timestamps as text",
            where=where,
            source=mixed.timestamped,
            parameters="0",
            cost="a few text tokens a frame",
            used_by="Qwen3-VL",
            golden=("mrope_position_ids_qwen3_vl_timestamps",),
            test="test_multimodal_positions.py::test_timestamps",
        ),
        Entry(
            name="TMRoPE",
            where=where,
            source=mixed.audio_video_block,
            parameters="0",
            cost="O(n)",
            used_by="Qwen2.5-Omni",
            golden=("tmrope_position_ids_qwen2_5_omni_audio_in_video",),
            test="test_multimodal_positions.py::test_audio_in_video_token_by_token",
        ),
        Entry(
            name="VideoRoPE positions",
            where=where,
            source=mixed.videorope_positions,
            parameters="0",
            cost="O(n)",
            test="test_multimodal_positions.py::test_videorope_token_by_token",
        ),
    )


def _embeddings() -> tuple[Entry, ...]:
    once = "n D additions, before the first layer"
    sines = f"O(n D) sines, {once}"
    nodes = "on the graph's nodes"
    matrix = embedding.gaussian_matrix(4, 1, std=1.0, generator=_draw())
    return (
        Entry(
            name="Sinusoidal",
            aliases=("absolute", "the encoding of Attention Is All You Need"),
            where=scheme.sinusoidal(8),
            source=embedding.sinusoidal,
            parameters="0",
            cost=sines,
            used_by="the paper of 2017, Marian, Transformer-XL (of distances); "
            "an option in XLM's code",
            golden=(
                "sinusoidal_concat_marian",
                "sinusoidal_concat_transformerxl",
                "sinusoidal_interleaved_scaled_cramming",
                "sinusoidal_interleaved_xlm",
                "sinusoidal_scaled_xtransformers",
            ),
            test="test_bug_reports.py::test_bug_53_every_dimension_has_a_sinusoid",
            lacks=_ADDED | _COS_ZERO | _RISE,
        ),
        Entry(
            name="Sinusoidal, tensor2tensor",
            where=_example(
                embedding=partial(embedding.sinusoidal_tensor2tensor, dim=8)
            ),
            source=embedding.sinusoidal_tensor2tensor,
            parameters="0",
            cost=sines,
            used_by="fairseq models, Whisper, M2M-100, XGLM, Speech2Text",
            golden=(
                "sinusoidal_concat_fairseq",
                "sinusoidal_concat_m2m100_padding_offset",
                "sinusoidal_concat_speech2text_odd_dim",
                "sinusoidal_concat_whisper",
                "sinusoidal_concat_xglm_offset2",
            ),
            test="test_bug_reports.py::test_bug_53_tensor2tensor_has_a_zero_column",
            lacks=_ADDED | _COS_ZERO | _RISE,
        ),
        Entry(
            name="Learned absolute",
            aliases=("absolute", "APE", "wpe"),
            where=scheme.learned(2048, 8, generator=_draw()),
            source=embedding.LearnedEmbedding,
            parameters="L D",
            cost=once,
            used_by="BERT, RoBERTa (from padding_idx + 1), GPT-2, OPT (from 2)",
            golden=("learned_offset_opt", "position_ids_roberta"),
            test="embedding/test_learned.py::test_learned_embedding_looks_up_rows",
            lacks=_ADDED | _FIRST_ROW | _RISE,
        ),
        Entry(
            name="NeRF features",
            where=_example(embedding=partial(embedding.nerf, count=4)),
            source=embedding.nerf,
            parameters="0",
            cost="O(n D) sines",
            used_by="NeRF",
            test="embedding/test_fourier.py::test_nerf_is_the_equation",
            lacks=_ADDED | _COS_ZERO | _RISE,
        ),
        Entry(
            name="Random Fourier features",
            where=_example(embedding=partial(embedding.random_fourier, matrix=matrix)),
            source=embedding.random_fourier,
            parameters="0: its matrix is drawn once and frozen",
            cost="O(n D) sines",
            golden=("gaussian_fourier_diffusers",),
            test="embedding/test_fourier.py::test_random_fourier_is_the_equation",
            lacks=_ADDED | _COS_ZERO | _RISE,
        ),
        Entry(
            name="Perceiver features",
            where=_example(
                embedding=partial(
                    embedding.perceiver_fourier, count=4, max_resolution=(16.0,)
                )
            ),
            source=embedding.perceiver_fourier,
            parameters="0",
            cost="O(n D) sines",
            used_by="Perceiver",
            golden=("fourier_perceiver",),
            test="embedding/test_fourier.py::test_perceiver_is_the_equation",
            lacks=_ADDED | _COS_ZERO | _RISE,
        ),
        Entry(
            name="Learnable Fourier features",
            where=_example(
                embedding=embedding.LearnableFourier(
                    8, axes=2, features=8, hidden=8, generator=_draw()
                )
            ),
            source=embedding.LearnableFourier,
            parameters="F A/2 + h (F + 1) + D (h + 1) "
            "for A axes, F features, h hidden units",
            cost="O(n h (F + D))",
            test="embedding/test_fourier.py::test_learnable_fourier_is_the_equation",
            lacks=_ADDED | _FIRST_ROW | _RISE,
        ),
        Entry(
            name="Timestep embedding",
            where=_example(
                embedding=partial(
                    embedding.timestep, dim=8, shift=0.0, cosine_first=True
                )
            ),
            source=embedding.timestep,
            parameters="0",
            cost="one vector for an image",
            used_by="diffusion models since DDPM",
            golden=("timestep_embedding_diffusers",),
            test="embedding/test_fourier.py::test_timestep_is_the_equation",
            lacks=_ADDED | _COS_ZERO | _RISE,
        ),
        Entry(
            name="Sinusoidal, 2-D",
            aliases=("2-D sincos",),
            where=_example(embedding=partial(embedding.sinusoidal_grid, dim=8)),
            source=embedding.sinusoidal_grid,
            parameters="0",
            cost=sines,
            used_by="MAE",
            golden=("sincos2d_mae_diffusers", "sincos2d_timm"),
            test="embedding/test_grid.py::test_sinusoidal_grid_is_the_equation",
            lacks=_ADDED | _COS_ZERO | _RISE,
        ),
        Entry(
            name="Learned grid",
            where=_example(
                embedding=embedding.LearnedGrid((4, 4), 8, generator=_draw())
            ),
            source=embedding.LearnedGrid,
            parameters="L D for the L cells of the grid",
            cost=once,
            used_by="ViT",
            test="embedding/test_grid.py::test_learned_grid_is_a_table_of_places",
            lacks=_ADDED | _FIRST_ROW | _RISE,
        ),
        Entry(
            name="Resized learned grid",
            where="embedding, at another image size",
            source=embedding.resize_grid,
            parameters="those of the grid",
            cost="16 n D, once for an image size",
            used_by="ViT",
            golden=("learned_2d_bicubic_interpolation_vit",),
            test="embedding/test_grid.py::test_resize_is_bicubic",
        ),
        Entry(
            name="CPE (PEG)",
            aliases=("conditional positional encoding",),
            where="embedding, from the tokens' neighbours",
            source=embedding.PEG,
            parameters="(k² + 1) D for a k × k filter",
            cost="k² n D",
            used_by="CPVT, Twins",
            test="embedding/test_convolutional.py::test_peg_is_the_equation",
        ),
        Entry(
            name="Convolutional embedding",
            where="embedding, from the frames' neighbours",
            source=embedding.ConvolutionalEmbedding,
            parameters="k D²/g + D + k for k taps in g groups",
            cost="k n D²/g",
            used_by="wav2vec 2.0",
            test="embedding/test_convolutional.py::test_convolution_is_the_equation",
        ),
        Entry(
            name="Laplacian eigenvectors",
            where=f"embedding, {nodes}",
            source=embedding.laplacian_eigenvectors,
            parameters="0",
            cost="O(n³), once",
            test="embedding/test_graph.py::test_all_constant_waves_are_left_out",
        ),
        Entry(
            name="SignNet",
            where=f"embedding, {nodes}",
            source=embedding.signnet,
            parameters="those of its two networks",
            cost="2 k passes of one",
            test="embedding/test_graph.py::test_signnet_is_the_equation_and_blind_to_signs",
        ),
        Entry(
            name="Random walk",
            where=f"embedding, {nodes}",
            source=embedding.random_walk,
            parameters="0",
            cost="O(k n³), once",
            test="embedding/test_graph.py::test_random_walk_is_the_equation",
        ),
    )


def _rotary() -> tuple[Entry, ...]:
    series = frequencies.inverse_frequencies(8)
    rotation = "6 n D, 3 d for each query and key"
    rope = rotary.RoPE(series)

    def grape(
        q: torch.Tensor, k: torch.Tensor, m: torch.Tensor, n: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = torch.eye(8)[:2]
        return rotary.grape(q, m, a, b), rotary.grape(k, n, a, b)

    return (
        Entry(
            name="RoPE, interleaved",
            aliases=("rotary position embedding", "GPT-J style"),
            where=scheme.rope(8),
            source=rotary.RoPE,
            parameters="0",
            cost=rotation,
            used_by="RoFormer, Llama in Meta's code, Cohere",
            golden=(
                "rope_complex_interleaved_llama_official",
                "rope_diffusers_1d",
                "rope_interleaved_codegen_partial",
                "rope_interleaved_cohere",
                "rope_interleaved_gptj_partial",
                "rope_interleaved_roformer_qkv",
                "rope_rotary_embedding_torch_lang",
            ),
            test="rotary/test_rope.py::test_rope_is_the_equation",
            lacks=_COSINES,
        ),
        Entry(
            name="RoPE, half layout",
            aliases=("rotate_half", "rotary in GPT-NeoX style"),
            where=scheme.rope(8, layout="half"),
            source=rotary.convert_layout,
            parameters="0",
            cost=rotation,
            used_by="Llama, Qwen, Mistral and Gemma in transformers",
            golden=("rope_half_split_gemma_official", "rope_half_split_llama"),
            test="test_bug_reports.py::test_bug_01_layouts_agree_through_the_permutation",
            lacks=_COSINES,
        ),
        Entry(
            name="RoPE, partial",
            aliases=("partial rotary",),
            where=scheme.rope(8, rotary_dim=4),
            source=rotary.RoPE,
            equation="R_m rotates channels 0 … r−1 of d, ω_i = θ^(−2i/r), "
            "i = 0 … r/2−1; the others pass unchanged",
            parameters="0",
            cost="6 n H r, for the first r channels of each head",
            used_by="GPT-J and CodeGen (interleaved), GPT-NeoX (half), "
            "GLM (interleaved)",
            golden=(
                "rope_interleaved_codegen_partial",
                "rope_interleaved_gptj_partial",
                "rope_partial_gpt_neox",
                "rope_partial_interleaved_glm",
            ),
            test="rotary/test_rope.py::test_rope_is_the_equation",
            lacks=_COSINES,
        ),
        Entry(
            name="Decoupled RoPE (MLA)",
            aliases=("multi-head latent attention",),
            where="transform, of r more channels",
            source=rotary.LatentKeys,
            parameters="D r for the one rotary key, beside D c + c H (d + d_v) "
            "for keys and values from c latent channels",
            cost="the score has r more channels a head; "
            "the cache holds c + r numbers a token",
            used_by="DeepSeek-V2, DeepSeek-V3",
            golden=("mla_decoupled_rope_deepseek",),
            test="rotary/test_latent.py::test_latent_attention_is_its_equation",
        ),
        Entry(
            name="xPos",
            where=_example(transform=rotary.XPos(series).transform),
            source=rotary.XPos,
            parameters="0",
            cost="8 n D",
            golden=("xpos_rotary_embedding_torch", "xpos_torchscale"),
            test="rotary/test_variants.py::test_xpos_is_its_equation",
            lacks=(
                _COSINES | {"norm": "queries and keys are scaled by their positions"}
            ),
        ),
        Entry(
            name="RoPER",
            where=_example(
                transform=rope.transform,
                values=partial(rotary.rotated_values, rope=rope),
            ),
            source=rotary.rotated_values,
            parameters="0",
            cost="12 n D: RoPE's, and as much for values and sums",
            test="rotary/test_variants.py::test_roper_sees_the_distance_of_values",
            lacks=_COSINES,
        ),
        Entry(
            name="PoPE",
            aliases=("polar coordinate position embedding",),
            where=_example(transform=rotary.PoPE(8, heads=4).transform, scale=8**-0.5),
            source=rotary.PoPE,
            parameters="D",
            cost="n² D more: the score has 2 d channels a head",
            golden=("pope_polar_xtransformers",),
            test="rotary/test_variants.py::test_pope_is_its_equation",
            lacks=(
                _COSINES
                | _at_zero("the magnitude is the softplus of the content")
                | {"norm": "the magnitude is a softplus, in twice the channels"}
            ),
        ),
        Entry(
            name="LieRE",
            where=_example(
                transform=rotary.LieRE(8, axes=1, block=4, generator=_draw()).transform
            ),
            source=rotary.LieRE,
            parameters="A d (b − 1)/2 for A axes and blocks of b channels",
            cost="n matrix exponentials of d/b blocks, O(n d b²), and O(n D b)",
            test="rotary/test_variants.py::test_lie_rotation_is_the_exponential",
            lacks=_COSINES,
        ),
        Entry(
            name="ComRoPE, linearly dependent",
            where=_example(
                transform=rotary.ComRoPE(
                    8, axes=1, block=4, heads=4, generator=_draw()
                ).transform
            ),
            source=rotary.ComRoPE,
            parameters="D (b − 1)/2 + A d/b for A axes and blocks of b channels",
            cost="n matrix exponentials of D/b blocks, O(n D b²)",
            test="rotary/test_variants.py::test_commuting_axes_are_multiples_of_one_matrix",
            lacks=_COSINES,
        ),
        Entry(
            name="Cayley-STRING",
            aliases=("STRING",),
            where=_example(transform=rotary.CayleySTRING(8, rope.transform).transform),
            source=rotary.CayleySTRING,
            parameters="d (d − 1)/2",
            cost="2 n D d beside the rotation; "
            "none where P is folded into the projections",
            test="rotary/test_variants.py::test_string_is_rope_in_another_basis",
            lacks=_COSINES,
        ),
        Entry(
            name="FoPE",
            where=_example(
                transform=rotary.FoPE(
                    8, length=512, heads=4, generator=_draw()
                ).transform
            ),
            source=rotary.FoPE,
            parameters="2 H K² for the K pairs that make a full turn within L",
            cost="O(n H K²) for the tables, and RoPE's 6 n D",
            test="rotary/test_variants.py::test_fope_is_its_equation",
            lacks=(
                _COSINES
                | dict.fromkeys(
                    ("relative", "Toeplitz", "nothing at position zero", "norm"),
                    "mixed tables are not a rotation",
                )
            ),
        ),
        Entry(
            name="RePo",
            where=_example(
                transform=rotary.RePo(8, 4, rope, latent=4, generator=_draw()).transform
            ),
            source=rotary.RePo,
            parameters="r (2 D + H) for r latent channels",
            cost="O(n r (D + H)) for the positions, and RoPE's 6 n D",
            test="rotary/test_variants.py::test_repo_turns_by_positions_it_reads",
            lacks=_at_zero("it rotates by positions that it reads from the tokens"),
        ),
        Entry(
            name="GRAPE, multiplicative",
            where=_example(transform=grape),
            source=rotary.grape,
            parameters="2 d a plane",
            cost="O(n d) a plane and head",
            test="rotary/test_variants.py::test_grape_is_the_exponential",
            lacks=_COSINES,
        ),
        Entry(
            name="TAPA",
            where=_example(scores=rotary.tapa, scale=1.0),
            source=rotary.tapa,
            parameters="0",
            cost="n² H powers and cosines",
            test="rotary/test_variants.py::test_tapa_is_its_equation",
            lacks=_COSINES | _at_zero("a part of the channels alone has the content"),
        ),
    )


def _schedules() -> tuple[Entry, ...]:
    same = "6 n D, as plain RoPE"
    longrope = partial(
        rotary.longrope, short_factors=[1.0] * 4, long_factors=[2.0] * 4, length=128
    )
    return (
        Entry(
            name="Position interpolation",
            aliases=("PI", "linear scaling"),
            where=_rope(rotary.linear_interpolation(8, 1e4, factor=4.0)),
            source=rotary.linear_interpolation,
            parameters="0",
            cost=same,
            used_by="the global layers of Gemma 3 from 4B on",
            golden=("rope_linear_f4", "rope_linear_partial"),
            test="rotary/test_scaling.py::test_bug_07_linear_interpolation_divides_positions",
            lacks=_COSINES,
        ),
        Entry(
            name="NTK-aware",
            aliases=("NTK scaling", "adjusted base"),
            where=_rope(rotary.ntk_aware(8, 1e4, factor=4.0)),
            source=rotary.ntk_aware,
            parameters="0",
            cost=same,
            golden=(
                "rope_ntk_theta_rescale_rotary_embedding_torch",
                "rope_xtransformers",
            ),
            test="rotary/test_scaling.py::test_bug_27_ntk_static",
            lacks=_COSINES,
        ),
        Entry(
            name="Dynamic NTK",
            aliases=("dynamic scaling",),
            where=_rope(
                rotary.dynamic_ntk(8, 1e4, factor=4.0, length=128, original_length=64)
            ),
            source=rotary.dynamic_ntk,
            parameters="0",
            cost=f"{same}; cached keys must be rotated again when the length grows",
            golden=(
                "rope_dynamic_above",
                "rope_dynamic_below",
                "rope_dynamic_stateful_llama",
            ),
            test="rotary/test_scaling.py::test_dynamic_ntk_is_its_equation",
            lacks=_COSINES,
        ),
        Entry(
            name="NTK-by-parts",
            where=_rope(rotary.ntk_by_parts(8, 1e4, factor=4.0, original_length=64)),
            source=rotary.ntk_by_parts,
            parameters="0",
            cost=same,
            test="rotary/test_scaling.py::test_by_parts_and_yarn_are_the_papers_equation",
            lacks=_COSINES,
        ),
        Entry(
            name="NTK-by-parts, original",
            where=_rope(
                rotary.ntk_by_parts_original(8, 1e4, factor=4.0, original_length=64)
            ),
            source=rotary.ntk_by_parts_original,
            parameters="0",
            cost=same,
            golden=("ntk_by_parts_original_repo",),
            test="rotary/test_scaling.py::test_original_by_parts_is_its_equation",
            lacks=_COSINES,
        ),
        Entry(
            name="YaRN, as in the paper",
            where=_rope(rotary.yarn(8, 1e4, factor=4.0, original_length=64)),
            source=rotary.yarn,
            parameters="0",
            cost=same,
            test="rotary/test_scaling.py::test_by_parts_and_yarn_are_the_papers_equation",
            lacks=_COSINES | _FACTOR,
        ),
        Entry(
            name="YaRN, as released",
            where=_rope(rotary.yarn_released(8, 1e4, factor=4.0, original_length=64)),
            source=rotary.yarn_released,
            parameters="0",
            cost=same,
            used_by="Qwen2.5, Qwen3, DeepSeek-V3, gpt-oss (not truncated), "
            "OLMo 3, SmolLM3",
            golden=(
                "deepseek_official_yarn_freqs_cis",
                "rope_yarn_deepseek_v3",
                "rope_yarn_f4_default",
                "rope_yarn_gpt_oss",
                "rope_yarn_gpt_oss_official",
                "rope_yarn_mscale_unequal",
                "yarn_original_repo",
            ),
            test="rotary/test_scaling.py::test_released_yarn_is_its_equation",
            lacks=_COSINES | _FACTOR,
        ),
        Entry(
            name="DeepSeek's softmax scale",
            where="scale",
            source=rotary.deepseek_softmax_scale,
            parameters="0",
            cost="none",
            used_by="DeepSeek-V2, DeepSeek-V3",
            golden=("deepseek_softmax_scale_mscale",),
            test="rotary/test_scaling.py::test_deepseek_softmax_scale_is_its_equation",
        ),
        Entry(
            name="LongRoPE",
            where=_rope(longrope(8, 1e4, factor=4.0, original_length=64)),
            source=rotary.longrope,
            parameters="0: its factors are found by search",
            cost=same,
            used_by="Phi-3, Phi-3.5",
            golden=(
                "rope_longrope_long",
                "rope_longrope_phi35_mini_short",
                "rope_longrope_short",
                "rope_longrope_stateful_llama",
            ),
            test="rotary/test_scaling.py::test_longrope_is_its_equation",
            lacks=_COSINES | _FACTOR,
        ),
        Entry(
            name="Llama 3.1's schedule",
            where=_rope(rotary.llama3(8, 1e4, factor=4.0, original_length=64)),
            source=rotary.llama3,
            parameters="0",
            cost=same,
            used_by="Llama 3.1, Llama 3.2, Llama 4 Scout",
            golden=("rope_llama3_1_f8",),
            test="rotary/test_scaling.py::test_llama3_is_its_equation",
            lacks=_COSINES,
        ),
        Entry(
            name="p-RoPE",
            aliases=("proportional RoPE",),
            where=_rope(rotary.proportional(8, 1e4, fraction=0.5)),
            source=rotary.proportional,
            parameters="0",
            cost=same,
            used_by="the global layers of Gemma 4",
            golden=("rope_proportional_p25",),
            test="rotary/test_scaling.py::test_p_rope_keeps_the_fastest_pairs_of_the_full_spectrum",
            lacks=_COSINES,
        ),
        Entry(
            name="Clipped RoPE",
            aliases=("CoPE in its paper of 2026",),
            where=_rope(
                rotary.clipped(rotary.linear_interpolation(8, 1e4, factor=1.0), count=3)
            ),
            source=rotary.clipped,
            parameters="0",
            cost=same,
            test="rotary/test_scaling.py::test_clipped_is_its_equation",
            lacks=_COSINES,
        ),
    )


def _axes() -> tuple[Entry, ...]:
    series, same = frequencies.inverse_frequencies(8), "6 n D, as plain RoPE"

    def axes(matrix: torch.Tensor) -> PositionScheme:
        return _example(transform=rotary.AxialRoPE(matrix, layout="half").transform)

    return (
        Entry(
            name="Axial RoPE",
            aliases=("rotary 2-D", "RoPE-2D", "vision RoPE"),
            where=axes(rotary.axial_frequencies((2, 2))),
            source=rotary.axial_frequencies,
            parameters="0",
            cost=same,
            used_by="EVA-02, the image encoders of Qwen2-VL and Llama 4",
            golden=(
                "rope2d_axial_rope_vit",
                "rope2d_llama4_vision",
                "rope2d_qwen2_vl_vision",
                "rope2d_timm_eva_cat",
            ),
            test="rotary/test_multiaxis.py::test_axial_is_one_rope_for_each_axis",
            lacks=_COSINES,
        ),
        Entry(
            name="Axial RoPE in pixel frequencies",
            where=axes(
                rotary.block_frequencies(*[frequencies.pixel_frequencies(2, 16.0)] * 2)
            ),
            source=frequencies.pixel_frequencies,
            parameters="0",
            cost=same,
            golden=(
                "fourier2d_timm_pixel",
                "rope2d_timm_pixel",
                "rope_axial_rotary_embedding_torch",
            ),
            test="test_frequencies.py::test_pixel_frequencies_are_the_equations",
            lacks=_COSINES,
        ),
        Entry(
            name="Pixtral's RoPE",
            aliases=("rotary 2-D",),
            where=axes(rotary.pixtral_frequencies(series)),
            source=rotary.pixtral_frequencies,
            parameters="0",
            cost=same,
            used_by="Pixtral",
            golden=("rope2d_pixtral",),
            test="rotary/test_multiaxis.py::test_pixtral_shares_the_series",
            lacks=_COSINES,
        ),
        Entry(
            name="DINOv3's RoPE",
            aliases=("rotary 2-D",),
            where=axes(rotary.dinov3_frequencies(8)),
            source=rotary.dinov3_frequencies,
            parameters="0",
            cost=same,
            used_by="DINOv3",
            golden=("rope2d_dinov3",),
            test="rotary/test_multiaxis.py::test_dinov3_frequencies_are_the_equation",
            lacks=_COSINES,
        ),
        Entry(
            name="Mixed RoPE",
            aliases=("rotary 2-D", "RoPE-Mixed"),
            where=_example(
                transform=rotary.MixedRoPE(4, 8, generator=_draw()).transform
            ),
            source=rotary.MixedRoPE,
            parameters="D",
            cost=f"{same}; tables of each head",
            used_by="RoPE-ViT",
            golden=("rope2d_mixed_rope_vit",),
            test="rotary/test_multiaxis.py::test_mixed_rope_is_the_equation",
            lacks=_COSINES,
        ),
        Entry(
            name="Golden-gate RoPE",
            aliases=("rotary 2-D",),
            where=axes(rotary.golden_gate_frequencies(4, 8, slowest=0.2, fastest=20.0)),
            source=rotary.golden_gate_frequencies,
            parameters="0",
            cost=f"{same}; tables of each head",
            test="rotary/test_multiaxis.py::test_golden_gate_directions",
            lacks=_COSINES,
        ),
        Entry(
            name="M-RoPE, in sections",
            aliases=("multimodal RoPE",),
            where=axes(rotary.mrope_frequencies(series, (2, 1, 1))),
            source=rotary.mrope_frequencies,
            parameters="0",
            cost=same,
            used_by="Qwen2-VL, Qwen2.5-VL, Qwen2.5-Omni",
            golden=("mrope_sections_qwen2_vl",),
            test="rotary/test_multiaxis.py::test_bug_71_mrope_sections_of_every_size",
            lacks=_COSINES,
        ),
        Entry(
            name="M-RoPE, interleaved",
            aliases=("multimodal RoPE", "interleaved MRoPE"),
            where=axes(rotary.mrope_interleaved_frequencies(series, (2, 1, 1))),
            source=rotary.mrope_interleaved_frequencies,
            parameters="0",
            cost=same,
            used_by="Qwen3-VL, Qwen3.5",
            golden=("mrope_interleaved_qwen3_vl",),
            test="rotary/test_multiaxis.py::test_bug_71_mrope_sections_of_every_size",
            lacks=_COSINES,
        ),
        Entry(
            name="VideoRoPE",
            where=axes(rotary.videorope_frequencies(series, (2, 1, 1))),
            source=rotary.videorope_frequencies,
            parameters="0",
            cost=same,
            test="rotary/test_multiaxis.py::test_videorope_frequencies_are_the_equation",
            lacks=_COSINES,
        ),
    )


def _biases() -> tuple[Entry, ...]:
    look_up, network = "n² H look-ups and additions", "n² passes of the network"
    return (
        Entry(
            name="T5 bias",
            aliases=("bucketed relative position bias",),
            where=scheme.t5(4, bidirectional=False, std=1.0, generator=_draw()),
            source=bias.T5Bias,
            parameters="B H for B buckets, shared by all layers",
            cost=look_up,
            used_by="T5, mT5",
            golden=(
                "t5_bucket_nb16_md64_bidirectional",
                "t5_bucket_nb16_md64_causal",
                "t5_bucket_nb32_md128_bidirectional",
                "t5_bucket_nb32_md128_causal",
                "t5_compute_bias",
            ),
            test="bias/test_t5.py::test_t5_bias_is_the_equation",
            lacks=_LEARNED | _at_zero("T5 does not divide by √d"),
        ),
        Entry(
            name="ALiBi",
            aliases=("attention with linear biases",),
            where=scheme.alibi(4),
            source=bias.alibi,
            parameters="0",
            cost="n² H multiplications and additions",
            used_by="Bloom, MPT, some Falcon models",
            golden=(
                "alibi_bias_bloom",
                "alibi_bias_falcon_bf16",
                "alibi_bias_mpt",
                "alibi_bias_neox_causal",
                "alibi_bias_xtransformers_symmetric",
                "alibi_slopes_bloom",
                "alibi_slopes_mpt",
                "alibi_slopes_xtransformers",
            ),
            test="bias/test_alibi.py::test_alibi_is_the_equation",
        ),
        Entry(
            name="KERPLE, logarithmic",
            where=_example(bias=bias.KerpleLog(4, generator=_draw())),
            source=bias.KerpleLog,
            parameters="2 H",
            cost="n² H logarithms",
            golden=("kerple_log",),
            test="bias/test_kernels.py::test_kerple_is_the_equation",
        ),
        Entry(
            name="KERPLE, power",
            where=_example(bias=bias.KerplePower(4, generator=_draw())),
            source=bias.KerplePower,
            parameters="2 H",
            cost="n² H powers",
            golden=("kerple_power",),
            test="bias/test_kernels.py::test_kerple_is_the_equation",
        ),
        Entry(
            name="FIRE",
            aliases=("functional interpolation",),
            where=_example(bias=bias.FIRE(4, generator=_draw())),
            source=bias.FIRE,
            parameters="h (H + 2) + H + 2 for h hidden units",
            cost=network,
            golden=("fire",),
            test="bias/test_kernels.py::test_fire_is_the_equation",
            lacks=(
                _LEARNED
                | dict.fromkeys(
                    ("relative", "Toeplitz"), "its divisor is the query's position"
                )
            ),
        ),
        Entry(
            name="Sandwich",
            where=_example(bias=partial(bias.sandwich, heads=4)),
            source=bias.sandwich,
            parameters="0",
            cost="O(n² d̄) cosines for all heads together; "
            "2 n − 1 different values a head",
            golden=("sandwich_nemo",),
            test="bias/test_kernels.py::test_sandwich_is_the_equation",
            lacks={"decays with distance": "a sum of cosines falls in waves"},
        ),
        Entry(
            name="Network of the distance",
            aliases=("continuous or dynamic position bias",),
            where=_example(bias=bias.DistanceMLPBias(4, 8, generator=_draw())),
            source=bias.DistanceMLPBias,
            parameters="w² + w (H + 3) + H for width w and depth 2",
            cost=network,
            golden=("dynamic_position_bias_xtransformers",),
            test="bias/test_mlp.py::test_distance_network_is_the_equation",
            lacks=_LEARNED,
        ),
        Entry(
            name="Relative bias as a Hankel view",
            where="bias, without its matrix",
            source=attention.hankel_attention,
            parameters="those of the bias",
            cost="n² H additions; O(n) memory a head in place of n²",
            test="attention/test_hankel.py::test_hankel_attention_is_attention",
        ),
        Entry(
            name="Relative bias for FlexAttention",
            where="bias, inside the kernel",
            source=attention.relative_score_mod,
            parameters="those of the bias",
            cost="n² H look-ups; O(n) memory a head",
            test="attention/test_fused.py::test_flex_attention_with_a_relative_bias_is_attention",
        ),
    )


def _images() -> tuple[Entry, ...]:
    look_up = "n² H look-ups and additions"
    return (
        Entry(
            name="Swin's bias",
            aliases=("relative position bias table",),
            where=_example(bias=bias.WindowBias(4, (4, 4), generator=_draw())),
            source=bias.WindowBias,
            parameters="(2 M − 1)² H in windows of M × M",
            cost=look_up,
            used_by="Swin",
            golden=("swin_relative_position_index",),
            test="bias/test_window.py::test_window_bias_is_the_equation",
            lacks=_LEARNED,
        ),
        Entry(
            name="BEiT's bias",
            where=_example(bias=bias.ClsWindowBias(4, (4, 4))),
            source=bias.ClsWindowBias,
            parameters="((2 M − 1)² + 3) H in windows of M × M",
            cost=look_up,
            used_by="BEiT",
            golden=("beit_relative_position_index",),
            test="bias/test_window.py::test_class_rows_come_after_the_others",
            lacks=_LEARNED,
        ),
        Entry(
            name="Swin-V2's bias",
            where=_example(bias=bias.LogCoordinateBias(4, (4, 4), generator=_draw())),
            source=bias.LogCoordinateBias,
            parameters="h (H + 3) for h = 512 hidden units",
            cost="(2 M − 1)² passes of the network, and n² H look-ups",
            used_by="Swin-V2",
            golden=("swinv2_log_coords_table",),
            test="bias/test_mlp.py::test_swin_v2_is_the_equation_and_bounded",
            lacks=_LEARNED,
        ),
        Entry(
            name="CrossFormer's bias",
            where=_example(bias=bias.DynamicPositionBias(4, 8, generator=_draw())),
            source=bias.DynamicPositionBias,
            parameters="2 w² + w (A + H + 9) + H for width w and A axes",
            cost="n² passes of the network",
            used_by="CrossFormer",
            test="bias/test_mlp.py::test_crossformer_is_the_equation",
            lacks=_LEARNED,
        ),
        Entry(
            name="iRPE, bias",
            where=_example(bias=bias.IRPEBias(4)),
            source=bias.IRPEBias,
            parameters="((2 ⌊β⌋ + 1)² + 1) H, product method in 2-D",
            cost=look_up,
            test="bias/test_window.py::test_irpe_modes_are_the_equations",
            lacks=_LEARNED,
        ),
        Entry(
            name="iRPE, contextual",
            where=_example(scores=bias.IRPEContextual(8).scores),
            source=bias.IRPEContextual,
            parameters="((2 ⌊β⌋ + 1)² + 1) d, product method in 2-D",
            cost="n D products for each row of the table, and n² H look-ups",
            test="bias/test_window.py::test_irpe_modes_are_the_equations",
            lacks=_LEARNED,
        ),
    )


def _content() -> tuple[Entry, ...]:
    slopes = partial(bias.alibi, slopes=bias.alibi_slopes(4))
    shaw = content.Shaw(8, 3, generator=_draw())
    deberta = content.DeBERTa(4, 8, 8, 4, generator=_draw())
    rows = "(2 K + 1) n D products, and n² H look-ups"
    return (
        Entry(
            name="Shaw's relative vectors",
            aliases=("relative position representations", "RPR"),
            where=_example(scores=shaw.scores, values=shaw.values),
            source=content.Shaw,
            parameters="2 (2 K + 1) d, shared by the heads",
            cost=f"for keys and for values {rows}",
            test="content/test_shaw.py::test_shaw_is_the_equation",
            lacks=(
                _LEARNED | _at_zero("distance 0 has a vector, added to every value")
            ),
        ),
        Entry(
            name="Shaw's key term alone",
            where=_example(scores=shaw.scores),
            source=content.relative_key_scores,
            parameters="(2 K + 1) d, shared by the heads",
            cost=rows,
            used_by="Wav2Vec2-BERT, SeamlessM4T v2, BERT as `relative_key`",
            golden=(
                "shaw_bert_relative_key",
                "shaw_bert_relative_key_query",
                "shaw_relative_key_wav2vec2bert",
            ),
            test="content/test_shaw.py::test_bert_forms_are_the_equation",
            lacks=_LEARNED,
        ),
        Entry(
            name="BERT's relative_key_query",
            where=_example(
                scores=partial(
                    content.relative_key_query_scores, table=torch.zeros(7, 8), left=3
                )
            ),
            source=content.relative_key_query_scores,
            parameters="(2 K + 1) d, shared by the heads",
            cost=f"for queries and for keys {rows}",
            golden=("shaw_bert_relative_key_query",),
            test="content/test_shaw.py::test_bert_forms_are_the_equation",
            lacks=_LEARNED | _OWN_VECTOR,
        ),
        Entry(
            name="Transformer-XL",
            where=_example(
                scores=content.TransformerXL(4, 8, 8, generator=_draw()).scores
            ),
            source=content.TransformerXL,
            parameters="D² + 2 D",
            cost="n² D for the distances: the score is computed twice",
            used_by="Transformer-XL, XLNet, Parakeet and other Conformers",
            golden=(
                "conformer_relative_position",
                "music_transformer_skew",
                "parakeet_rel_shift",
                "transformer_xl_rel_attention",
                "transformer_xl_rel_shift",
                "xlnet_rel_shift_bnij",
            ),
            test="content/test_transformer_xl.py::test_transformer_xl_is_the_equation",
            lacks=_LEARNED | _OWN_VECTOR,
        ),
        Entry(
            name="DeBERTa, as in the paper",
            where=_example(scores=deberta.scores, scale=24**-0.5),
            source=content.deberta_scores,
            parameters="2 K D for all layers, and 2 D² a layer",
            cost="4 K n D products, and 2 n² H look-ups",
            test="content/test_deberta.py::test_deberta_is_the_equation",
            lacks=_LEARNED | _OWN_VECTOR,
        ),
        Entry(
            name="DeBERTa, as released",
            where=_example(
                scores=partial(deberta.scores, form=content.deberta_released_scores),
                scale=24**-0.5,
            ),
            source=content.deberta_released_scores,
            parameters="the same",
            cost="the same",
            used_by="DeBERTa",
            test="content/test_deberta.py::test_deberta_is_the_equation",
            lacks=_LEARNED | _OWN_VECTOR,
        ),
        Entry(
            name="DeBERTa-v2",
            where=_example(
                scores=partial(
                    deberta.scores,
                    form=partial(content.deberta_v2_scores, max_distance=6),
                ),
                scale=24**-0.5,
            ),
            source=content.deberta_v2_scores,
            parameters="the same",
            cost="the same",
            used_by="DeBERTa-v2, DeBERTa-v3, SEW-D",
            golden=(
                "deberta_v2_build_relative_position",
                "deberta_v2_disentangled_bias",
                "deberta_v2_log_bucket_b256_m512",
                "deberta_v2_log_bucket_b32_m128",
            ),
            test="content/test_deberta.py::test_deberta_v2_is_the_equation_beyond_the_last_bucket",
            lacks=_LEARNED | _OWN_VECTOR,
        ),
        Entry(
            name="TUPE",
            where=_example(
                bias=content.TUPE(2048, 8, 4, 8, generator=_draw()), scale=16**-0.5
            ),
            source=content.TUPE,
            parameters="L D + 2 D² + 2 H, shared by all layers",
            cost="n² D once for all layers, then n² H additions",
            test="content/test_tupe.py::test_tupe_is_the_equation",
            lacks=(
                _LEARNED
                | dict.fromkeys(("relative", "Toeplitz"), "its positions are absolute")
                | _at_zero("the scores are divided by √(2d)")
            ),
        ),
        Entry(
            name="CoPE",
            aliases=("contextual position encoding",),
            where=_example(scores=content.CoPE(8, 6).scores),
            source=content.CoPE,
            parameters="p d for positions below p, shared by the heads",
            cost="n² H gates and sums, p n D products",
            golden=("cope_xtransformers",),
            test="content/test_cope.py::test_cope_is_the_equation",
            lacks=(
                _LEARNED | _COUNTS | _at_zero("it counts open gates, not positions")
            ),
        ),
        Entry(
            name="DAPE",
            where=_example(
                scores=content.DAPE(4, slopes, generator=_draw()).scores, scale=1.0
            ),
            source=content.DAPE,
            parameters="h (3 H + 1) + H for h hidden units, beside the bias",
            cost="n² passes of a network of 2 H inputs",
            test="content/test_dape.py::test_dape_is_the_equation_and_reduces_to_the_bias",
            lacks=_LEARNED | _at_zero("a network of the scores is added"),
        ),
        Entry(
            name="Forgetting Transformer",
            aliases=("FoX", "data-dependent ALiBi"),
            where=_example(bias=content.ForgetGate(8, 4, generator=_draw())),
            source=content.ForgetGate,
            parameters="H (D + 1)",
            cost="n D H for the gates, n² H additions",
            golden=("data_dependent_alibi_xtransformers",),
            test="content/test_forgetting.py::test_forget_gate_is_the_equation",
            lacks=_COUNTS,
        ),
        Entry(
            name="PaTH",
            where=_example(
                scores=content.PaTH(8, 4, 8, rank=4, generator=_draw()).scores
            ),
            source=content.path_scores,
            parameters="2 r D + H (D + 1) for rank r",
            cost="a triangular system a head: O(n³ H) here, "
            "O(n²) by blocks in its authors' kernel",
            test="content/test_path.py::test_path_is_the_product_of_reflections_in_the_papers_order",
            lacks=_COUNTS | _LEARNED,
        ),
        Entry(
            name="Relative logits",
            where=_example(
                bias=content.RelativeLogits(8, 4, 5, rank=3, generator=_draw())
            ),
            source=content.RelativeLogits,
            parameters="r (H D + R) for rank r and distances below R",
            cost="r n H (D + R) products, and n² H look-ups",
            used_by="Inkling",
            test="content/test_relative_logits.py::test_relative_logits_are_the_equation",
            lacks=_LEARNED,
        ),
    )


def _long_context() -> tuple[Entry, ...]:
    rope = rotary.RoPE(frequencies.inverse_frequencies(8))
    twice = "n² D more: two matrices of scores"

    def branches(rule: Callable[..., Any], **arguments: int) -> PositionScheme:
        return _example(
            scores=partial(
                attention.branched_scores,
                rope=rope,
                branches=partial(rule, **arguments),
            )
        )

    def tempered(rule: Callable[..., Any], **arguments: int) -> PositionScheme:
        return _example(
            transform=partial(
                attention.tempered, temperature=partial(rule, **arguments)
            )
        )

    return (
        Entry(
            name="ReRoPE",
            where=branches(attention.rerope, window=5),
            source=attention.rerope,
            parameters="0",
            cost=twice,
            test="attention/test_long_context.py::test_distances_and_scores_are_their_equations",
            lacks=_COSINES,
        ),
        Entry(
            name="Leaky ReRoPE",
            where=branches(attention.leaky_rerope, window=5, factor=4),
            source=attention.leaky_rerope,
            parameters="0",
            cost=twice,
            test="attention/test_long_context.py::test_distances_and_scores_are_their_equations",
            lacks=_COSINES,
        ),
        Entry(
            name="Self-Extend",
            aliases=("grouped attention",),
            where=branches(attention.self_extend, window=6, group=3),
            source=attention.self_extend,
            parameters="0",
            cost=twice,
            test="attention/test_long_context.py::test_distances_and_scores_are_their_equations",
            lacks=_COSINES | _START,
        ),
        Entry(
            name="Dual chunk attention",
            aliases=("DCA",),
            where=branches(attention.dual_chunk, chunk=5, local=2),
            source=attention.dual_chunk,
            parameters="0",
            cost="2 n² D more here, with three matrices of scores; "
            "none where each chunk is computed apart",
            used_by="Qwen2.5-1M",
            test="attention/test_long_context.py::test_distances_and_scores_are_their_equations",
            lacks=_COSINES | _START,
        ),
        Entry(
            name="LM-Infinite",
            aliases=("Λ-shaped mask",),
            where=_example(
                scores=branches(attention.rerope, window=4).scores,
                mask=partial(attention.lambda_mask, sinks=2, window=4),
            ),
            source=attention.lambda_mask,
            parameters="0",
            cost="less than plain attention: n (w + g) D in place of n² D",
            test="attention/test_masks.py::test_lambda_mask_is_its_definition",
            lacks=(
                _COSINES
                | dict.fromkeys(
                    ("relative", "Toeplitz"), "the first positions are sinks"
                )
            ),
        ),
        Entry(
            name="StreamingLLM's positions",
            aliases=("attention sinks",),
            where="position, in the cache",
            source=attention.evict,
            parameters="0",
            cost="6 D for each key that is moved",
            test="attention/test_long_context.py::test_bug_77_eviction_rotates_as_if_from_the_start",
        ),
        Entry(
            name="Sliding window",
            aliases=("SWA", "local attention"),
            where=_example(mask=partial(attention.sliding_window, size=4)),
            source=attention.sliding_window,
            parameters="0",
            cost="less than plain attention: n w D in place of n² D",
            used_by="Gemma 3, gpt-oss, OLMo 3 and ModernBERT, in some layers",
            test="attention/test_masks.py::test_masks_are_their_loops",
        ),
        Entry(
            name="Llama 4's temperature",
            where=tempered(attention.llama4_temperature, floor_scale=4),
            source=attention.llama4_temperature,
            parameters="0",
            cost="n D multiplications",
            used_by="the layers of Llama 4 without RoPE",
            golden=("llama4_attention_temperature",),
            test="attention/test_long_context.py::test_temperatures_are_their_equations",
            lacks=dict.fromkeys(("relative", "norm"), _WARMTH),
        ),
        Entry(
            name="Logarithmic temperature",
            where=tempered(attention.log_length_temperature, trained_length=4),
            source=attention.log_length_temperature,
            parameters="0",
            cost="n D multiplications",
            test="attention/test_long_context.py::test_temperatures_are_their_equations",
            lacks=(dict.fromkeys(("relative", "norm"), _WARMTH)),
        ),
        Entry(
            name="SSMax",
            where=_example(transform=attention.SSMax(4).transform),
            source=attention.SSMax,
            parameters="H",
            cost="n D multiplications",
            test="attention/test_long_context.py::test_ssmax_is_its_equation",
            lacks=(
                dict.fromkeys(("relative", "norm"), _WARMTH)
                | _at_zero("the first query sees one key, and ln 1 = 0")
            ),
        ),
    )


def _linear() -> tuple[Entry, ...]:
    where = "linear attention"
    sine = attention.SineSPE(4, 8, generator=_draw())
    conv = attention.ConvSPE(4, 8, kernel_size=4, generator=_draw())
    return (
        Entry(
            name="RoPE in linear attention",
            where=where,
            source=attention.linear_attention,
            parameters="0",
            cost="O(n d²) a head, in place of O(n² d)",
            test="attention/test_linear.py::test_linear_attention_is_equation_19",
        ),
        Entry(
            name="Linear Transformer",
            where=where,
            source=attention.causal_linear_attention,
            parameters="0",
            cost="O(n d²) a head, in place of O(n² d)",
            test="attention/test_linear.py::test_linear_attention_is_equation_19",
        ),
        Entry(
            name="FAVOR+",
            where=where,
            source=attention.positive_features,
            parameters="0: its M directions are drawn",
            cost="O(n M d) a head",
            used_by="Performer",
            test="attention/test_linear.py::test_positive_features_are_the_equation",
        ),
        Entry(
            name="cosFormer",
            where=where,
            source=attention.cosformer_features,
            parameters="0",
            cost="O(n d²) a head",
            used_by="cosFormer",
            test="attention/test_linear.py::test_cosformer_is_its_equation",
        ),
        Entry(
            name="Kernel attention with relative bias",
            aliases=("NPRF", "Toeplitz"),
            where=where,
            source=attention.toeplitz_attention,
            parameters="(2 L − 1) H",
            cost="O(n log n · f d) a head for f features",
            test="attention/test_toeplitz.py::test_toeplitz_attention_is_the_dense_form",
        ),
        Entry(
            name="sineSPE",
            where=_example(
                transform=partial(sine.transform, noise=sine.draw(4, generator=_draw()))
            ),
            source=attention.SineSPE,
            parameters="3 S D for S sines",
            cost="O(n R D) for R samples",
            test="attention/test_stochastic.py::test_sine_kernel_is_a_sum_of_cosines",
            lacks=_NOISE,
        ),
        Entry(
            name="convSPE",
            where=_example(
                transform=partial(
                    conv.transform, noise=conv.draw(2048, 4, generator=_draw())
                )
            ),
            source=attention.ConvSPE,
            parameters="2 P D for filters of P taps",
            cost="O(n R D P) for R samples",
            test="attention/test_stochastic.py::test_conv_kernel_is_the_correlation_of_the_filters",
            lacks=_NOISE,
        ),
        Entry(
            name="Retention",
            where=where,
            source=attention.retention,
            parameters="0",
            cost="O(n d²) a head in its recurrent form",
            used_by="RetNet",
            test="attention/test_linear.py::test_retention_is_its_equation",
        ),
    )


def _layers() -> tuple[Entry, ...]:
    where = "layer by layer"
    return (
        Entry(
            name="Gemma 3's layers",
            where=where,
            source=layers.gemma3,
            parameters="0",
            cost="6 n D; w keys a query in place of n in five of six layers",
            used_by="Gemma 3",
            golden=("rope_gemma3_local_global",),
            test="test_layers.py::test_only_global_layers_of_gemma3_are_interpolated",
        ),
        Entry(
            name="Llama 4's layers (iRoPE)",
            where=where,
            source=layers.llama4,
            parameters="0",
            cost="6 n D, and a query sees its chunk in place of n keys, "
            "in three of four layers",
            used_by="Llama 4",
            golden=("nope_layer_pattern",),
            test="test_layers.py::test_plans_put_the_full_layers_where_the_models_have_them",
        ),
        Entry(
            name="SmolLM3's layers",
            where=where,
            source=layers.smollm3,
            parameters="0",
            cost="6 n D in three of four layers",
            used_by="SmolLM3",
            golden=("nope_layer_pattern",),
            test="test_layers.py::test_plans_put_the_full_layers_where_the_models_have_them",
        ),
        Entry(
            name="Command's layers",
            aliases=("RNoPE-SWA",),
            where=where,
            source=layers.cohere2,
            parameters="0",
            cost="6 n D, and w keys a query in place of n, in three of four layers",
            used_by="Command R7B, Command A",
            test="test_layers.py::test_plans_put_the_full_layers_where_the_models_have_them",
        ),
        Entry(
            name="gpt-oss's layers",
            where=where,
            source=layers.gpt_oss,
            parameters="0",
            cost="6 n D; 128 keys a query in place of n in every other layer",
            used_by="gpt-oss",
            test="test_layers.py::test_gpt_oss_layers_rotate_as_its_configuration_says",
        ),
        Entry(
            name="ModernBERT's layers",
            where=where,
            source=layers.modernbert,
            parameters="0",
            cost="6 n D; 129 keys a query in place of n in two of three layers",
            used_by="ModernBERT",
            test="test_layers.py::test_plans_put_the_full_layers_where_the_models_have_them",
        ),
        Entry(
            name="DroPE",
            where=where,
            source=layers.drope,
            parameters="0",
            cost="none; it needs a short recalibration",
            test="test_layers.py::test_drope_drops_rotations_and_nothing_else",
        ),
    )
