"""The native module, if it was built. Importing ``octavo._native`` chooses a kernel set by cpuid; OCTAVO_ISA in the environment overrides it."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

from octavo.errors import ConfigError

MODULE = "octavo._native"
FORMATS = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")  # numbered as in csrc/kernels.h
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")


@cache
def load() -> Any:
    """The module ``octavo._native``, or None if this installation has none.

    Raises ConfigError if OCTAVO_ISA names a kernel set that this processor cannot run.
    """
    try:
        return importlib.import_module(MODULE)
    except ImportError as error:
        if "OCTAVO_ISA" in os.environ and "kernel set" in str(error):
            raise ConfigError(str(error)) from error
        return None


def missing_reason() -> str:
    """Why :func:`load` gave None, for a person."""
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == MODULE:
            return "it was not built: no C++17 compiler (gcc or clang) was found when Octavo was installed"
        return str(error)
    return f"it is present ({module.isa()})"


def describe() -> str:
    """One line about the kernels in use, such as "avx512 of generic, avx2, avx512; 2 threads"."""
    native = load()
    if native is None:
        return f"none: {missing_reason()}"
    return f"{native.isa()} of {', '.join(native.isas())}; {native.threads()} threads"
