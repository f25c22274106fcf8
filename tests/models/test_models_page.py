"""The page of models against the tables that it is made from."""

from __future__ import annotations

import runpy
from pathlib import Path

from octavo.checkpoint.gguf_families import FAMILIES
from octavo.models.families import TABLE

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_models_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "make_models.py"))["page"]()
    assert (DOCS / "models.md").read_text(encoding="utf-8") == page, "run: python docs/make_models.py"


def test_every_gguf_architecture_is_in_the_table() -> None:
    assert {family.gguf for family in TABLE} - {""} == set(FAMILIES)


def test_names_are_unique() -> None:
    names = [family.architecture for family in TABLE] + [family.model_type for family in TABLE if family.model_type]
    assert len(names) == len(set(names))
