"""Stored tensor types: values a block and bytes a block. Names are those of ``ggml_type`` in lower case."""

from __future__ import annotations

# type -> (values a block, bytes a block)
STORED_TYPES: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
}

# Numbers of ggml_type in a GGUF file; the gaps are types that ggml withdrew.
GGML_NAMES: dict[int, str] = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1", 10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k",
    14: "q6_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs",
    24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4",
}  # fmt: skip


def row_bytes(form: str, values: int) -> int | None:
    """Bytes of a row of ``values`` stored as ``form``; None if they do not fill whole blocks."""
    block, nbytes = STORED_TYPES[form]
    return values // block * nbytes if values % block == 0 else None
