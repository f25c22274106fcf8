"""Jinja for chat templates from anywhere: no way out of the sandbox, no way to stall or fill the machine.

Built on Jinja's ImmutableSandboxedEnvironment with the settings that Hugging Face's templates are written for. On top of it: every loop
turn, call and filter takes a step of the render's :class:`octavo.text.limits.Budget`; everything that can make a text or a list larger
is bounded before it does; filters and methods are those on a list, not all that Python has.
"""

from __future__ import annotations

import json
import re
import threading
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Joiner, Namespace

from octavo.text.limits import MAX_CHARS, MAX_INDENT, MAX_RANGE, Budget, LimitExceeded, check_chars, check_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jinja2.compiler import Frame
    from jinja2.parser import Parser
    from jinja2.runtime import Context

FILTERS = (
    "abs", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "format", "groupby", "indent",
    "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe",
    "select", "selectattr", "slice", "sort", "string", "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip
METHODS: dict[type, frozenset[str]] = {
    str: frozenset({
        "capitalize", "casefold", "center", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii", "isdecimal",
        "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix",
        "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
        "swapcase", "title", "upper", "zfill",
    }),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
}  # fmt: skip
# Widths beyond 999, and those that come from an argument, in str.format, % and strftime.
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*\d{4,}|\{[^{}]+\{")
_WIDE_PERCENT = re.compile(r"%(?:\([^()]*\))?[^a-zA-Z%]*(?:\d{4,}|\*)|%\([^()]*\(")


class Refused(Exception):
    """The template called ``raise_exception``."""


class _Generation(Extension):
    """``{% generation %}`` marks what an assistant wrote, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Names(Namespace):
    """``namespace()`` that keeps no underscore names, which the sandbox reserves for Python's own."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}")
        super().__setitem__(name, value)


class _Turns:
    """An iterable that takes a step of the budget at each turn. Has a length if the iterable has one."""

    __slots__ = ("_budget", "_inner")

    def __init__(self, inner: Any, budget: Budget) -> None:
        self._inner, self._budget = inner, budget

    def __iter__(self) -> Iterator[Any]:
        step = self._budget.step
        for item in self._inner:
            step()
            yield item

    def __len__(self) -> int:
        return len(self._inner)


class _Generator(CodeGenerator):
    """Compiles ``~`` and literals of lists, tuples and maps to calls of the environment, which bounds them."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._checked(node, frame, super().visit_List)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._checked(node, frame, super().visit_Dict)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._checked(node, frame, super().visit_Tuple)
        else:
            super().visit_Tuple(node, frame)

    def _checked(self, node: Any, frame: Frame, visit: Callable[[Any, Frame], None]) -> None:
        self.write("environment.checked(")
        visit(node, frame)
        self.write(")")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """One for the process; the budget of the render at hand is the thread's."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], cache_size=0)
        self._local = threading.local()
        filters = {name: self.filters[name] for name in FILTERS} | {"tojson": _tojson, "sum": _sum}
        self.filters = {name: self._guarded(name, function) for name, function in filters.items()}
        self.filters["_turns"] = self._turns
        self.globals = {
            "dict": _dict, "joiner": Joiner, "namespace": _Names, "range": _range, "raise_exception": _refuse, "strftime_now": _now,
        }  # fmt: skip

    @property
    def budget(self) -> Budget:
        budget: Budget | None = getattr(self._local, "budget", None)
        if budget is None:
            budget = self._local.budget = Budget()
        return budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._local.budget = budget

    def _turns(self, inner: Any) -> _Turns:
        return _Turns(inner, self.budget)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, "_turns", [], [], None, None, lineno=loop.lineno, environment=self)
        return tree

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        check = _BEFORE.get(name)
        skip = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            if check is not None:
                check(*args[skip:], **kwargs)
            return self.budget.accept(function(*args, **kwargs))

        return run

    def call_filter(self, *args: Any, **kwargs: Any) -> Any:
        """A filter applied by another (``map``): the results pile up within one operation, so short ones count too."""
        return self.budget.accept(super().call_filter(*args, **kwargs), least=0)

    def checked(self, value: Any) -> Any:
        """A literal list, tuple or map."""
        return check_value(value)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        if isinstance(obj, (int, float, bytes, type(None))):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_BRACES.search(value.__self__):
            raise LimitExceeded("a format with a width beyond 999")
        return wrapped

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self.budget.step()
        if isinstance(obj, Macro) and (obj.catch_varargs or obj.catch_kwargs):
            check_value((args, kwargs))
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str) and (check := _BEFORE.get(obj.__name__)) is not None:
            check(owner, *args, **kwargs)
        return self.budget.accept(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%":
            _check_format(left)
        elif isinstance(left, str) and isinstance(right, str):
            check_chars(len(left) + len(right))
        return self.budget.accept(super().call_binop(context, operator, left, right))

    def join_texts(self, parts: Iterable[Any]) -> str:
        """The ``~`` operator."""
        return self.concat([str(check_value(part)) for part in parts])

    def concat(self, parts: Iterable[str]) -> str:  # type: ignore[override]
        """Joins the output of macros and blocks."""
        texts = list(parts)
        check_chars(sum(map(len, texts)))
        joined: str = self.budget.accept("".join(texts))
        return joined


def _refuse(message: Any = "") -> NoReturn:
    raise Refused(str(message))


def _now(form: str) -> str:
    if len(form) > 256 or _WIDE_PERCENT.search(form):
        raise LimitExceeded("a date format that long or wide")
    return datetime.now().strftime(form)


def _range(*args: int) -> range:
    found = range(*args)
    if len(found) > MAX_RANGE:
        raise LimitExceeded(f"a range of {len(found):,}, the limit is {MAX_RANGE:,}")
    return found


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """``dict()`` without the class behind it."""
    return dict(*args, **kwargs)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: no HTML escapes, Unicode as it is."""
    if indent is not None and (not isinstance(indent, int) or indent > MAX_INDENT):
        raise LimitExceeded(f"tojson with an indent beyond {MAX_INDENT}")
    if separators is not None and sum(map(len, separators)) > MAX_INDENT:
        raise LimitExceeded(f"tojson with separators longer than {MAX_INDENT}")
    check_value(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _sum(values: Iterable[Any], attribute: str | None = None, start: float = 0) -> float:
    total = start
    for value in values:
        total += value[attribute] if attribute is not None else value
        if not isinstance(total, (int, float)):
            raise TypeError("sum takes numbers only")
    return total


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, (str, list, tuple)):
        left, right = right, left
    if isinstance(left, (str, list, tuple)) and isinstance(right, int):
        check_chars(len(left) * max(right, 0))


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and right > 0 and left.bit_length() * right > 2 * MAX_CHARS:
        raise LimitExceeded("a power of that size")


def _check_format(text: Any, *_: Any, **__: Any) -> None:
    if isinstance(text, str) and _WIDE_PERCENT.search(text):
        raise LimitExceeded("a format with a width beyond 999")


def _check_width(text: Any, width: Any = 80, *_: Any, **__: Any) -> None:
    if isinstance(width, int):
        check_chars(len(str(text)) + max(width, 0))


def _check_indent(text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    size = len(width) if isinstance(width, str) else int(width)
    check_chars(len(str(text)) + (str(text).count("\n") + 1) * max(size, 0))


def _check_replace(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> None:
    found = str(text).count(str(old))
    check_chars(len(str(text)) + found * len(str(new)))


def _check_join(first: Any, second: Any = "", *_: Any, d: Any = "", **__: Any) -> None:
    """Both ``separator.join(values)`` and ``values | join(separator)``."""
    separator, values = (first, second) if isinstance(first, str) and not isinstance(second, str) else (second or d, first)
    if not hasattr(values, "__len__"):
        if len(str(separator)) > 64:
            raise LimitExceeded("join of an unmeasured list with a separator beyond 64 characters")
        return
    check_chars(len(str(separator)) * len(values) + sum(len(v) for v in values if isinstance(v, str)))


def _check_count(*args: Any, **kwargs: Any) -> None:
    for count in (*args, *kwargs.values()):
        if isinstance(count, int) and count > MAX_RANGE:
            raise LimitExceeded(f"{count:,} parts, the limit is {MAX_RANGE:,}")


_BEFORE: dict[str, Callable[..., None]] = {
    "batch": _check_count, "slice": _check_count, "center": _check_width, "ljust": _check_width, "rjust": _check_width, "zfill": _check_width,
    "indent": _check_indent, "replace": _check_replace, "join": _check_join, "format": _check_format,
}  # fmt: skip
