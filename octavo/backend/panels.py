"""Weight matrices of the cpu backend in panels of 16 outputs; both layouts are documented in ``octavo/kernels/csrc/kernels.h``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from octavo.backend.capture import empty
from octavo.errors import FormatError, OctavoError
from octavo.kernels import native
from octavo.kernels.dequant import row_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from octavo.backend.base import PackedWeight, RawWeight

LANES = 16  # outputs a panel, positions a key group
QUANTIZED = frozenset({"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"})
GROUP = 32  # inputs that share a scale


def panels_of(module: Any, parts: Sequence[RawWeight], *, quantized: bool) -> PackedWeight:
    """``parts`` concatenated along N. ``quantized``: keep those that are so as they are."""
    make = packed_panels if quantized else DensePanels
    if all(part.columns is None for part in parts):
        return make(module, parts)
    return OrderedPanels(module, [(columns, make(module, alike)) for columns, alike in _by_order(parts)])


def packed_panels(module: Any, parts: Sequence[RawWeight]) -> DensePanels | QuantizedPanels:
    """Quantized panels if every part is quantized, its inputs come in groups of 32 and 16 bits hold its scales; else dense ones."""
    if all(part.format in QUANTIZED for part in parts) and parts[0].shape[1] % GROUP == 0:
        quantized = QuantizedPanels(module, parts)
        if quantized.ok:
            return quantized
    return DensePanels(module, parts)


def matrix(x: Tensor, width: int, what: str) -> Tensor:
    """``x`` float32 [T, width] with contiguous rows (copied if they are not). Raises OctavoError for another dtype or shape."""
    if x.dtype is not torch.float32 or x.dim() != 2 or x.shape[1] != width:
        raise OctavoError(f"{what} must be float32 [T, {width}], got {x.dtype} {list(x.shape)}")
    return x if x.stride(1) == 1 or width == 1 else x.contiguous()


def indices(ids: Tensor, what: str) -> Tensor:
    """``ids`` int64 [T], contiguous. Raises OctavoError for another dtype or shape."""
    if ids.dtype is not torch.int64 or ids.dim() != 1:
        raise OctavoError(f"{what} must be int64 [T], got {ids.dtype} {list(ids.shape)}")
    return ids.contiguous()


def _biased(module: Any, y: Tensor, bias: Tensor) -> Tensor:
    """``y`` [T, N] contiguous, with ``bias`` added in place. Raises OctavoError unless that is contiguous float32 [N]."""
    if bias.dtype is not torch.float32 or bias.shape != y.shape[1:] or not bias.is_contiguous():
        raise OctavoError(f"a bias must be contiguous float32 [{y.shape[1]}], got {bias.dtype} {list(bias.shape)}")
    tokens, width = y.shape
    module.add(y.data_ptr(), bias.data_ptr(), y.data_ptr(), 1.0, math.inf, width, 0, tokens, width)
    return y


class DensePanels:
    """A matrix [N, K] as ceil(N / 16) panels of [K][16]: of its own 16-bit elements if it is stored in one such type, else of float32.

    ``nbytes`` is what it occupies.
    """

    def __init__(self, module: Any, parts: Sequence[RawWeight]) -> None:
        inputs = parts[0].shape[1]
        outputs = sum(part.shape[0] for part in parts)
        self.shape = (outputs, inputs)
        self._native = module
        formats = {part.format for part in parts}
        self._element = native.FORMATS.index(formats.pop()) if formats in ({"f16"}, {"bf16"}) else 0  # numbered as in csrc/kernels.h
        self._memory = module.Memory(-(-outputs // LANES) * LANES * inputs * (2 if self._element else 4))
        self.nbytes: int = self._memory.nbytes
        self._panels: int = self._memory.ptr
        arrays = [_stored_rows(part) for part in parts]
        module.pack(_addresses(parts, arrays), self._panels, inputs, self._element)

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x float32 [T, K] -> x @ W.T (+ bias float32 [N]) float32 [T, N]."""
        outputs, inputs = self.shape
        x = matrix(x, inputs, "the input of a product")
        y = empty(x.shape[0], outputs)
        self.multiply(x, y.data_ptr(), outputs)
        return y if bias is None else _biased(self._native, y, bias)

    def multiply(self, x: Tensor, y: int, y_stride: int) -> None:
        """The product into memory at ``y``, rows ``y_stride`` floats apart. x float32 [T, K] with contiguous rows."""
        outputs, inputs = self.shape
        self._native.matmul(x.data_ptr(), self._panels, y, x.stride(0), y_stride, x.shape[0], outputs, inputs, self._element)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ``ids`` int64 [T] -> float32 [T, K]. Raises IndexError beyond N."""
        return self.scaled_rows(ids, 1.0)

    def scaled_rows(self, ids: Tensor, scale: float) -> Tensor:
        """The same times ``scale``."""
        outputs, inputs = self.shape
        ids = indices(ids, "row numbers")
        y = empty(ids.shape[0], inputs)
        self._native.gather(self._panels, ids.data_ptr(), y.data_ptr(), scale, ids.shape[0], outputs, inputs, self._element)
        return y


def _stored_rows(part: RawWeight) -> np.ndarray:
    """The bytes of ``part`` with contiguous rows. Raises FormatError if they are not what its format and shape need."""
    size = row_bytes(part.format, part.shape[1])
    data = part.data
    if data.dtype != np.uint8 or data.shape != (part.shape[0], size):
        raise FormatError(f"{part.format} {list(part.shape)} needs uint8 [{part.shape[0]:,}, {size:,}], got {data.dtype} {list(data.shape)}")
    return data if data.strides[1] == 1 and data.strides[0] >= size else np.ascontiguousarray(data)


def _addresses(parts: Sequence[RawWeight], arrays: Sequence[np.ndarray]) -> list[tuple[int, int, int, int]]:
    return [(a.ctypes.data, a.strides[0], part.shape[0], native.FORMATS.index(part.format)) for a, part in zip(arrays, parts, strict=True)]


class QuantizedPanels:
    """A quantized matrix [N, K], computed with as it is: codes of 4, 5, 6 or 8 bits, binary16 scales. ``nbytes`` is what it occupies.

    Rows of x are quantized to int8 in groups of 32; a row holding an infinity or NaN gives NaN. Unless ``ok`` it must not be used.
    """

    def __init__(self, module: Any, parts: Sequence[RawWeight]) -> None:
        self.shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        self._native = module
        arrays = [_stored_rows(part) for part in parts]
        self._panels = module.QuantPanels(_addresses(parts, arrays), self.shape[1])
        self.ok: bool = self._panels.ok
        self.nbytes: int = self._panels.nbytes

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x float32 [T, K] -> x @ W.T (+ bias float32 [N]) float32 [T, N]."""
        outputs, inputs = self.shape
        x = matrix(x, inputs, "the input of a product")
        y = empty(x.shape[0], outputs)
        self.multiply(x, y.data_ptr(), outputs)
        return y if bias is None else _biased(self._native, y, bias)

    def multiply(self, x: Tensor, y: int, y_stride: int) -> None:
        """The product into memory at ``y``, rows ``y_stride`` floats apart. x float32 [T, K] with contiguous rows."""
        self._panels.matmul(x.data_ptr(), y, x.stride(0), y_stride, x.shape[0])

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ``ids`` int64 [T] -> float32 [T, K], dequantized. Raises IndexError beyond N."""
        return self.scaled_rows(ids, 1.0)

    def scaled_rows(self, ids: Tensor, scale: float) -> Tensor:
        """The same times ``scale``."""
        ids = indices(ids, "row numbers")
        y = empty(ids.shape[0], self.shape[1])
        self._panels.gather(ids.data_ptr(), y.data_ptr(), scale, ids.shape[0])
        return y


def _by_order(parts: Sequence[RawWeight]) -> list[tuple[np.ndarray | None, list[RawWeight]]]:
    """Neighbours whose inputs are in the same order, together. Raises FormatError for an order that is none."""
    runs: list[tuple[np.ndarray | None, list[RawWeight]]] = []
    for part in parts:
        columns = part.columns
        if columns is not None and not np.array_equal(np.sort(columns), np.arange(part.shape[1])):
            raise FormatError(f"the order of the inputs of a weight {list(part.shape)} is no permutation")
        last = runs[-1][0] if runs else None
        same = bool(runs) and (columns is last or (columns is not None and last is not None and np.array_equal(columns, last)))
        if same:
            runs[-1][1].append(part)
        else:
            runs.append((None if columns is None else np.ascontiguousarray(columns, np.int32), [part]))
    return runs


class OrderedPanels:
    """Weights one below the other, each with its own order of inputs (GPTQ's act-order): x is brought into it before the product."""

    def __init__(self, module: Any, pieces: list[tuple[np.ndarray | None, DensePanels | QuantizedPanels]]) -> None:
        self._native, self._pieces = module, pieces
        self.shape = (sum(panels.shape[0] for _, panels in pieces), pieces[0][1].shape[1])
        self.nbytes = sum(panels.nbytes + (0 if columns is None else columns.nbytes) for columns, panels in pieces)

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x float32 [T, K] -> x @ W.T (+ bias float32 [N]) float32 [T, N]."""
        outputs, inputs = self.shape
        x = matrix(x, inputs, "the input of a product")
        y = empty(x.shape[0], outputs)
        at = y.data_ptr()
        for columns, panels in self._pieces:
            panels.multiply(x if columns is None else self._taken(x, columns), at, outputs)
            at += panels.shape[0] * y.element_size()
        return y if bias is None else _biased(self._native, y, bias)

    def _taken(self, x: Tensor, columns: np.ndarray) -> Tensor:
        """x[:, columns], float32 [T, K]."""
        y = empty(*x.shape)
        self._native.take(x.data_ptr(), columns.ctypes.data, y.data_ptr(), x.stride(0), x.shape[0], x.shape[1])
        return y

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ``ids`` int64 [T] -> float32 [T, K]. Raises IndexError beyond N."""
        y = torch.empty(ids.shape[0], self.shape[1])
        first = 0
        for columns, panels in self._pieces:
            mine = ((ids >= first) & (ids < first + panels.shape[0])) if panels is not self._pieces[-1][1] else ids >= first
            rows = panels.rows(ids[mine] - first)
            y[mine] = rows if columns is None else torch.empty_like(rows).index_copy_(1, torch.from_numpy(columns).long(), rows)
            first += panels.shape[0]
        return y
