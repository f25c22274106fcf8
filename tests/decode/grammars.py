"""Walking through a grammar: what its masks allow is what it can write."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.core.structured import StructuredOutputsParams
from octavo.decode.constraint.grammar import GrammarCompiler, GrammarConstraint, Vocabulary

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray

    from octavo.decode.constraint.grammar import CompiledGrammar
    from octavo.text.tokenizer import Tokenizer


CLOSING = (")]\n;'", "_", "0123456789")  # brackets and statements, then names, then the shortest expression


class Grammars:
    """A compiler over a real vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.vocab_size = tokenizer, tokenizer.vocab_size
        self.vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size)
        self.compiler = GrammarCompiler(lambda: self.vocabulary)

    def compile(self, **form: Any) -> CompiledGrammar:
        compilation = self.compiler.start(StructuredOutputsParams(**form))
        while (grammar := compilation.poll()) is None:
            time.sleep(0.001)
        return grammar

    def start(self, **form: Any) -> GrammarConstraint:
        return self.compile(**form).constraint()

    def mask(self, constraint: GrammarConstraint) -> NDArray[np.uint32]:
        mask = np.full(-(-self.vocab_size // 32), 0xFFFFFFFF, np.uint32)
        constraint.fill(mask)
        return mask

    def allowed(self, constraint: GrammarConstraint) -> NDArray[np.int64]:
        bits = np.unpackbits(self.mask(constraint).view(np.uint8), bitorder="little")
        return np.flatnonzero(bits[: self.vocab_size])

    def accepts(self, grammar: CompiledGrammar, text: str) -> bool:
        """Whether the grammar allows exactly this text, token by token, and then its end."""
        constraint = grammar.constraint()
        for token in self.tokenizer.encode(text, add_special_tokens=False, parse_special=False):
            if token not in self.allowed(constraint):
                return False
            constraint.accept(token)
        return bool(np.isin(self.vocabulary.eos_token_ids, self.allowed(constraint)).any())

    def write(self, constraint: GrammarConstraint, rng: random.Random, most: int = 400) -> str | None:
        """A random text of the grammar; None if it has no end within ``most`` tokens. Ends wherever it may, so that texts stay short."""
        taken: list[int] = []
        for _ in range(most):
            allowed = self.allowed(constraint)
            assert len(allowed), "a grammar came to a dead end"
            if np.isin(self.vocabulary.eos_token_ids, allowed).any() and rng.random() < 0.3 + 0.7 * (len(allowed) < 3):
                return self.tokenizer.decode(taken, skip_special_tokens=False)
            if len(taken) > 12:  # what is open is closed when it can be
                first = {t: self.tokenizer.token_text(t)[:1] for t in allowed.tolist()}
                closing = next((ids for some in CLOSING if (ids := [t for t, char in first.items() if char and char in some])), None)
                allowed = np.array(closing) if closing else allowed
            token = int(allowed[rng.randrange(len(allowed))])
            if token in self.vocabulary.eos_token_ids:
                return self.tokenizer.decode(taken, skip_special_tokens=False)
            taken.append(token)
            constraint.accept(token)
        return None
