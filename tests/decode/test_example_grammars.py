"""The grammars of ``examples/``: everything they write is what its own parser takes."""

from __future__ import annotations

import ast
import random
import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.decode.grammars import Grammars

FOLDER = Path(__file__).parent.parent.parent / "examples/grammars"
TABLES = """
CREATE TABLE customers (id INTEGER, name TEXT, city TEXT, joined TEXT);
CREATE TABLE orders (id INTEGER, customer_id INTEGER, total REAL, placed TEXT);
"""


def written(grammars: Grammars, name: str, count: int, least: int) -> list[str]:
    """Random texts that came to an end; a random walk seldom writes the ``return`` that ends a Python function, so that may be none."""
    rng = random.Random(11)
    grammar = grammars.compile(grammar=(FOLDER / name).read_text())
    texts = [text for _ in range(count) if (text := grammars.write(grammar.constraint(), rng)) is not None]
    assert len(set(texts)) >= least
    return texts


def test_python_that_the_grammar_writes_parses(grammars: Grammars) -> None:
    for text in written(grammars, "python.lark", 10, 0):
        ast.parse(text)
    grammar = grammars.compile(grammar=(FOLDER / "python.lark").read_text())
    wanted = "def f(a, b):\n    out_ = []\n    for x in range(len(a)):\n        if a[x] > b:\n            out_.append(a[x])\n    return out_\n"
    ast.parse(wanted)
    assert grammars.accepts(grammar, wanted)
    assert not grammars.accepts(grammar, "def f(a):\n  return a\n") and not grammars.accepts(grammar, "import os\n")


def test_sql_that_the_grammar_writes_is_understood(grammars: Grammars) -> None:
    """SQLite reads every query to its end. What it may complain of is the meaning: a table that is not joined, a sum within a condition."""
    database = sqlite3.connect(":memory:")
    database.executescript(TABLES)
    for text in written(grammars, "sql.lark", 20, 4):
        try:
            database.execute(f"EXPLAIN {text}")
        except sqlite3.OperationalError as error:
            assert not re.search("syntax|incomplete|unrecognized", str(error)), text
    grammar = grammars.compile(grammar=(FOLDER / "sql.lark").read_text())
    wanted = "SELECT customers.name, SUM(orders.total) AS c_sum FROM customers JOIN orders ON orders.customer_id = customers.id"
    wanted += " WHERE customers.city = 'Rome' GROUP BY customers.name ORDER BY SUM(orders.total) DESC LIMIT 10;"
    database.execute(wanted)
    assert grammars.accepts(grammar, wanted)
    assert not grammars.accepts(grammar, "SELECT * FROM passwords;") and not grammars.accepts(grammar, "DROP TABLE customers;")
