"""Devices behind one list of operations. :func:`create_backend` makes one by name; nothing here imports torch before that."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from octavo.errors import ConfigError
from octavo.kernels import native

if TYPE_CHECKING:
    from octavo.backend.base import Backend, BackendOptions

_log = logging.getLogger(__name__)


def create_backend(name: str = "auto", options: BackendOptions | None = None) -> Backend:
    """``name`` "cpu" needs the native module, "reference" is torch alone, "auto" takes cpu where it can.

    Raises ConfigError for an unknown name, and for "cpu" without the native module.
    """
    from octavo.backend.base import BackendOptions

    options = options or BackendOptions()
    if name not in ("auto", "cpu", "reference"):
        raise ConfigError(f"unknown backend {name!r}; choose one of auto, cpu, reference")
    if name == "cpu" and native.load() is None:
        raise ConfigError(f"the cpu backend needs the native module, but {native.missing_reason()}; install Octavo again or use --backend reference")
    if name != "reference" and native.load() is not None:
        from octavo.backend.cpu import CpuBackend

        return CpuBackend(options)
    if name == "auto":
        _log.warning("No native kernels: %s. Using the reference backend, which is many times slower.", native.missing_reason())
    from octavo.backend.reference import ReferenceBackend

    return ReferenceBackend(options)
