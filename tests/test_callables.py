"""Every public callable: dtypes and accuracy, devices, compilation, vmap, gradients, and malformed input.

One table says how to call each of them with tensors, a second what else they take and what they must refuse. Two tests
compare the tables with what the library makes public.
"""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    HEADS,
    LENGTHS,
    SCHEMES,
    WIDTH,
    compilations,
    fake_device,
    item,
    normal,
    public,
    rounds_to,
    tensors,
)
from torch import Tensor, nn
from torch.func import functional_call, vmap

from posenc_lib import scheme as schemes
from posenc_lib.attention import attention, attention_weights, causal, real_keys, same_document, window
from posenc_lib.bias import T5Bias, alibi, alibi_slopes, t5_bucket, t5_bucket_edges
from posenc_lib.embedding import LearnedEmbedding, sinusoidal, sinusoidal_tensor2tensor
from posenc_lib.frequencies import (
    cos_sin,
    inverse_frequencies,
    octave_frequencies,
    tensor2tensor_frequencies,
    wavelengths,
)
from posenc_lib.positions import after_mask, arange, documents, from_mask, packed, relative
from posenc_lib.rotary import RoPE, convert_layout, convert_projection
from posenc_lib.scheme import PositionScheme

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Inputs = dict[str, Tensor]

# What test_ledger.py, the zoo's page and the last test of this file look at: nothing here works on tensors.
WITHOUT_TENSORS = {"ledger.Claim", "ledger.claims", "ledger.settles", "zoo.Entry", "zoo.encodings"}


# ---- how to call everything with tensors


@dataclass(frozen=True)
class Case:
    """A call with named tensors: `inputs(length, seed)` has positions as int64, masks as bool, the rest as float64.

    `result` is the documented dtype of a floating-point result: "input" (that of the floating-point tensors given),
    "at least float32", or "float32". `exact` is the same call in float64, where dtype is an argument. `noise` bounds
    the error of the arithmetic, in roundings of the dtype that it is done in; rounding the result comes on top.
    """

    call: Callable[..., Any]
    inputs: Callable[[int, int], Inputs]
    result: str = "input"
    exact: Callable[..., Any] | None = None
    noise: Callable[[Inputs, Tensor], Tensor | float] = lambda inputs, exact: 0.0
    floats: bool = True  # whether positions may be float32 or float64


def at(length: int, seed: int) -> Tensor:
    return arange(length, offset=11 * seed)


def rows(length: int, seed: int) -> Tensor:
    return torch.stack((at(length, seed), at(length, seed + 1)))


def pair(length: int, seed: int) -> Inputs:
    return {"q_positions": rows(length, seed), "k_positions": at(length, seed + 2)}


def masks(length: int, seed: int) -> Inputs:
    return {"mask": torch.arange(length).remainder(seed + 3).gt(0).expand(2, length)}


def heads_of(length: int, seed: int) -> Inputs:
    return {"x": normal(2, HEADS, length, WIDTH, seed=seed), "positions": rows(length, seed)}


def q_and_k(length: int, seed: int) -> Inputs:
    q, k = normal(2, HEADS, length, WIDTH, seed=seed), normal(2, HEADS // 2, length, WIDTH, seed=seed + 9)
    return {"q": q, "k": k} | pair(length, seed)


def q_k_and_v(length: int, seed: int) -> Inputs:
    return {"v": normal(2, HEADS // 2, length, 3, seed=seed + 5)} | q_and_k(length, seed)


def wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def rotate(rope: RoPE) -> Callable[..., Tensor]:
    return lambda x, positions: rope(positions, wide(x))(x)


def rotation_noise(inputs: Inputs, exact: Tensor) -> float:
    """Four roundings (table, product, product, sum) of at most |a| + |b|."""
    return 8 * max(float(x.abs().max()) for name, x in inputs.items() if name in "xqk")


def score_noise(q: Tensor, k: Tensor) -> float:
    """d products, their sum, the scale and the bias, as a relative error of the weights, above and below the bar."""
    largest = float(q.abs().sum(-1).max() * k.abs().max()) * WIDTH**-0.5
    return 2 * (WIDTH + 4) * largest


def weights_noise(inputs: Inputs, exact: Tensor) -> Tensor:
    return exact * (score_noise(inputs["q"], inputs["k"]) + exact.shape[-1] + 6)


def attention_noise(inputs: Inputs, exact: Tensor) -> float:
    length = inputs["k"].shape[2]
    return float(inputs["v"].abs().max()) * (score_noise(inputs["q"], inputs["k"]) + 2 * length + 8)


def with_table(module: nn.Module) -> Callable[..., Tensor]:
    """The module as a function of its table and its positions."""
    return lambda table, **positions: functional_call(module, {"table": table}, (), positions)


def everywhere(q: Tensor, k: Tensor, v: Tensor, **positions: Tensor) -> Tensor:
    """A scheme that fills every place of attention at once."""
    rope = RoPE(inverse_frequencies(WIDTH))
    scheme = PositionScheme(
        "everywhere",
        transform=rope.transform,
        bias=partial(alibi, slopes=alibi_slopes(HEADS)),
        scores=lambda q, k, m, n: q @ k.mT,
        values=lambda weights, v, m, n: weights @ v,
        mask=partial(window, size=4),
        scale=0.5,
    )
    return attention(q, k, v, scheme=scheme, **positions)


ROPE, HALF = RoPE(inverse_frequencies(WIDTH)), RoPE(inverse_frequencies(WIDTH // 2), layout="half")
TABLE = LearnedEmbedding(64, WIDTH)
T5 = {name: T5Bias(HEADS, bidirectional=name == "both", std=1.0) for name in ("both", "causal")}


def t5_inputs(length: int, seed: int) -> Inputs:
    return {"table": normal(32, HEADS, seed=seed)} | pair(length, seed)


def table_inputs(length: int, seed: int) -> Inputs:
    return {"table": normal(64, WIDTH, seed=seed), "positions": rows(length, seed)}


CASES: dict[str, Case] = {
    "positions.arange": Case(
        lambda x: arange(x.shape[-1], offset=2, device=x.device),
        lambda t, seed: {"x": torch.zeros(t, dtype=torch.bool)},
    ),
    "positions.packed": Case(
        lambda x: packed([3, x.shape[-1]], device=x.device), lambda t, seed: {"x": torch.zeros(t, dtype=torch.bool)}
    ),
    "positions.documents": Case(
        lambda x: documents([3, x.shape[-1]], device=x.device), lambda t, seed: {"x": torch.zeros(t, dtype=torch.bool)}
    ),
    "positions.from_mask": Case(partial(from_mask, first=2, padding=1), masks),
    "positions.after_mask": Case(partial(after_mask, steps=3, first=2), masks),
    "positions.relative": Case(relative, pair),
    "frequencies.wavelengths": Case(
        wavelengths,
        lambda t, seed: {"frequencies": normal(t, seed=seed).exp()},
        noise=lambda inputs, exact: 2 * exact,
    ),
    "frequencies.cos_sin": Case(
        partial(cos_sin, frequencies=inverse_frequencies(WIDTH)),
        lambda t, seed: {"positions": rows(t, seed)},
        result="float32",
        exact=partial(cos_sin, frequencies=inverse_frequencies(WIDTH), dtype=torch.float64),
    ),
    "embedding.sinusoidal": Case(
        partial(sinusoidal, dim=9),
        lambda t, seed: {"positions": rows(t, seed)},
        result="float32",
        exact=partial(sinusoidal, dim=9, dtype=torch.float64),
    ),
    "embedding.sinusoidal_tensor2tensor": Case(
        partial(sinusoidal_tensor2tensor, dim=9),
        lambda t, seed: {"positions": rows(t, seed)},
        result="float32",
        exact=partial(sinusoidal_tensor2tensor, dim=9, dtype=torch.float64),
    ),
    "embedding.LearnedEmbedding": Case(with_table(TABLE), table_inputs, floats=False),
    "rotary.RoPE": Case(
        lambda positions: (ROPE(positions).cos, ROPE(positions).sin),
        lambda t, seed: {"positions": rows(t, seed)},
        result="float32",
        exact=lambda positions: (ROPE(positions, torch.float64).cos, ROPE(positions, torch.float64).sin),
    ),
    "rotary.RoPE, transform": Case(ROPE.transform, q_and_k, noise=rotation_noise),
    "rotary.Rotation": Case(rotate(ROPE), heads_of, noise=rotation_noise),
    "rotary.Rotation, partial and half": Case(rotate(HALF), heads_of, noise=rotation_noise),
    "rotary.Rotation, shared positions": Case(
        rotate(ROPE),
        lambda t, seed: {"x": normal(t, WIDTH, seed=seed), "positions": at(t, seed)},
        noise=rotation_noise,
    ),
    "rotary.Rotation, inverse": Case(
        lambda x, positions: ROPE(positions, wide(x)).inverse()(x), heads_of, noise=rotation_noise
    ),
    "rotary.Rotation, product": Case(
        lambda x, positions: ROPE(positions, wide(x)).after(ROPE(positions, wide(x)))(x),
        heads_of,
        # Two rounded tables, two products and a sum of at most 2 for each entry of the product, beside the rotation.
        noise=lambda inputs, exact: 3 * rotation_noise(inputs, exact),
    ),
    "rotary.convert_layout": Case(
        partial(convert_layout, source="half", target="interleaved"),
        lambda t, seed: {"x": normal(2, HEADS, t, WIDTH, seed=seed)},
    ),
    "rotary.convert_projection": Case(
        partial(convert_projection, heads=HEADS, source="interleaved", target="half", rotary_dim=6),
        lambda t, seed: {"weight": normal(HEADS * WIDTH, t, seed=seed)},
    ),
    "bias.T5Bias": Case(with_table(T5["causal"]), t5_inputs, floats=False),
    "bias.T5Bias, bidirectional": Case(with_table(T5["both"]), t5_inputs, floats=False),
    "bias.t5_bucket": Case(
        partial(t5_bucket, bidirectional=True),
        lambda t, seed: {"relative_positions": at(t, seed) * 9},
        floats=False,
    ),
    "bias.alibi": Case(
        partial(alibi, slopes=alibi_slopes(3)),
        pair,
        result="float32",
        exact=partial(alibi, slopes=alibi_slopes(3), dtype=torch.float64),
        noise=lambda inputs, exact: 2 * exact.abs(),
    ),
    "attention.attention": Case(attention, q_k_and_v, noise=attention_noise),
    "attention.attention_weights": Case(attention_weights, q_and_k, result="at least float32", noise=weights_noise),
    "attention.causal": Case(causal, pair),
    "attention.window": Case(partial(window, size=3), pair),
    "attention.same_document": Case(
        same_document, lambda t, seed: {"q_documents": rows(t, seed) // 3, "k_documents": rows(t, seed) // 3}
    ),
    "attention.real_keys": Case(real_keys, masks),
    "scheme.PositionScheme": Case(everywhere, q_k_and_v, noise=lambda i, exact: 2 * attention_noise(i, exact)),
    "scheme.sinusoidal": Case(
        lambda positions: schemes.sinusoidal(WIDTH).embedding(positions),
        lambda t, seed: {"positions": rows(t, seed)},
        result="float32",
        exact=partial(sinusoidal, dim=WIDTH, dtype=torch.float64),
    ),
    "scheme.learned": Case(with_table(schemes.learned(64, WIDTH).embedding), table_inputs, floats=False),
    "scheme.rope": Case(schemes.rope(WIDTH, rotary_dim=4).transform, q_and_k, noise=rotation_noise),
    "scheme.alibi": Case(
        lambda **at: schemes.alibi(3).bias(**at),
        pair,
        result="float32",
        exact=partial(alibi, slopes=alibi_slopes(3), dtype=torch.float64),
        noise=lambda inputs, exact: 2 * exact.abs(),
    ),
    "scheme.t5": Case(with_table(schemes.t5(HEADS, bidirectional=True, std=1.0).bias), t5_inputs, floats=False),
}

CONSTANTS: dict[str, Callable[[], Any]] = {
    "frequencies.inverse_frequencies": lambda: inverse_frequencies(8),
    "frequencies.tensor2tensor_frequencies": lambda: tensor2tensor_frequencies(9),
    "frequencies.octave_frequencies": lambda: octave_frequencies(4),
    "bias.alibi_slopes": lambda: alibi_slopes(12),
    "bias.t5_bucket_edges": lambda: t5_bucket_edges(16, 128),
}
PROBES = {name for name in public() if name.startswith("properties.")}  # test_properties.py has them

every_case = pytest.mark.parametrize("name", CASES)


def is_content(x: Tensor) -> bool:
    return x.is_floating_point()


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {name: x.to(dtype) if is_content(x) else x for name, x in inputs.items()}


def positional(case: Case, names: list[str]) -> Callable[..., Any]:
    return lambda *values: case.call(**dict(zip(names, values, strict=True)))


def assert_accurate(case: Case, inputs: Inputs, outputs: Any, compute: torch.dtype) -> None:
    """`outputs` differ from the float64 results of the same inputs by no more than their arithmetic may."""
    inputs = {name: x.double() if is_content(x) else x for name, x in inputs.items()}
    for actual, exact in zip(tensors(outputs), tensors((case.exact or case.call)(**inputs)), strict=True):
        if not actual.is_floating_point():
            assert torch.equal(actual, exact)
            continue
        error = torch.finfo(compute).eps / 2 * case.noise(inputs, exact)
        assert rounds_to(actual, exact, error), f"off by {float((actual.double() - exact).abs().max())}"


def test_the_table_has_every_public_callable() -> None:
    called = {name.split(",")[0] for name in CASES} | set(CONSTANTS) | PROBES | WITHOUT_TENSORS
    assert called == set(public())


@every_case
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
    assert {x.dtype for x in tensors(outputs) if x.is_floating_point()} <= {wanted}
    assert_accurate(case, inputs, outputs, torch.promote_types(wanted, torch.float32))


@every_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int32, torch.int16, torch.uint8])
def test_dtype_of_positions_and_masks(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    inputs = case.inputs(9, 0)
    others = {name: x if is_content(x) else x.to(dtype) for name, x in inputs.items()}
    positions = [key for key in others if key.endswith("positions")]
    if dtype.is_floating_point and positions and not case.floats:
        with pytest.raises(TypeError, match="must be integers"):
            case.call(**others)
        return
    for actual, expected in zip(tensors(case.call(**others)), tensors(case.call(**inputs)), strict=True):
        assert torch.equal(actual, expected)
        assert actual.dtype == expected.dtype or name == "positions.relative"  # the only one that returns positions


@every_case
def test_meta_tensors_give_shapes(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs(9, 0)
    on_meta = case.call(**{key: x.to("meta") for key, x in inputs.items()})
    for actual, expected in zip(tensors(on_meta), tensors(case.call(**inputs)), strict=True):
        assert (actual.device.type, actual.shape, actual.dtype) == ("meta", expected.shape, expected.dtype)


@every_case
@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_devices(name: str, device: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    inputs = cast(case.inputs(9, 0), dtype)
    expected = tensors(case.call(**inputs))
    with fake_device(device) as move:
        outputs = tensors(case.call(**move(inputs)))
    for actual, wanted in zip(outputs, expected, strict=True):
        assert (actual.device.type, actual.shape, actual.dtype) == (device, wanted.shape, wanted.dtype)


def test_the_stand_in_indexes_as_python_does() -> None:
    x, some, every = torch.arange(120).reshape(2, 3, 4, 5), torch.tensor([[1, 0]]), slice(None)
    single = [None, -1, some]
    several = [(..., None), (every, None), (..., slice(0, 3)), (..., slice(None, None, 2)), (every, some)]
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
        assert_accurate(case, inputs, [x.cpu() for x in tensors(outputs)], torch.promote_types(dtype, torch.float32))


@every_case
def test_compile(name: str) -> None:
    case = CASES[name]
    inputs = [case.inputs(length, 0) for length in LENGTHS]
    names = list(inputs[0])
    assert compilations(positional(case, names), [tuple(given.values()) for given in inputs]) <= 2


# The values of floats are checked in eager mode (are they finite?), which must not reach into the graph.
@pytest.mark.parametrize("name", ["frequencies.cos_sin", "rotary.RoPE, transform", "attention.attention"])
def test_compile_with_positions_between_integers(name: str) -> None:
    case = CASES[name]
    inputs = [{key: x.double() for key, x in case.inputs(length, 0).items()} for length in LENGTHS]
    assert compilations(positional(case, list(inputs[0])), [tuple(given.values()) for given in inputs]) <= 2


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str) -> None:
    value = CONSTANTS[name]()
    if isinstance(value, Tensor):
        assert (value.dtype, value.device.type) == (torch.float64, "cpu")
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: x * CONSTANTS[name]().sum(), fullgraph=True, backend="aot_eager")
        assert compiled(torch.ones(3)).shape == (3,)
    else:
        assert all(type(number) is int for number in value)


def inductor_problem() -> str | None:
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return "needs a C++ compiler"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "needs Python's headers"
    return None


@pytest.mark.skipif(inductor_problem() is not None, reason=str(inductor_problem()))
@pytest.mark.parametrize(
    "name", ["embedding.sinusoidal", "rotary.RoPE, transform", "bias.T5Bias", "attention.attention"]
)
def test_inductor(name: str) -> None:
    torch._dynamo.reset()
    case = CASES[name]
    inputs = cast(case.inputs(9, 0), torch.float32)
    compiled = torch.compile(positional(case, list(inputs)), fullgraph=True)
    assert_accurate(case, inputs, compiled(*inputs.values()), torch.float32)


@every_case
def test_vmap(name: str) -> None:
    case = CASES[name]
    batch = [case.inputs(5, seed) for seed in range(3)]
    call = positional(case, list(batch[0]))
    together = tensors(vmap(call)(*(torch.stack([inputs[key] for inputs in batch]) for key in batch[0])))
    alone = [tensors(call(*inputs.values())) for inputs in batch]
    for i, actual in enumerate(together):
        assert_accurate(
            Case(lambda: torch.stack([row[i] for row in alone]), lambda *_: {}, noise=lambda _, y: 64 * y.abs().max()),  # noqa: B023
            {},
            actual,
            torch.float64,
        )


def test_gradients_of_tables() -> None:
    positions, frequencies = torch.tensor([0.0, 1.5, 40.25], dtype=torch.float64), inverse_frequencies(6)
    for x in (positions, frequencies):
        x.requires_grad_()
    assert torch.autograd.gradcheck(partial(cos_sin, dtype=torch.float64), (positions, frequencies))
    assert torch.autograd.gradcheck(lambda at: sinusoidal(at, 7, dtype=torch.float64), (positions,))
    x = normal(3, 6)
    assert torch.autograd.gradcheck(lambda at, f: RoPE(f)(at, torch.float64)(x), (positions, frequencies))


@pytest.mark.parametrize("name", [name for name in CASES if any(map(is_content, CASES[name].inputs(3, 0).values()))])
def test_gradients(name: str) -> None:
    case = CASES[name]
    if case.result == "float32":
        case = Case(case.exact, case.inputs)  # type: ignore[arg-type]
    inputs = case.inputs(3, 0)
    content = [key for key in inputs if is_content(inputs[key])]
    if "table" in inputs:  # a corner of the table is enough, and quick
        inputs["table"] = inputs["table"][:33]
    rest = {key: x for key, x in inputs.items() if key not in content}
    given = tuple(inputs[key].requires_grad_() for key in content)
    assert torch.autograd.gradcheck(lambda *values: case.call(**dict(zip(content, values, strict=True)), **rest), given)


@pytest.mark.parametrize("name", SCHEMES)
def test_gradients_through_attention(name: str) -> None:
    scheme, positions = SCHEMES[name], arange(3)
    qkv = tuple(normal(1, HEADS, 3, WIDTH, seed=seed).requires_grad_() for seed in range(3))

    def run(q: Tensor, k: Tensor, v: Tensor, *table: Tensor) -> Tensor:
        used = scheme
        if table:
            used = PositionScheme(
                name, scale=1.0, bias=lambda m, n: functional_call(scheme.bias, {"table": table[0]}, (m, n))
            )
        mask = causal(positions, positions)
        return attention(q, k, v, q_positions=positions, k_positions=positions, scheme=used, mask=mask)

    learned = (scheme.bias.table.detach().double().requires_grad_(),) if isinstance(scheme.bias, nn.Module) else ()
    assert torch.autograd.gradcheck(run, qkv + learned)


@every_case
def test_inputs_are_left_as_they_are(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs(9, 0)
    before = {key: x.clone() for key, x in inputs.items()}
    case.call(**inputs)
    assert all(torch.equal(inputs[key], before[key]) for key in inputs)


# The products of attention are what autocast is for; tables, rotations and biases must not change.
@pytest.mark.parametrize(
    "name", sorted(set(CASES) - {"attention.attention", "attention.attention_weights", "scheme.PositionScheme"})
)
def test_autocast_changes_no_table_and_no_rotation(name: str) -> None:
    case = CASES[name]
    inputs = cast(case.inputs(9, 0), torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = tensors(case.call(**inputs))
    assert all(torch.equal(x, y) for x, y in zip(inside, tensors(case.call(**inputs)), strict=True))
