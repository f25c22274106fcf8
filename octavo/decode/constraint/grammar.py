"""Grammars compiled by llguidance, once for each text, and the state of each sequence that follows one.

    GrammarCompiler.start(params) ── on a thread of its own: check, convert, compile, try ──► compiled grammar, kept by size
                                                                                              │ copied for each sequence (microseconds)
                                                                                              ▼
                                                                                    GrammarConstraint: fill, accept, rollback, forced

llguidance (Microsoft, https://github.com/guidance-ai/llguidance): an Earley parser over lexemes that are derivatives of regular expressions.
State follows from (grammar, tokens taken) alone, so a sequence that starts over continues where it was.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np

from octavo.decode.constraint.convert import json_grammar, to_grammar
from octavo.decode.constraint.schema import children, parse_json
from octavo.errors import GrammarError, OctavoError, Overloaded
from octavo.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from octavo.checkpoint.base import Checkpoint
    from octavo.core.structured import StructuredOutputsParams, Thinking
    from octavo.text.tokenizer import Tokenizer

MAX_COMPILE_SECONDS = 10.0  # from the start of the compilation; the limits below end most of them much earlier
MAX_MASK_SECONDS = 0.25  # of processor time for one mask: beyond, the grammar would hold up everybody's steps
MAX_CACHE_BYTES = 256 << 20
BYTES_PER_BYTE = 64  # memory of a compiled grammar for each byte of its text: measured 25 to 110 on tool schemas of 10 to 100 KB
BYTES_LEAST = 64 << 10
THREADS = 2
MAX_STUCK = 2  # compilations beyond their time whose threads are replaced: native code cannot be interrupted, it ends by its own limits
STACK_BYTES = 512 << 20  # address space: the engine recurses over chains of rules, as many as the largest text can hold
MAX_LOCATE = 500  # subschemas that are compiled alone to find the one that is wrong
ONE_OF = "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf"
ONE_OF_ADVICE = "oneOf is supported where its alternatives exclude each other, which cannot be seen here; say anyOf if more than one may hold"
# Of the engine's own work, in its units: building a lexer (50k a millisecond), and one step's work in it (14k a millisecond).
LIMITS = llguidance.LLParserLimits(
    max_lexer_states=100_000, initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, max_items_in_row=20_000, verbose_errors=False
)
PROBE_STEPS = 8


class Vocabulary:
    """The model's tokens as llguidance wants them: bytes of each, and which are control tokens."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """``vocab_size``: logits of the model, which may exceed the tokenizer's entries. Raises GrammarError for a model without an end token."""
        self._tokenizer = tokenizer
        self.eos_token_ids = [i for i in tokenizer.eos_token_ids if i < vocab_size]
        if not self.eos_token_ids:
            raise GrammarError("this model has no end-of-sequence token, which structured outputs need")
        size = min(vocab_size, tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in range(size)] + [b""] * (vocab_size - size)
        self.special_token_ids = sorted(i for i in tokenizer.special_token_ids if i < vocab_size)
        self.eos_token_id, self.bos_token_id = self.eos_token_ids[0], tokenizer.bos_token_id
        self.native = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self), n_vocab=vocab_size, eos_token=self.eos_token_ids)

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text; llguidance calls this to spell what is forced."""
        if not isinstance(text, str):
            raise TypeError("text is needed")  # it probes with bytes
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)

    def special_id(self, text: str) -> int | None:
        """The control token that ``text`` is, or None."""
        token_id = self._tokenizer.token_to_id(text)
        return token_id if token_id in self._tokenizer.special_token_ids else None


def read_vocabulary(checkpoint: Checkpoint, vocab_size: int) -> Vocabulary:
    return Vocabulary(load_tokenizer(checkpoint), vocab_size)


@contextmanager
def native_errors(what: str) -> Iterator[None]:
    """A panic of the native library arrives as a BaseException that is none of Python's own; it ends what was being done and nothing else."""
    try:
        yield
    except (OctavoError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise GrammarError(f"{what}: {type(error).__name__}: {str(error)[:200]}") from None


class GrammarConstraint:
    """One sequence's place in its grammar. ``thinking``: the grammar begins only when the thoughts of a reasoning model have ended."""

    def __init__(self, matcher: llguidance.LLMatcher, thinking: Thinking | None = None) -> None:
        self._matcher, self._thinking = matcher, thinking
        self._taken = 0  # tokens
        self._began: int | None = 0 if thinking is None else None  # tokens taken before the grammar's first

    def fill(self, mask: NDArray[np.uint32]) -> bool:
        began, thinking = self._began, self._thinking
        if began is None and not self._may_open():
            return False
        spent = time.thread_time()
        with native_errors("the grammar failed"):
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        spent = time.thread_time() - spent
        if spent > MAX_MASK_SECONDS:
            raise GrammarError(f"the grammar is too costly: one step took {spent:.2f} s, the limit is {MAX_MASK_SECONDS:g} s")
        if began is None and thinking is not None and thinking.open_id is not None:
            mask[thinking.open_id // 32] |= mask.dtype.type(1 << thinking.open_id % 32)
        return True

    def accept(self, token_id: int) -> None:
        thinking = self._thinking
        self._taken += 1
        if self._began is None and thinking is not None:
            opens = self._taken == 1 and thinking.open_id is not None
            if not opens or token_id == thinking.open_id:
                if token_id == thinking.close_id:
                    self._began = self._taken
                return
            self._began = 0
        with native_errors("the grammar failed"):
            self._matcher.consume_token(token_id)
        self._check()

    def rollback(self, count: int) -> None:
        if not count:
            return
        taken = self._taken - count
        if self._began is not None:
            inside = min(count, self._taken - self._began)
            if inside and not self._matcher.rollback(inside):
                self._check()
            if self._thinking is not None and (taken < self._began or taken == 0):
                self._began = None
        self._taken = taken

    def forced(self) -> list[int]:
        if self._began is None:
            return []
        with native_errors("the grammar failed"):
            return list(self._matcher.compute_ff_tokens())

    def _may_open(self) -> bool:
        """Whether the next token decides if there are thoughts at all."""
        return self._taken == 0 and self._thinking is not None and self._thinking.open_id is not None

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot go on: {first_line(self._matcher.get_error())}")


class CompiledGrammar:
    """A grammar in the state before its first token."""

    def __init__(self, matcher: llguidance.LLMatcher, nbytes: int) -> None:
        self._matcher = matcher
        self.nbytes = nbytes  # estimated

    def constraint(self, thinking: Thinking | None = None) -> GrammarConstraint:
        return GrammarConstraint(self._matcher.deep_copy(), thinking)


class Compilation:
    """A grammar that is compiled, or will be. May be asked by several requests."""

    def __init__(self, params: StructuredOutputsParams) -> None:
        self.params = params
        self.began: float | None = None  # time.monotonic(), once a thread has taken it
        self.result: Future[CompiledGrammar] = Future()

    @property
    def overdue(self) -> bool:
        return self.began is not None and time.monotonic() - self.began > MAX_COMPILE_SECONDS

    def poll(self) -> CompiledGrammar | None:
        """The grammar, or None while it is compiled. Raises GrammarError."""
        if self.result.done():
            return self.result.result()
        if self.overdue:
            raise GrammarError(f"structured_outputs.{self.params.kind} takes longer than {MAX_COMPILE_SECONDS:g} s to compile, which is the limit")
        return None


class GrammarCompiler:
    """Compiles on its own threads, and keeps what was used last within ``max_bytes``. ``start`` is called from one thread."""

    def __init__(self, load: Callable[[], Vocabulary], max_bytes: int = MAX_CACHE_BYTES) -> None:
        """``load`` is called on a compiling thread when the first grammar comes."""
        self._load, self._max_bytes = load, max_bytes
        self._vocabulary: Vocabulary | None = None
        self._loading, self._lock = threading.Lock(), threading.Lock()  # the latter guards what is kept
        self._kept: OrderedDict[tuple[object, ...], Compilation] = OrderedDict()
        self._queue: queue.SimpleQueue[Compilation] = queue.SimpleQueue()
        self._threads = 0
        self._running: list[Compilation] = []  # one a busy thread

    @property
    def nbytes(self) -> int:
        """Estimated size of the compiled grammars that are kept."""
        with self._lock:
            return sum(_size(entry) for entry in self._kept.values())

    def start(self, params: StructuredOutputsParams) -> Compilation:
        """The compilation of ``params``: a kept one, one under way, or a new one. Raises Overloaded while too many take too long."""
        key = (
            params.kind, str(getattr(params, params.kind)), params.disable_any_whitespace, params.disable_additional_properties,
            params.whitespace_pattern,
        )  # fmt: skip
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        stuck = sum(entry.overdue for entry in list(self._running))
        if stuck > MAX_STUCK:
            raise Overloaded(f"{stuck} grammars take longer than {MAX_COMPILE_SECONDS:g} s to compile; try again later")
        compilation = Compilation(params)
        with self._lock:
            self._kept[key] = compilation
        self._queue.put(compilation)
        if self._threads < THREADS + stuck:
            self._threads += 1
            self._start_thread()
        return compilation

    def _shrink(self) -> None:
        """Forget failures, and the least recently used until the rest fits. What is under way stays."""
        with self._lock:
            total = sum(_size(entry) for entry in self._kept.values())
            for key, entry in list(self._kept.items()):
                failed = entry.result.done() and entry.result.exception() is not None
                if failed or (total > self._max_bytes and entry.result.done()):
                    total -= _size(self._kept.pop(key))

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="octavo-grammar", daemon=True)
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)

    def _work(self) -> None:
        while True:
            compilation = self._queue.get()
            compilation.began = time.monotonic()
            self._running.append(compilation)
            try:
                with native_errors("the grammar could not be compiled"):
                    compilation.result.set_result(self._compile(compilation.params))
            except OctavoError as error:
                compilation.result.set_exception(error)
            self._running.remove(compilation)
            self._shrink()

    def _vocab(self) -> Vocabulary:
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = self._load()
            return self._vocabulary

    def _compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        vocabulary = self._vocab()
        text = to_grammar(params, vocabulary.special_id)
        matcher, problem = _try(vocabulary, text)
        if matcher is None:
            where = f" at {_locate(vocabulary, params)}" if params.kind == "json" else ""
            raise GrammarError(f"structured_outputs.{params.kind}{where}: {problem}")
        return CompiledGrammar(matcher, BYTES_LEAST + BYTES_PER_BYTE * len(text))


def _size(entry: Compilation) -> int:
    return entry.result.result().nbytes if entry.result.done() and entry.result.exception() is None else 0


def _try(vocabulary: Vocabulary, text: str) -> tuple[llguidance.LLMatcher | None, str]:
    """Compile, then take a few steps: some grammars show only there that nothing fits them, or how costly they are. (None, why) if so."""
    matcher = llguidance.LLMatcher(vocabulary.native, text, log_level=0, limits=LIMITS)
    if matcher.is_error():
        return None, first_line(matcher.get_error())
    probe = GrammarConstraint(matcher.deep_copy())
    mask: NDArray[np.uint32] = np.empty(-(-vocabulary.native.vocab_size // 32), np.uint32)
    for _ in range(PROBE_STEPS):
        try:
            probe.fill(mask)
            allowed = np.flatnonzero(mask)
            if not len(allowed):
                return None, "no text fits it"
            word = int(mask[allowed[0]])
            token = int(allowed[0]) * 32 + (word & -word).bit_length() - 1
            if token in vocabulary.eos_token_ids:
                break
            probe.accept(token)
        except GrammarError as error:
            return None, error.message
    return matcher, ""


def _locate(vocabulary: Vocabulary, params: StructuredOutputsParams) -> str:
    """Path of what cannot be compiled: the deepest subschema that fails by itself, and its keyword if all is well without that one.

    The engine's own messages do not say where.
    """
    schema = parse_json(str(params.json), "structured_outputs.json")
    shared = {name: schema[name] for name in ("$defs", "definitions") if isinstance(schema, dict) and isinstance(schema.get(name), dict)}

    def fails(part: Any) -> bool:
        if isinstance(part, bool):
            return not part
        alone = {**shared, **part}
        return _try(vocabulary, json_grammar(alone, params))[0] is None

    path, node, left = "$", schema, MAX_LOCATE
    while isinstance(node, dict):
        for step, child in children(node):
            left -= 1
            if left < 0:
                return path
            if fails(child):
                path, node = path + step, child
                break
        else:
            keyword = next((k for k in node if k not in shared and not fails({n: v for n, v in node.items() if n != k})), None)
            return path if keyword is None else f"{path}.{keyword}"
    return path


def first_line(text: str) -> str:
    """What the engine says, in one line, with the place that its next lines point to."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    reason = next((f" {line.removeprefix('error: ')}" for line in lines if line.startswith("error: ")), "")
    pointed = next((f" (near {lines[i - 1]!r})" for i, line in enumerate(lines) if i and set(line) == {"^"}), "")
    return lines[0][:300].replace(ONE_OF, ONE_OF_ADVICE) + reason[:200] + pointed[:200]
