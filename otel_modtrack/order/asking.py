"""What only asks something of a parameter, and so is no use of it."""

from __future__ import annotations

from typing import Final

__all__ = ["ASKED"]

# Methods, attributes and functions of torch by name: they tell of a tensor and compute nothing.
_WORDS: Final = """
    data_ptr device dim dtype element_size get_device grad grad_fn is_complex is_contiguous is_cpu
    is_cuda is_floating_point is_leaf is_meta is_quantized is_signed is_sparse itemsize layout name
    names nbytes ndim ndimension nelement numel requires_grad shape size storage_offset stride
    untyped_storage
"""
ASKED: Final = frozenset(_WORDS.split())
