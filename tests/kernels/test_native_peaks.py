"""Peaks of the machine, measured by the native module, and its clock."""

from __future__ import annotations

import time

import pytest

from tests.kernels.native_harness import ISAS, native, restored_native

pytestmark = pytest.mark.usefixtures(restored_native.__name__)


@pytest.mark.parametrize("isa", ISAS)
def test_every_kernel_set_has_peaks(isa: str) -> None:
    native.select_isa(isa)
    for threads in (1, 2, 3):
        native.set_threads(threads)
        assert all(1e6 < rate < 1e15 for rate in native.peaks(1 << 20, 0.001))  # a unit that is wrong by a factor of thousands shows


def test_impossible_measurements_are_refused() -> None:
    native.set_threads(2)
    for size, seconds in ((64, 0.1), (0, 0.1), (1 << 20, 0.0), (1 << 20, -1.0), (1 << 20, float("nan"))):
        with pytest.raises(ValueError, match="peaks need"):
            native.peaks(size, seconds)


def test_the_clock_counts_calls_that_compute() -> None:
    before, start = native.nanoseconds(), time.perf_counter_ns()
    native.peaks(1 << 16, 0.01)
    spent = native.nanoseconds() - before
    assert 15 * 0.01e9 <= spent <= time.perf_counter_ns() - start  # three peaks of five rounds
    before = native.nanoseconds()
    time.sleep(0.01)
    native.isa()
    assert native.nanoseconds() == before
