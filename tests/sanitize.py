"""The tests of the native code under compiler sanitizers: gcc's address and undefined-behaviour ones, or the thread one.

    python tests/sanitize.py address,undefined [PYTEST ARGUMENTS]
    python tests/sanitize.py thread [PYTEST ARGUMENTS]

Builds ``octavo._native`` once more, instrumented, under build/sanitize-*, and lets the tests and the processes they start import that one in place
of the installed one, which stays as it is; OCTAVO_SANITIZED in the environment names such a build to use again. Any finding ends the run with a
report and a status that is not zero.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

# What is tested by default, and the runtime that must be loaded before the interpreter's own libraries.
TESTS = {
    "address,undefined": (["tests/kernels", "tests/conformance", "-m", "not uninstrumented"], "libasan.so"),
    "thread": (["tests/kernels/test_native_pool.py", "-m", "not uninstrumented"], "libtsan.so"),
}
# The interpreter and torch leak by design, torch's libraries share symbols, and refusing an absurd size is a test.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0:report_signal_unsafe=0:allocator_may_return_null=1",
}


def run(command: list[str], **options: object) -> None:
    print("+", " ".join(command), flush=True)
    subprocess.run(command, check=True, cwd=ROOT, **options)  # type: ignore[call-overload]


def build(sanitizers: str) -> Path:
    """The instrumented module, built the way pip builds the ordinary one."""
    target = ROOT / "build" / f"sanitize-{sanitizers.replace(',', '-')}"
    shutil.rmtree(target, ignore_errors=True)
    settings = {
        "build-dir": f"{target}-objects", "cmake.build-type": "RelWithDebInfo", "install.strip": "false", "cmake.define.OCTAVO_SANITIZE": sanitizers,
    }  # fmt: skip
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps", "--target", str(target)]
    run([*pip, *(f"--config-settings={name}={value}" for name, value in settings.items()), "."])
    found = sorted(target.glob("octavo/_native*.so"))
    if not found:
        raise SystemExit("the instrumented module was not built; is there a gcc?")
    return found[0]


def runtime(name: str) -> str:
    """Preloads: the sanitizer, and the C++ library, whose throwing of exceptions it takes over."""
    compiler = os.environ.get("CXX", "g++")
    found = [subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True).stdout.strip()
             for library in (name, "libstdc++.so")]  # fmt: skip
    if not all(Path(path).is_absolute() for path in found):
        raise SystemExit(f"{compiler} has no {name}")
    return ":".join(str(Path(path).resolve()) for path in found)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in TESTS:
        print(f"usage: sanitize.py {'|'.join(TESTS)} [PYTEST ARGUMENTS]", file=sys.stderr)
        return 2
    tests, library = TESTS[arguments[0]]
    module = Path(os.environ["OCTAVO_SANITIZED"]) if "OCTAVO_SANITIZED" in os.environ else build(arguments[0])
    paths = [str(HERE / "sanitizer"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, **OPTIONS, "LD_PRELOAD": runtime(library), "OCTAVO_SANITIZED": str(module), "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONMALLOC": "malloc", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    # Reports go to the file descriptor that pytest would otherwise capture, and the process ends before it could show them.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=sys", "-x", "--durations=10"]
    return subprocess.run([*command, *(arguments[1:] or tests)], cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
