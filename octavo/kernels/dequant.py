"""Dequantization of the tensor types found in GGUF files, in numpy.

Sources: the GGUF specification and the ggml block structures (``ggml-common.h`` of https://github.com/ggml-org/llama.cpp, the
quantization formats "Q4_0" ... "Q6_K"). Each type is a sequence of blocks along a row. With d, m float16, integers little endian:

    type   block  bytes  fields                                              value of weight i
    q4_0   32     18     d, 16 bytes of nibbles                              d * (q - 8)
    q4_1   32     20     d, m, 16 bytes of nibbles                           d * q + m
    q5_0   32     22     d, 32 high bits, 16 bytes of nibbles                d * (q - 16)
    q5_1   32     24     d, m, 32 high bits, 16 bytes of nibbles             d * q + m
    q8_0   32     34     d, 32 int8                                          d * q
    q4_k   256    144    d, m, 12 bytes of 6-bit scales, 128 of nibbles      d * sc * q - m * mn, one (sc, mn) for 32 weights
    q5_k   256    176    d, m, 12 bytes of scales, 32 of high bits, 128      the same with 5-bit q
    q6_k   256    210    128 low nibbles, 64 high pairs, 16 int8 sc, d       d * sc * (q - 32), one sc for 16 weights

In the 32-blocks byte j holds weight j in its low nibble and weight j + 16 in its high one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import FormatError, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bytes = NDArray[np.uint8]

# Weights and bytes of one block.
BLOCKS: dict[str, tuple[int, int]] = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34),
    "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
}


def row_bytes(format: str, k: int) -> int:
    """Bytes of a row of ``k`` weights. Raises UnsupportedModel for an unknown type, FormatError if ``k`` is no multiple of its block."""
    if format not in BLOCKS:
        raise UnsupportedModel(f"tensor type {format!r} is not supported; known: {', '.join(BLOCKS)}")
    weights, size = BLOCKS[format]
    if k % weights:
        raise FormatError(f"a row of {k:,} weights cannot be {format}: its blocks hold {weights} weights")
    return k // weights * size


def dequantize(format: str, data: Bytes, k: int) -> Floats:
    """data uint8 [rows, row_bytes(format, k)] -> float32 [rows, k], a new array."""
    size = row_bytes(format, k)
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != size:
        raise FormatError(f"{format} rows of {k:,} weights need uint8 [rows, {size:,}], got {data.dtype} {list(data.shape)}")
    blocks = np.ascontiguousarray(data).reshape(-1, BLOCKS[format][1])
    with np.errstate(invalid="ignore", over="ignore"):  # a scale may be infinite or NaN; that is the file's affair
        return _DECODERS[format](blocks).astype(np.float32, copy=False).reshape(data.shape[0], k)


def _half(column: Bytes) -> Floats:
    """Two bytes a block -> float32 [blocks, 1]."""
    return np.ascontiguousarray(column).view(np.float16).astype(np.float32)


def _nibbles(column: Bytes) -> Bytes:
    """[blocks, 16] -> [blocks, 32]: low nibbles, then high nibbles."""
    return np.concatenate([column & 15, column >> 4], axis=1)


def _fifth_bits(column: Bytes) -> Bytes:
    """[blocks, 4] -> [blocks, 32]: bit i of the little-endian word, moved to bit 4."""
    return np.unpackbits(column, axis=1, bitorder="little") << np.uint8(4)


def _f32(b: Bytes) -> Floats:
    return b.view(np.float32).copy()


def _f16(b: Bytes) -> Floats:
    return b.view(np.float16).astype(np.float32)


def _bf16(b: Bytes) -> Floats:
    return (b.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(b: Bytes) -> Floats:
    return _half(b[:, :2]) * (_nibbles(b[:, 2:]).astype(np.float32) - 8)


def _q4_1(b: Bytes) -> Floats:
    return _half(b[:, :2]) * _nibbles(b[:, 4:]).astype(np.float32) + _half(b[:, 2:4])


def _q5_0(b: Bytes) -> Floats:
    q = _nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])
    return _half(b[:, :2]) * (q.astype(np.float32) - 16)


def _q5_1(b: Bytes) -> Floats:
    q = _nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])
    return _half(b[:, :2]) * q.astype(np.float32) + _half(b[:, 2:4])


def _q8_0(b: Bytes) -> Floats:
    return _half(b[:, :2]) * b[:, 2:].view(np.int8).astype(np.float32)


def _k_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """[blocks, 12] -> eight scales and eight minimums of 6 bits, [blocks, 8] each.

    Bytes 0-3 and 4-7 hold the low six bits of scales and minimums 0-3; their top bits, with the nibbles of bytes 8-11, hold 4-7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    minimums = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _k_nibbles(column: Bytes) -> Bytes:
    """[blocks, 128] -> [blocks, 8, 32]: each 32 bytes hold two groups of 32, low nibbles first."""
    parts = column.reshape(-1, 4, 1, 32)
    return np.concatenate([parts & 15, parts >> 4], axis=2).reshape(-1, 8, 32)


def _k_affine(b: Bytes, q: Bytes) -> Floats:
    scales, minimums = _k_scales(b[:, 4:16])
    d = (_half(b[:, 0:2]) * scales)[:, :, None]
    m = (_half(b[:, 2:4]) * minimums)[:, :, None]
    return d * q.astype(np.float32) - m


def _q4_k(b: Bytes) -> Floats:
    return _k_affine(b, _k_nibbles(b[:, 16:]))


def _q5_k(b: Bytes) -> Floats:
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    high = ((b[:, None, 16:48] >> shifts) & np.uint8(1)) << np.uint8(4)  # bit g of byte i belongs to weight i of group g
    return _k_affine(b, _k_nibbles(b[:, 48:]) | high)


def _q6_k(b: Bytes) -> Floats:
    low = b[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    high = ((b[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)) << np.uint8(4)
    q = (low | high).astype(np.float32).reshape(-1, 16, 16) - 32
    scales = _half(b[:, 208:210]) * b[:, 192:208].view(np.int8).astype(np.float32)
    return scales[:, :, None] * q


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "f32": _f32, "f16": _f16, "bf16": _bf16, "q4_0": _q4_0, "q4_1": _q4_1, "q5_0": _q5_0, "q5_1": _q5_1, "q8_0": _q8_0,
    "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k,
}
