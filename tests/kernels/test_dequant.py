"""Dequantization against the gguf package, which decodes the same bytes independently."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from octavo.errors import FormatError, UnsupportedModel
from octavo.kernels.dequant import BLOCKS, dequantize, row_bytes

FORMATS = sorted(BLOCKS)


def gguf_values(format: str, data: np.ndarray) -> np.ndarray:
    if format == "f32":
        return data.view(np.float32)
    if format == "f16":
        return data.view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[format.upper()])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [1, 37])
def test_equals_gguf_on_every_bit_pattern(format: str, rows: int) -> None:
    """Random bytes: every field takes every kind of value, NaN and infinite scales among them."""
    k = 768
    data = np.random.default_rng(rows).integers(0, 256, (rows, row_bytes(format, k)), dtype=np.uint8)
    values = dequantize(format, data, k)
    assert values.dtype == np.float32 and values.shape == (rows, k) and values.flags.c_contiguous
    np.testing.assert_array_equal(values, gguf_values(format, data))


@pytest.mark.parametrize("format", FORMATS)
def test_reads_views_and_leaves_the_data_alone(format: str) -> None:
    k = 256
    size = row_bytes(format, k)
    wide = np.random.default_rng(0).integers(0, 256, (6, size + 5), dtype=np.uint8)
    data = wide[::2, 3 : 3 + size]
    data.flags.writeable = False
    before = data.copy()
    values = dequantize(format, data, k)
    np.testing.assert_array_equal(values, gguf_values(format, before))
    assert values.flags.writeable and not np.shares_memory(values, wide)
    np.testing.assert_array_equal(data, before)
    assert dequantize(format, data[:0], k).shape == (0, k)


@pytest.mark.parametrize("format", FORMATS)
def test_row_bytes_are_ggufs(format: str) -> None:
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format.upper()]]
    assert row_bytes(format, 512) == 512 // weights * size


def test_errors_carry_the_numbers() -> None:
    with pytest.raises(UnsupportedModel, match="iq2_xxs"):
        row_bytes("iq2_xxs", 256)
    with pytest.raises(FormatError, match=r"100.*q4_k.*256"):
        row_bytes("q4_k", 100)
    with pytest.raises(FormatError, match=r"q8_0.*68.*\[2, 67\]"):
        dequantize("q8_0", np.zeros((2, 67), np.uint8), 64)
