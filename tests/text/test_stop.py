"""Stop strings: the outcome depends on the text alone, not on its cuts, and no part of a stop string is shown too early."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.stop import StopChecker

SMALL = st.text("ab", max_size=5)


def by_hand(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Letter by letter: as soon as the text ends with stop strings, the longest of them wins."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def run(text: str, cuts: list[int], stops: list[str], include: bool) -> tuple[str, str | None, list[str]]:
    checker = StopChecker(stops, include)
    shown, matched = [], None
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        piece, hit = checker.push(text[a:b])
        assert matched is None or (piece == "" and hit == matched), "nothing comes after a match"
        matched = hit
        shown.append(piece)
    shown.append(checker.finish())
    assert checker.matched == matched
    return "".join(shown), matched, shown


@settings(max_examples=500, deadline=None)
@given(text=st.text("abc", max_size=24), stops=st.lists(SMALL, max_size=4), include=st.booleans(), seed=st.integers(0, 2**32))
def test_any_split_gives_the_result_of_the_whole(text: str, stops: list[str], include: bool, seed: int) -> None:
    rng = random.Random(seed)
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(6)))
    shown, matched, _ = run(text, cuts, stops, include)
    assert (shown, matched) == by_hand(text, stops, include)


@settings(max_examples=250, deadline=None)
@given(text=st.text("abc", max_size=24), stops=st.lists(SMALL, min_size=1, max_size=4))
def test_what_is_shown_is_never_taken_back(text: str, stops: list[str]) -> None:
    """After each letter, the text shown so far must be the beginning of the final text for every possible continuation, and the longest such."""
    checker = StopChecker(stops)
    shown, seen = "", ""
    for letter in text:
        piece, hit = checker.push(letter)
        shown += piece
        seen += letter
        if hit is not None:
            return
        held = seen[len(shown) :]
        opens = [k for k in range(len(seen)) if any(s.startswith(seen[k:]) for s in stops if s)]
        assert len(held) == (len(seen) - opens[0] if opens else 0)


def test_across_deltas_and_inside_one() -> None:
    checker = StopChecker(["\n\nUser:"])
    assert checker.push("Hello\n") == ("Hello", None)
    assert checker.push("\nUs") == ("", None)
    assert checker.push("age") == ("\n\nUsage", None)
    assert checker.push("!\n\nUser: and more") == ("!", "\n\nUser:")
    assert checker.push("later") == ("", "\n\nUser:") and checker.finish() == "" and checker.matched == "\n\nUser:"


def test_which_stop_string_wins() -> None:
    assert StopChecker(["aaaa", "b"]).push("aab aaaa") == ("aa", "b"), "the first complete"
    assert StopChecker(["c", "abc", "bc"]).push("xabc") == ("x", "abc"), "of those complete together, the longest"
    assert StopChecker(["stopper", "stop"]).push("stopper") == ("", "stop"), "no waiting for a longer one"
    assert StopChecker(["abcd", "bc"]).push("xabcd") == ("xa", "bc")


@pytest.mark.parametrize("include", [True, False])
def test_include(include: bool) -> None:
    checker = StopChecker(["END"], include)
    assert checker.push("a E") == ("a ", None)
    assert checker.push("ND b") == ("END" if include else "", "END")


def test_without_stop_strings_nothing_is_held() -> None:
    checker = StopChecker([])
    assert checker.push("abc") == ("abc", None) and checker.finish() == ""


def test_finish_gives_what_was_held() -> None:
    checker = StopChecker(["<end>"])
    assert checker.push("x<en") == ("x", None)
    assert checker.finish() == "<en" and checker.matched is None and checker.finish() == ""
