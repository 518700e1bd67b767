"""What torch's operators do on a GPU: which make the host wait, launch no kernel, or have no deterministic form."""

from typing import Any

import torch

from tests.device_streams import tensors

WAITING = {  # operators whose result the host waits for
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"),
    *("equal", "is_nonzero", "allclose", "_linalg_check_errors", "_linalg_svd", "_linalg_eigh", "linalg_lstsq"),
}
WITHOUT_KERNEL = {  # operators that only make or describe memory
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "detach_", "alias", "view"),
    *("_unsafe_view", "t", "transpose", "permute", "expand", "expand_as", "as_strided", "slice", "select", "split"),
    *("split_with_sizes", "unsafe_split", "unbind", "chunk", "narrow", "unsqueeze", "squeeze", "reshape", "view_as"),
    *("_reshape_alias", "unflatten", "unfold", "diagonal", "mT", "lift", "lift_fresh", "set_", "resize_", "size"),
    *("stride", "numel", "sym_size", "sym_numel", "storage_offset", "is_pinned", "is_same_size", "record_stream"),
    *("_has_compatible_shallow_copy_type", "requires_grad_", "retain_grad", "_version", "prim", "_local_scalar_dense"),
}
INDEXING = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
COPYING = ("copy_", "_to_copy", "set_", "is_same_size", "_foreach_copy_")
"""Operators that take operands of two devices."""
WITHOUT_DETERMINISTIC_FORM = {  # as the documentation of `torch.use_deterministic_algorithms` lists them
    *("avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "put_", "histc"),
    *("adaptive_max_pool2d_backward", "max_pool3d_with_indices_backward", "fractional_max_pool2d_backward"),
    *("upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward", "resize_"),
    *("reflection_pad1d_backward", "reflection_pad2d_backward", "replication_pad1d_backward", "kthvalue", "median"),
    *("replication_pad2d_backward", "nll_loss2d_forward", "nll_loss2d_backward", "_ctc_loss_backward", "mode"),
    *("grid_sampler_2d_backward", "grid_sampler_3d_backward", "cumsum", "cumprod", "scatter_reduce", "nanmedian"),
    *("max_unpool2d", "_embedding_bag_backward", "_cdist_backward"),
}


def waits(func: Any, name: str, args: Any, kwargs: Any) -> str | None:
    """Why the host waits for an operator; None where it does not."""
    if name in WAITING:
        return {"_local_scalar_dense": "item"}.get(name, name)
    if name in INDEXING:
        masks = [x for x in tensors(args[1]) if x.dtype in (torch.bool, torch.uint8)]
        fills = "put" in name and args[2].numel() == 1 and len(masks) == 1  # by masked_fill
        return f"{name} by a mask" if masks and not fills else None
    if name == "repeat_interleave" and "Tensor" in func._overloadname and kwargs.get("output_size") is None:
        return name
    return None
