"""The thread pool of the native module, and which kernels it chooses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from octavo.backend.base import BackendOptions
from octavo.errors import ConfigError
from octavo.kernels import native as loader
from tests.kernels.native_harness import ISAS, native, pack_f32, restored_native

pytestmark = pytest.mark.usefixtures(restored_native.__name__)

WEIGHT = torch.randn(640, 320, generator=torch.Generator().manual_seed(0))
X = torch.randn(40, 320, generator=torch.Generator().manual_seed(1))


def product() -> bytes:
    return pack_f32(WEIGHT).matmul(X).numpy().tobytes()


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False
    )


def test_threads_can_change_at_any_time() -> None:
    native.set_threads(1)
    expected = product()
    for count in (2, 5, 1, 3, 3, 2, 16, 1, 0):
        native.set_threads(count)
        assert native.threads() == (count or native.cores())
        assert product() == expected
    for count in (-1, 1025):
        with pytest.raises(ValueError, match="between 0 and 1024"):
            native.set_threads(count)


def test_default_threads_respect_affinity() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); import octavo._native as n; print(n.cores(), n.threads())"
    assert run_python(code).stdout.split() == ["1", "1"]
    assert 1 <= native.cores() <= len(os.sched_getaffinity(0))


def test_idle_workers_sleep() -> None:
    native.set_threads(4)
    product()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05  # three spinning workers would take up to 1.5


def test_workers_wake_from_sleep() -> None:
    native.set_threads(3)
    expected = product()
    for _ in range(20):
        time.sleep(0.002)
        assert product() == expected


def test_calls_from_many_python_threads() -> None:
    native.set_threads(3)
    expected = product()
    results: list[bytes] = []

    def work() -> None:
        for _ in range(20):
            results.append(product())  # noqa: PERF401

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for count in (2, 4, 3):
        native.set_threads(count)
    for t in threads:
        t.join()
    assert len(results) == 80 and set(results) == {expected}


def test_forked_child_gets_its_own_workers() -> None:
    code = """
import os, torch
from octavo.backend import create_backend
from octavo.backend.base import BackendOptions
from tests.kernels.native_harness import native, pack_f32
native.set_threads(3)
w, x = pack_f32(torch.ones(640, 320)), torch.ones(40, 320)
expected = w.matmul(x)
read, write = os.pipe()
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        ok = all(torch.equal(w.matmul(x), expected) for _ in range(20))
        tasks = len(os.listdir('/proc/self/task'))
        os.write(write, b'y' if ok and tasks == 3 else b'n')
        os._exit(0)
    assert torch.equal(w.matmul(x), expected)
    assert os.waitpid(pid, 0)[1] == 0
print(os.read(read, 10).decode())
"""
    done = run_python(code, OMP_NUM_THREADS="1")
    assert done.stdout.strip() == "yyyyy", done.stderr


def test_a_refused_call_raises_and_the_pool_goes_on() -> None:
    """Scratch of 2^52 floats cannot be had: the task throws before it touches anything."""
    native.set_threads(3)
    arrays = [np.zeros(8, dtype) for dtype in (np.float32, np.int32, np.float32, np.float32, np.uint64, np.uint32, np.uint64, np.int64)]
    addresses = [a.ctypes.data for a in arrays]
    weight = torch.zeros(16, 16)
    with pytest.raises(MemoryError):
        native.matmul(X.data_ptr(), weight.data_ptr(), X.data_ptr(), 0, 0, 1 << 52, 16, 16, 0)
    with pytest.raises(ValueError, match="vocabulary"):
        native.sample(X.data_ptr(), 0, 8, 1 << 40, *addresses)
    assert product() == product()


@pytest.mark.uninstrumented  # a sanitizer's shadow needs terabytes of address space
def test_a_failing_task_raises_and_the_pool_goes_on() -> None:
    """Sampling of eight rows in a process that cannot have the scratch its tasks ask for: the error comes from inside the pool."""
    code = """
import resource, numpy as np, octavo._native as n
n.set_threads(3)
logits = np.zeros((8, 64), np.float32)
arrays = [np.full(8, v, d) for v, d in ((1, 'f4'), (5, 'i4'), (1, 'f4'), (0, 'f4'), (1, 'u8'), (0, 'u4'), (0, 'u8'), (0, 'i8'))]
call = lambda vocab: n.sample(logits.ctypes.data, 64, 8, vocab, *(a.ctypes.data for a in arrays))
call(64)
used = int(open('/proc/self/statm').read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
try:
    call(2**31 - 1)
except MemoryError:
    call(64)
    print('MemoryError')
"""
    done = run_python(code)
    assert done.stdout.strip() == "MemoryError", done.stderr


def test_kernel_sets() -> None:
    assert native.isas()[0] == "generic" and native.isa() in native.isas()
    with pytest.raises(ValueError, match="available: generic"):
        native.select_isa("sse9")
    for isa in ISAS:
        done = run_python("import octavo._native as n; print(n.isa())", OCTAVO_ISA=isa)
        assert done.stdout.strip() == isa, done.stderr
    done = run_python("from octavo.kernels import native; native.load()", OCTAVO_ISA="sse9")
    assert "ConfigError" in done.stderr and "sse9" in done.stderr


@pytest.mark.uninstrumented  # times the import
def test_import_is_fast_and_without_torch() -> None:
    code = "import sys, time; t = time.perf_counter(); import octavo._native; print(time.perf_counter() - t, 'torch' in sys.modules)"
    seconds, torch_loaded = min((run_python(code).stdout.split() for _ in range(3)), key=lambda r: float(r[0]))
    assert float(seconds) < 0.1 and torch_loaded == "False"  # about 2 ms; the bound allows for a busy machine


def test_loader_without_the_module(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from octavo.backend import create_backend

    monkeypatch.setitem(sys.modules, "octavo._native", None)
    loader.load.cache_clear()
    try:
        assert loader.load() is None
        assert "not built" in loader.missing_reason() and "not built" in loader.describe()
        assert create_backend("auto", BackendOptions(threads=1)).name == "reference"
        assert "reference backend" in caplog.text
        with pytest.raises(ConfigError, match="native module"):
            create_backend("cpu")
    finally:
        loader.load.cache_clear()
    with pytest.raises(ConfigError, match="unknown backend"):
        create_backend("tpu")


def test_create_backend_prefers_native() -> None:
    from octavo.backend import create_backend

    assert create_backend("auto", BackendOptions(threads=2)).name == "cpu"
    assert native.threads() == 2 and torch.get_num_threads() == 1
    assert native.isa() in loader.describe()
