"""Every public callable: accuracy, devices, compilation, gradients, draws.

One table says how to call each of them with tensors, a second what else they take and
what they must refuse. Two tests compare the tables with what the library makes public.
"""

from __future__ import annotations

import inspect
import shutil
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from arguments import PLAIN
from cases import CONSTANTS, COORDINATES, ELSEWHERE, Case, Inputs
from helpers import (
    HEADS,
    LENGTHS,
    SCHEMES,
    WIDTH,
    after_embedding,
    compilations,
    fake_device,
    item,
    normal,
    public,
    rounds_to,
    seeded,
    tensors,
)
from registry import constructors, derived_cases, every_case
from torch import Tensor, nn
from torch.func import functional_call, vmap

from posenc_lib import scheme as schemes
from posenc_lib.attention import attention, causal
from posenc_lib.bias import T5Bias
from posenc_lib.embedding import (
    LearnedEmbedding,
    gaussian_matrix,
    random_signs,
    sinusoidal,
)
from posenc_lib.frequencies import (
    cos_sin,
    inverse_frequencies,
)
from posenc_lib.lab import TinyTransformer
from posenc_lib.lab.model import Block
from posenc_lib.positions import arange
from posenc_lib.rotary import RoPE
from posenc_lib.scheme import PositionScheme

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

# Records, numbers and plans of layers: nothing here works on tensors.
WITHOUT_TENSORS = {
    "attention.Branch",
    "attention.LinearState",
    "attention.PreparedLayers",
    "attention.PreparedScheme",
    "attention.prepare",  # its example: the embeddings and schemes of the others
    "attention.RetentionState",
    "bias.irpe_edges",
    "layers.Layer",
    "layers.cohere2",
    "layers.drope",
    "layers.gemma3",
    "layers.gpt_oss",
    "layers.llama4",
    "layers.modernbert",
    "layers.schemes",
    "layers.smollm3",
    "multimodal_positions.AudioVideo",
    "multimodal_positions.Vision",
    "multimodal_positions.timestamped",
    "rotary.Schedule",
    "rotary.deepseek_softmax_scale",
    "rotary.yarn_attention_factor",
    "scheme.LayerSchemes",
}
# The only ones that return positions, in the dtype of those given.
RETURN_POSITIONS = {
    "positions.relative",
    "multimodal_positions.equal_axes",
    "multimodal_positions.next_positions",
    "attention.rerope",
    "attention.self_extend",
    "attention.dual_chunk",
    "attention.leaky_rerope",
    "attention.branched_relative",
    "attention.evict",
}

CASES = every_case()
every_name = pytest.mark.parametrize("name", CASES)


# Inputs that 16 bits would lose: the library takes them in float32 or float64 only.
EXACT = ("positions", "coordinates", "offsets", "matrix")


def is_content(x: Tensor) -> bool:
    return x.is_floating_point()


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    wide = torch.promote_types(dtype, torch.float32)
    return {
        name: x.to(wide if name in EXACT else dtype) if is_content(x) else x
        for name, x in inputs.items()
    }


def positional(case: Case, names: list[str]) -> Callable[..., Any]:
    return lambda *values: case.call(**dict(zip(names, values, strict=True)))


def assert_accurate(
    case: Case, inputs: Inputs, outputs: Any, compute: torch.dtype
) -> None:
    """`outputs` differ from the float64 results of the same inputs by no more than
    their arithmetic may.
    """
    inputs = {name: x.double() if is_content(x) else x for name, x in inputs.items()}
    for actual, exact in zip(
        tensors(outputs), tensors((case.exact or case.call)(**inputs)), strict=True
    ):
        if not actual.is_floating_point():
            assert torch.equal(actual, exact)
            continue
        error = torch.finfo(compute).eps / 2 * case.noise(inputs, exact)
        error = error + case.steps * torch.finfo(actual.dtype).eps / 2 * float(
            exact.detach().abs().max()
        )
        assert rounds_to(actual, exact, error), (
            f"off by {float((actual.double() - exact).abs().max())}"
        )


def test_the_table_has_every_public_callable() -> None:
    called = (
        {name.split(",")[0] for name in CASES}
        | set(CONSTANTS)
        | set(COORDINATES)
        | WITHOUT_TENSORS
    )
    assert called == {name for name in public() if name.split(".")[0] not in ELSEWHERE}


@every_name
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtype_and_accuracy(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    inputs = cast(case.inputs(9, 0), dtype)
    outputs = case.call(**inputs)
    wanted = {
        "input": dtype,
        "at least float32": torch.promote_types(dtype, torch.float32),
        "float32": torch.float32,
    }[case.result]
    if name not in RETURN_POSITIONS:
        assert {x.dtype for x in tensors(outputs) if x.is_floating_point()} <= {wanted}
    assert_accurate(case, inputs, outputs, torch.promote_types(wanted, torch.float32))


@every_name
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.int32, torch.int16, torch.uint8]
)
def test_dtype_of_positions_and_masks(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    inputs = case.inputs(9, 0)
    others = {name: x if is_content(x) else x.to(dtype) for name, x in inputs.items()}
    if not all(torch.equal(others[key].to(x.dtype), x) for key, x in inputs.items()):
        return  # no negative number is a uint8
    integers = [key for key, x in inputs.items() if x.dtype == torch.int64]
    if dtype.is_floating_point and integers and not case.floats:
        with pytest.raises(TypeError, match=r"must be .*integers"):
            case.call(**others)
        return
    for actual, expected in zip(
        tensors(case.call(**others)), tensors(case.call(**inputs)), strict=True
    ):
        assert torch.equal(actual, expected)
        assert actual.dtype == expected.dtype or name in RETURN_POSITIONS


@every_name
def test_meta_tensors_give_shapes(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs(9, 0)
    on_meta = case.call(**{key: x.to("meta") for key, x in inputs.items()})
    for actual, expected in zip(
        tensors(on_meta), tensors(case.call(**inputs)), strict=True
    ):
        assert (actual.device.type, actual.shape, actual.dtype) == (
            "meta",
            expected.shape,
            expected.dtype,
        )


@every_name
@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_devices(name: str, device: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    if device in case.kernel:
        pytest.skip("its kernel asks for the device itself")
    inputs = cast(case.inputs(9, 0), dtype)
    expected = tensors(case.call(**inputs))
    with fake_device(device) as move:
        outputs = tensors(case.call(**move(inputs)))
    for actual, wanted in zip(outputs, expected, strict=True):
        assert (actual.device.type, actual.shape) == (device, wanted.shape)
        narrow = (
            torch.float32
            if device == "mps" and wanted.dtype == torch.float64
            else wanted.dtype
        )
        assert actual.dtype == narrow


def test_the_stand_in_indexes_as_python_does() -> None:
    x, some, every = (
        torch.arange(120).reshape(2, 3, 4, 5),
        torch.tensor([[1, 0]]),
        slice(None),
    )
    single = [None, -1, some]
    several = [
        (..., None),
        (every, None),
        (..., slice(0, 3)),
        (..., slice(None, None, 2)),
        (every, some),
    ]
    several += [(..., some, slice(1, None)), (every, None, 2, slice(None, -1))]
    for index in single + several:
        assert torch.equal(item(x, index), x[index])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", FLOATS)
def test_real_gpu(dtype: torch.dtype) -> None:
    for case in CASES.values():
        inputs = cast(case.inputs(9, 0), dtype)
        outputs = case.call(**{key: x.cuda() for key, x in inputs.items()})
        assert all(x.is_cuda for x in tensors(outputs))
        assert_accurate(
            case,
            inputs,
            [x.cpu() for x in tensors(outputs)],
            torch.promote_types(dtype, torch.float32),
        )


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.graphs])
def test_compile(name: str) -> None:
    case = CASES[name]
    inputs = [
        case.inputs(length, 0)
        for length in (LENGTHS if case.graphs < len(LENGTHS) else LENGTHS[:2])
    ]
    names = list(inputs[0])
    given = [tuple(tensors.values()) for tensors in inputs]
    rotates = name.startswith(("scheme.rope", "scheme.mrope", "rotary."))
    assert compilations(positional(case, names), given, rotates=rotates) <= case.graphs


# The values of floats are checked in eager mode (are they finite?), which must not
# reach into the graph.
@pytest.mark.parametrize(
    "name", ["frequencies.cos_sin", "rotary.RoPE, transform", "attention.attention"]
)
def test_compile_with_positions_between_integers(name: str) -> None:
    case = CASES[name]
    inputs = [
        {key: x.double() for key, x in case.inputs(length, 0).items()}
        for length in LENGTHS
    ]
    assert (
        compilations(
            positional(case, list(inputs[0])),
            [tuple(given.values()) for given in inputs],
        )
        <= 2
    )


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str) -> None:
    value = CONSTANTS[name]()
    if not tensors(value):
        assert all(type(number) is int for number in value)
        return
    with torch.device("meta"):  # whatever the default device is
        again = CONSTANTS[name]()
    for x, y in zip(tensors(value), tensors(again), strict=True):
        assert (x.dtype, x.device.type) == (
            torch.int64 if name.startswith("multimodal") else torch.float64,
            "cpu",
        )
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in CONSTANTS
        if not name.startswith("multimodal")
        and "generator" not in inspect.signature(public()[name]).parameters
    ],
)
def test_constants_compile(name: str) -> None:
    if not tensors(CONSTANTS[name]()):
        return
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: x * tensors(CONSTANTS[name]())[0].sum(),
        fullgraph=True,
        backend="aot_eager",
    )
    assert compiled(torch.ones(3)).shape == (3,)


@pytest.mark.parametrize("name", COORDINATES)
def test_coordinates_are_made_where_asked(name: str) -> None:
    here, there = COORDINATES[name](), COORDINATES[name](device="meta")
    assert here.dtype in (torch.int64, torch.float64)
    assert (here.device.type, there.device.type) == ("cpu", "meta")
    assert (there.shape, there.dtype) == (here.shape, here.dtype)


def inductor_problem() -> str | None:
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return "needs a C++ compiler"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "needs Python's headers"
    return None


@pytest.mark.skipif(inductor_problem() is not None, reason=str(inductor_problem()))
@pytest.mark.parametrize(
    "name",
    [
        "embedding.sinusoidal",
        "rotary.RoPE, transform",
        "bias.T5Bias",
        "attention.attention",
    ],
)
def test_inductor(name: str) -> None:
    torch._dynamo.reset()
    case = CASES[name]
    inputs = cast(case.inputs(9, 0), torch.float32)
    compiled = torch.compile(positional(case, list(inputs)), fullgraph=True)
    assert_accurate(case, inputs, compiled(*inputs.values()), torch.float32)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.mapped])
def test_vmap(name: str) -> None:
    case = CASES[name]
    batch = [case.inputs(5, seed) for seed in range(3)]
    roundings = (
        512 if name == "rotary.grape" else 64
    )  # the angles of grape, some hundreds here, are rounded too

    def noise(inputs: Inputs, exact: Tensor) -> Tensor:
        return roundings * exact.abs().max()

    call = positional(case, list(batch[0]))
    one = [key for key in batch[0] if key in case.parameters or key == "noise"]
    mapped = tuple(None if key in one else 0 for key in batch[0])
    given = [
        batch[0][key] if key in one else torch.stack([inputs[key] for inputs in batch])
        for key in batch[0]
    ]
    together = tensors(vmap(call, mapped)(*given))
    alone = [tensors(call(*inputs.values())) for inputs in batch]
    for i, actual in enumerate(together):
        assert_accurate(
            Case(
                lambda i=i: torch.stack([row[i] for row in alone]),
                lambda *_: {},
                noise=noise,
            ),
            {},
            actual,
            torch.float64,
        )


def test_gradients_of_tables() -> None:
    positions, frequencies = (
        torch.tensor([0.0, 1.5, 40.25], dtype=torch.float64),
        inverse_frequencies(6),
    )
    for x in (positions, frequencies):
        x.requires_grad_()
    assert torch.autograd.gradcheck(
        partial(cos_sin, dtype=torch.float64), (positions, frequencies)
    )
    assert torch.autograd.gradcheck(
        lambda at: sinusoidal(at, 7, dtype=torch.float64), (positions,)
    )
    x = normal(3, 6)
    assert torch.autograd.gradcheck(
        lambda at, f: RoPE(f)(at, torch.float64)(x), (positions, frequencies)
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, case in CASES.items()
        if case.differentiable and any(map(is_content, case.inputs(3, 0).values()))
    ],
)
def test_gradients(name: str) -> None:
    case = CASES[name]
    if case.result == "float32":
        case = Case(case.exact, case.inputs)  # type: ignore[arg-type]
    inputs = case.inputs(3, 0)
    content = [key for key in inputs if is_content(inputs[key])]
    if "table" in inputs:  # a corner of the table is enough, and quick
        inputs["table"] = inputs["table"][:33]
    rest = {key: x for key, x in inputs.items() if key not in content}
    given = tuple(inputs[key].clone().requires_grad_() for key in content)

    def run(*values: Tensor) -> Any:
        return case.call(**dict(zip(content, values, strict=True)), **rest)

    assert torch.autograd.gradcheck(
        run, given, fast_mode=sum(x.numel() for x in given) > 1000
    )


@pytest.mark.parametrize("name", SCHEMES)
def test_gradients_through_attention(name: str) -> None:
    scheme, positions = after_embedding(SCHEMES[name]), arange(3)
    qkv = tuple(
        normal(1, HEADS, 3, WIDTH, seed=seed).requires_grad_() for seed in range(3)
    )

    def run(q: Tensor, k: Tensor, v: Tensor, *table: Tensor) -> Tensor:
        used = scheme
        if table:
            used = PositionScheme(
                name,
                scale=1.0,
                bias=lambda m, n: functional_call(
                    scheme.bias, {"table": table[0]}, (m, n)
                ),
            )
        mask = causal(positions, positions)
        return attention(
            q,
            k,
            v,
            q_positions=positions,
            k_positions=positions,
            scheme=used,
            mask=mask,
        )

    learned = (
        (scheme.bias.table.detach().double().requires_grad_(),)
        if isinstance(scheme.bias, nn.Module)
        else ()
    )
    assert torch.autograd.gradcheck(run, qkv + learned)


@every_name
def test_inputs_are_left_as_they_are(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs(9, 0)
    before = {key: x.clone() for key, x in inputs.items()}
    case.call(**inputs)
    assert all(torch.equal(inputs[key], before[key]) for key in inputs)


# Products of matrices are what autocast is for. All else must not change: tables, given
# frequencies, positions, masks.
WITH_PRODUCTS: dict[str, tuple[str, ...]] = {
    "attention": (
        *(
            "attention",
            "attention_weights",
            "branched_scores",
            "causal_linear_attention",
            "fused_attention",
        ),
        *("linear_attention", "positive_features", "recurrent_retention", "retention"),
        *("toeplitz_attention", "ConvSPE", "SineSPE"),
    ),
    "bias": ("IRPEContextual",),
    "content": (
        *(
            "CoPE",
            "DAPE",
            "DeBERTa",
            "ForgetGate",
            "PaTH",
            "RelativeLogits",
            "Shaw",
            "Shaw, values",
            "TUPE",
        ),
        *(
            "TransformerXL",
            "deberta_released_scores",
            "deberta_scores",
            "deberta_v2_scores",
            "path_scores",
        ),
        *("relative_key_query_scores", "relative_key_scores"),
    ),
    "embedding": ("ConvolutionalEmbedding", "LearnableFourier", "PEG"),
    "rotary": (
        *("CayleySTRING", "rotated_values", "tapa"),
        *("LatentKeys", "LatentKeys, expand", "LatentQueries"),
    ),
    "scheme": ("PositionScheme",),
}


@every_name
def test_autocast_changes_products_alone(name: str) -> None:
    case = CASES[name]
    inputs = cast(case.inputs(9, 0), torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = tensors(case.call(**inputs))
    same = all(
        torch.equal(x, y)
        for x, y in zip(inside, tensors(case.call(**inputs)), strict=True)
    )
    package, call = name.split(".", 1)
    if name not in derived_cases():
        assert same == (call not in WITH_PRODUCTS.get(package, ()))
    assert all(bool(x.isfinite().all()) for x in inside if x.is_floating_point())


# ---- draws and parameters

# Whatever draws, and whatever has parameters: how to make it without a generator.
MAKERS: dict[str, Callable[..., Any]] = {
    name: partial(call, **{k: v for k, v in arguments.items() if k != "generator"})
    for name, (call, arguments) in (PLAIN | constructors()).items()
    if (inspect.isclass(call) and issubclass(call, nn.Module))
    or "generator" in inspect.signature(call).parameters
} | {
    "embedding.LearnedEmbedding": partial(LearnedEmbedding, 8, 4),
    "bias.T5Bias": partial(T5Bias, HEADS, bidirectional=True, std=1.0),
    "embedding.gaussian_matrix": partial(gaussian_matrix, 3, 2, std=1.0),
    "embedding.random_signs": partial(random_signs, torch.ones(3, 30)),
    "lab.TinyTransformer": partial(TinyTransformer, 16, schemes.NOPE, width=8, heads=2),
    "lab.Block": partial(Block, 8, 2),
}
MODULES = [
    name
    for name, make in MAKERS.items()
    if inspect.isclass(make.func) and issubclass(make.func, nn.Module)
]


def draws(name: str) -> bool:
    return "generator" in inspect.signature(MAKERS[name]).parameters


def make(name: str, seed: int = 0) -> Any:
    """Made from a generator of its own, if it draws at all."""
    return MAKERS[name](**{"generator": seeded(seed)} if draws(name) else {})


def state(made: Any) -> list[Tensor]:
    return list(made.state_dict().values()) if isinstance(made, nn.Module) else [made]


@pytest.mark.parametrize("name", MAKERS)
def test_draws_come_from_the_generator_alone(name: str) -> None:
    """Draws repeat, another seed changes them, and no global generator moves."""
    global_state = torch.get_rng_state()
    first, again, other = (state(make(name, seed)) for seed in (0, 0, 1))
    assert all(map(torch.equal, first, again))
    assert draws(name) == (not all(map(torch.equal, first, other)))
    torch.manual_seed(int(torch.initial_seed()) + 1)
    after_another_global_seed = state(make(name))
    torch.set_rng_state(global_state)
    assert all(map(torch.equal, first, after_another_global_seed))
    state(make(name))
    assert torch.equal(torch.get_rng_state(), global_state)


@pytest.mark.parametrize("name", MODULES)
def test_state_is_parameters_and_survives_the_meta_device(name: str) -> None:
    module = make(name)
    assert not list(module.buffers())
    assert set(module.state_dict()) == {key for key, _ in module.named_parameters()}
    with torch.device("meta"):
        empty = MAKERS[name](**{"generator": None} if draws(name) else {})
    empty = empty.to("meta")
    assert {key: x.shape for key, x in empty.state_dict().items()} == {
        key: x.shape for key, x in module.state_dict().items()
    }
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(module.state_dict())
    assert all(map(torch.equal, state(filled), state(module)))


def test_every_public_module_is_made_here() -> None:
    made = {
        name
        for name, value in public().items()
        if inspect.isclass(value) and issubclass(value, nn.Module)
    } - {"scheme.PositionScheme", "scheme.LayerSchemes"}  # they hold what is given
    assert made - set(MODULES) == set()
