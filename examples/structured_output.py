"""Answers in a given form: a JSON schema, SQL and Python by grammar. Run `octavo serve` in one shell, then: python examples/structured_output.py"""

import ast
import json
import os
import sqlite3
from pathlib import Path

from openai import OpenAI

GRAMMARS = Path(__file__).parent / "grammars"
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "founded": {"type": "integer", "minimum": -3000, "maximum": 2030},
        "known_for": {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "country", "founded", "known_for"],
    "additionalProperties": False,
}
TABLES = """
CREATE TABLE customers (id INTEGER, name TEXT, city TEXT, joined TEXT);
CREATE TABLE orders (id INTEGER, customer_id INTEGER, total REAL, placed TEXT);
"""


def main() -> None:
    client = OpenAI(base_url=os.environ.get("OCTAVO_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("OCTAVO_API_KEY", "none"))
    model = client.models.list().data[0].id

    def ask(question: str, **form: object) -> str:
        messages = [{"role": "user", "content": question}]
        extra = {"repetition_penalty": 1.1, **form}
        reply = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=200, extra_body=extra)
        assert reply.choices[0].finish_reason == "stop", "max_tokens cut it off"
        return reply.choices[0].message.content or ""

    schema = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
    city = json.loads(ask("Describe Rome.", response_format=schema))
    print("JSON:  ", city)

    query = ask(f"{TABLES}\nWrite a query: the names of customers from Rome.", structured_outputs={"grammar": (GRAMMARS / "sql.lark").read_text()})
    print("SQL:   ", query)
    with sqlite3.connect(":memory:") as database:
        database.executescript(TABLES)
        print("       ", "SQLite takes it" if sqlite3.complete_statement(query) else "incomplete")

    source = ask("Write a Python function that adds two numbers.", structured_outputs={"grammar": (GRAMMARS / "python.lark").read_text()})
    ast.parse(source)
    print("Python:", source, sep="\n")

    mood = ask("Is this review good or bad? 'I loved every minute of it.'", structured_outputs={"choice": ["good", "bad"]})
    print("Choice:", mood)


if __name__ == "__main__":
    main()
