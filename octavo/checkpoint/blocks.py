"""Integer codes with scales, as published checkpoints have them, to rows of GGUF's blocks of 32 (formulas: octavo/kernels/dequant.py).

So every such format meets the kernels as one of four types. Scales become binary16. Symmetric codes stay exact; of an asymmetric group the minimum
``-scale * zero`` is rounded to binary16, at most 2^-11 of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.errors import FormatError, UnsupportedModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 32
_LEAST, _MOST = 6.0e-8, 65504.0  # magnitudes that binary16 has


def quantized_rows(
    codes: NDArray[np.int16], scales: NDArray[np.float32], zeros: NDArray[np.int16] | None, name: str
) -> tuple[str, NDArray[np.uint8]]:
    """(type, bytes) of the matrix scale * (code - zero).

    codes [N, K]; scales [N, K / group]; zeros [N, K / group], or None for all zero. ``name`` is for errors. Raises UnsupportedModel for what
    no block type holds, FormatError for scales that are no numbers.
    """
    outputs, inputs = codes.shape
    groups = scales.shape[1]
    if inputs % BLOCK or inputs % groups or inputs // groups % BLOCK:
        raise UnsupportedModel(f"{name} has {inputs:,} inputs in {groups:,} groups; groups of a multiple of {BLOCK} are supported")
    if not np.isfinite(scales).all() or np.abs(scales).max(initial=0.0) > _MOST:
        raise FormatError(f"{name} has scales that are no finite 16-bit numbers")
    repeat = inputs // groups // BLOCK
    d = np.repeat(scales.astype(np.float16), repeat, axis=1)  # [N, K / 32]
    blocks = codes.reshape(outputs, inputs // BLOCK, BLOCK)
    centered = blocks if zeros is None else blocks - np.repeat(zeros, repeat, axis=1)[:, :, None]
    low, high = int(centered.min(initial=0)), int(centered.max(initial=0))
    if low >= -8 and high <= 7:
        return "q4_0", _join(d, _nibbles(centered + 8))
    if zeros is not None and blocks.min(initial=0) >= 0 and blocks.max(initial=0) <= 15:
        m = (-np.repeat(scales * zeros, repeat, axis=1)).astype(np.float16)
        return "q4_1", _join(d, m, _nibbles(blocks))
    if low >= -128 and high <= 127:
        return "q8_0", _join(d, centered.astype(np.int8).view(np.uint8))
    raise UnsupportedModel(f"{name} has codes from {low} to {high} around their zero points; 8 bits hold -128 to 127")


def _nibbles(codes: NDArray[np.int16]) -> NDArray[np.uint8]:
    """[N, blocks, 32] in 0 .. 15 -> uint8 [N, blocks, 16]: code j in the low half of byte j, code j + 16 in the high one."""
    half = codes.astype(np.uint8)
    return half[:, :, :16] | half[:, :, 16:] * np.uint8(16)


def _join(*fields: NDArray[Any]) -> NDArray[np.uint8]:
    """Fields of each block, numbers [N, blocks] or bytes [N, blocks, n], one after another as bytes of a row."""
    parts = [f if f.dtype == np.uint8 else np.ascontiguousarray(f)[:, :, None].view(np.uint8) for f in fields]
    joined: NDArray[np.uint8] = np.concatenate(parts, axis=2)
    return joined.reshape(joined.shape[0], -1)
