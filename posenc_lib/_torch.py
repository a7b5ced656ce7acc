"""PyTorch's private functions that this library needs, each with the reason.

A new release of PyTorch breaks them here or nowhere. All are in torch 2.6, the oldest
release supported, and in 2.13.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode


def values_known(tensor: Tensor) -> bool:
    """Whether the values of `tensor` may be looked at.

    Only values of plain CPU tensors are: anywhere else a look would wait for the device
    or break a graph (compile, vmap, fake and meta tensors). PyTorch has no public
    question for a dispatch mode (fake tensors, tracing) or for a tensor inside a
    function transform.
    """
    return (
        not torch.compiler.is_compiling()
        and _get_current_dispatch_mode() is None
        and tensor.device.type == "cpu"
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def in_transform(x: Tensor) -> bool:
    """Whether vmap, another transform, forward-mode AD or a trace is active.

    They look into each operation, and have no rule for a result that is written into
    given memory; a trace would keep the number of blocks. Autograd's own vmap, for
    batches of gradients, is seen at x alone. None has a public question.
    """
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._functorch.is_legacy_batchedtensor(x)
    )


def one_storage(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors share a storage: writing into one may change the other.

    The public way, comparing the data pointers of the storages, finds 0 for all fake
    tensors, as if all were one.
    """
    return torch._C._is_alias_of(x, y)  # type: ignore[attr-defined, no-any-return]


def flash_attention_on_cpu(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """`scaled_dot_product_attention` with the log of each softmax's denominator.

    The public function does not return it; a backward pass needs it.
    """
    out, denominators = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, attn_mask=mask, scale=scale
    )
    return out, denominators
