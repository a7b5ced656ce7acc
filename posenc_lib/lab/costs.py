"""What attention costs: CPU seconds and memory against the number of tokens.

`OMP_NUM_THREADS=1 python -m posenc_lib.lab.costs --out FILE` measures for about three
minutes; `lab.load("costs")` reads what the package stores of it. Stopped half-way and
started again, it measures what is missing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from posenc_lib import _checks, scheme
from posenc_lib.attention import attention, causal
from posenc_lib.attention.hankel import hankel_attention
from posenc_lib.attention.linear import causal_linear_attention, elu_features
from posenc_lib.attention.toeplitz import (
    Form,
    relative_bias_vector,
    toeplitz_attention,
)
from posenc_lib.bias import alibi, alibi_slopes
from posenc_lib.lab.measurements import check_writable, stored_or_new, write
from posenc_lib.lab.runs import versions
from posenc_lib.positions import arange

HEAD_DIM = 64
TOKENS = (256, 1024, 4096, 16384, 65536)
# bytes that the process may ask for; more is refused, on any machine
LIMIT = 16 * 2**30

bias = partial(alibi, slopes=alibi_slopes(1))


def full_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention by its equation, with the matrix of scores in memory."""
    positions = arange(q.shape[2])
    return attention(
        q,
        k,
        v,
        q_positions=positions,
        k_positions=positions,
        scheme=scheme.alibi(1),
        mask=causal(positions, positions),
    )


def hankel_view(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same softmax in a fused kernel; the bias matrix is a view of a vector."""
    return hankel_attention(
        q, k, v, bias=relative_bias_vector(bias, q.shape[2]), causal=True
    )


def linear_pieces(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention without positions, 64 tokens at a time."""
    q, k, state, out = elu_features(q), elu_features(k), None, []
    for piece in arange(q.shape[2]).split(64):
        o, state = causal_linear_attention(
            q[:, :, piece], k[:, :, piece], v[:, :, piece], positions=piece, state=state
        )
        out.append(o)
    return torch.cat(out, 2)


def toeplitz(q: Tensor, k: Tensor, v: Tensor, *, form: Form | None = None) -> Tensor:
    """Linear attention with the bias, by default in the form the library chooses."""
    return toeplitz_attention(
        elu_features(q),
        elu_features(k),
        v,
        bias=relative_bias_vector(bias, q.shape[2]),
        causal=True,
        form=form,
    )


def toeplitz_fft(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by FFT, whatever the length."""
    return toeplitz(q, k, v, form="fft")


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    way.__name__: way
    for way in (full_scores, hankel_view, linear_pieces, toeplitz, toeplitz_fft)
}


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that PyTorch's allocator held during a call, above the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = [
        event
        for event in recorded.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()  # negative where memory is freed
        peak = max(peak, held)
    return peak


def measure(name: str, tokens: int) -> dict[str, Any]:
    """Time and memory of one causal head in float32.

    The CPU seconds are the least of five calls, or of those that fit in five seconds:
    other processes only add to them. The peak of memory is that of another call.
    """
    _checks.one_of("name", name, tuple(WAYS))
    way = WAYS[name]
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, tokens, HEAD_DIM, generator=generator)
    run: dict[str, Any] = {"way": name, "tokens": tokens}
    try:
        way(q, k, v)  # the first call does not count
        seconds: list[float] = []
        while len(seconds) < 5 and sum(seconds) < 5:
            start = time.process_time()
            way(q, k, v)
            seconds.append(time.process_time() - start)
        least, peak = round(min(seconds), 6), peak_bytes(partial(way, q, k, v))
        return {**run, "calls": len(seconds), "seconds": least, "bytes": peak}
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        return {**run, "refused": str(error)}


def main() -> None:
    """Read the command line, measure every way at every size, store the results."""
    import resource  # Windows has none; the ways can be read and called there

    parser = argparse.ArgumentParser("python -m posenc_lib.lab.costs")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON file, made or added to",
    )
    parser.add_argument(
        "--tokens", nargs="+", type=int, default=list(TOKENS), metavar="N"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    resource.setrlimit(
        resource.RLIMIT_AS, (LIMIT, resource.getrlimit(resource.RLIMIT_AS)[1])
    )
    settings = {"head_dim": HEAD_DIM, "dtype": "float32", "threads": 1, "limit": LIMIT}
    try:
        stored = stored_or_new(options.out, settings, versions())
        check_writable(options.out)
    except (OSError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")
    done = {(run["way"], run["tokens"]) for run in stored["runs"]}
    for name, tokens in product(WAYS, options.tokens):
        if (name, tokens) not in done:
            stored["runs"].append(measure(name, tokens))
            write(options.out, stored)


if __name__ == "__main__":
    main()
