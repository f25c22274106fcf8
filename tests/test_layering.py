"""The structure is tested: who may import whom, what must work without torch, and how large things may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "octavo"

# Package -> what it may import within octavo. A name with a dot allows that module only. errors and config are open to all.
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "checkpoint": {"core"},
    "text": {"core", "checkpoint"},
    "kernels": set(),
    "backend": {"kernels"},
    "parallel": set(),
    "weights": {"checkpoint", "backend", "parallel"},
    "layers": {"backend", "parallel", "weights"},
    "models": {"layers", "backend.base", "checkpoint.base", "weights", "parallel"},
    "decode": {"core", "text", "checkpoint.base", "backend", "kernels.philox", "models"},
    "worker": {"core.plan", "core.sampling_params", "decode", "models", "layers", "weights", "backend", "parallel", "checkpoint"},
    "engine": {"core", "decode.constraint", "checkpoint"},
    "service": {"engine", "text", "core", "checkpoint"},
    "frontends": {"service", "core", "checkpoint"},
}
OPEN = {"errors", "config", "__version__"}
# The executor is the one door from the engine to the worker.
DOORS = {("engine.executor", "worker")}

STDLIB_ONLY = ("core",)
NO_TORCH = ("core", "checkpoint", "text", "service", "frontends", "engine.client", "engine.messages", "engine.supervisor")

FUNCTION_LINES = 60
FUNCTION_EXCEPTIONS = {"core.scheduler:schedule": 80}
FILE_LINES = {"core.scheduler": 350, "worker.runner": 500}
MODEL_FILE_LINES = 150
PROTOCOL_METHODS = 6
PROTOCOL_EXCEPTIONS = {"Backend": 16}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


SOURCES = sorted(ROOT.rglob("*.py"))


def type_checking_nodes(module: ast.Module) -> set[ast.AST]:
    """Nodes below ``if TYPE_CHECKING:``; they are imports for the reader only."""
    return {
        inner
        for node in ast.walk(module)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }


def imports(path: Path, *, runtime_only: bool = False) -> list[str]:
    """Dotted names this file imports; relative imports are refused elsewhere."""
    module = tree(path)
    hidden = type_checking_nodes(module) if runtime_only else set()
    names: list[str] = []
    for node in ast.walk(module):
        if node in hidden:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def is_allowed(importer: str, target: str) -> bool:
    package = importer.split(".")[0]
    head = target.split(".")[0]
    if head == package or head in OPEN:
        return True
    if (importer, head) in DOORS:
        return True
    return any(target == rule or target.startswith(rule + ".") for rule in ALLOWED[package])


def test_every_package_is_in_the_table() -> None:
    packages = {p.parent.name for p in ROOT.glob("*/__init__.py")}
    assert packages == set(ALLOWED), "a package was added or removed: change the table on purpose"


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_follow_the_table(path: Path) -> None:
    importer = module_name(path)
    if importer.split(".")[0] not in ALLOWED:
        return  # octavo/__init__, errors, config, __main__
    for name in imports(path):
        if name.startswith("octavo."):
            target = name.removeprefix("octavo.")
            assert is_allowed(importer, target), f"octavo.{importer} must not import octavo.{target}"


@pytest.mark.parametrize("package", STDLIB_ONLY)
def test_the_core_is_standard_library_only(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        for name in imports(path):
            top = name.split(".")[0]
            assert top == "octavo" or top in sys.stdlib_module_names, f"{path.name} imports {name}"


def reachable(start: str) -> dict[str, str]:
    """Modules imported at import time from ``start`` (functions' own imports excluded), each with its importer."""
    by_name = {module_name(p): p for p in SOURCES}
    seen: dict[str, str] = {}
    stack = [name for name in by_name if name == start or name.startswith(start + ".")]
    for name in stack:
        seen[name] = start
    while stack:
        name = stack.pop()
        module = tree(by_name[name])
        hidden = type_checking_nodes(module)
        for node in ast.walk(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                hidden |= set(ast.walk(node)) - {node}
        for node in ast.walk(module):
            if node in hidden:
                continue
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                targets = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
            for target in targets:
                if target.split(".")[0] == "octavo":
                    inner = target.removeprefix("octavo").lstrip(".")
                    parents = [".".join(inner.split(".")[:i]) for i in range(1, inner.count(".") + 2)]
                    for part in parents:
                        if part in by_name and part not in seen:
                            seen[part] = name
                            stack.append(part)
                else:
                    seen.setdefault("ext:" + target.split(".")[0], name)
    return seen


@pytest.mark.parametrize("package", NO_TORCH)
def test_the_http_side_never_imports_torch(package: str) -> None:
    found = reachable(package)
    for banned in ("ext:torch", "ext:transformers", "ext:triton"):
        assert banned not in found, f"{package} reaches {banned[4:]} through {found.get(banned)}"


def test_core_imports_with_torch_blocked() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'msgspec', 'zmq'): sys.modules[name] = None\n"
        "import pkgutil, importlib, octavo.core\n"
        "for m in pkgutil.walk_packages(octavo.core.__path__, 'octavo.core.'): importlib.import_module(m.name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)


def test_service_and_server_import_with_torch_blocked() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import octavo.service.service, octavo.frontends.openai.app, octavo.frontends.cli.main, octavo.engine.client\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its decorators and docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", [p for p in SOURCES if not module_name(p).startswith("kernels")], ids=module_name)
def test_functions_are_short(path: Path) -> None:
    module = module_name(path)
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            limit = FUNCTION_EXCEPTIONS.get(f"{module}:{node.name}", FUNCTION_LINES)
            assert length(node) <= limit, f"{module}.{node.name} has {length(node)} lines, the limit is {limit}"


def test_files_stay_within_their_budget() -> None:
    for path in SOURCES:
        name = module_name(path)
        count = len(path.read_text().splitlines())
        if name in FILE_LINES:
            assert count <= FILE_LINES[name], f"{name} has {count} lines, the limit is {FILE_LINES[name]}"
        if name.startswith("models."):
            assert count <= MODEL_FILE_LINES, f"{name} has {count} lines, the limit is {MODEL_FILE_LINES}"


def test_protocols_are_small() -> None:
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Protocol" for b in node.bases):
                methods = [n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
                limit = PROTOCOL_EXCEPTIONS.get(node.name, PROTOCOL_METHODS)
                assert len(methods) <= limit, f"{module_name(path)}.{node.name} has {len(methods)} methods, the limit is {limit}"


MODEL_WORDS = ("tensor_parallel", "quant", "lora", "adapter", "cuda", "device", "block_table", "num_blocks", "cache")


def test_model_files_speak_of_the_model_alone() -> None:
    for path in (ROOT / "models").glob("*.py"):
        if path.stem in ("__init__", "registry"):
            continue
        text = path.read_text().lower()
        for word in MODEL_WORDS:
            assert word not in text, f"{path.name} mentions {word!r}"


FEATURE_WORDS = ("lora", "grammar", "adapter", "encoder", "speculat", "remote")


def test_schedule_names_no_feature() -> None:
    path = ROOT / "core" / "scheduler.py"
    source = path.read_text()
    node = next(n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef) and n.name == "schedule")
    body = (ast.get_source_segment(source, node) or "").lower()
    for word in FEATURE_WORDS:
        assert word not in body, f"schedule() mentions {word!r}"


BANNED_CALLS = {"eval", "exec", "compile"}
BANNED_MODULES = {"pickle", "dill", "cloudpickle", "shelve", "marshal"}


def test_no_code_from_data() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for name in imports(path):
            if name.split(".")[0] in BANNED_MODULES:
                found[module_name(path)].append(name)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
                found[module_name(path)].append(node.func.id)
            if isinstance(node, ast.Attribute) and node.attr in ("recv_pyobj", "send_pyobj"):
                found[module_name(path)].append(node.attr)
    assert not found


def test_public_names_are_what_is_exported() -> None:
    import octavo

    for name in octavo.__all__:
        assert getattr(octavo, name) is not None, name
    assert list(octavo.__all__) == sorted(octavo.__all__, key=str.casefold)
