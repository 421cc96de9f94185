"""Tokens become text: never half a character, never a stop string, whatever the tokens' cuts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.serve.detokenizer import Detokenizer


def typed(pieces: list[bytes], *stops: str, min_tokens: int = 0) -> tuple[list[str], Detokenizer]:
    """What is shown after each token, and at the end; a token's bytes are pieces[token]."""
    text = Detokenizer(pieces.__getitem__, stops, min_tokens)
    shown = []
    for token in range(len(pieces)):
        shown.append(text.push(token))
        if text.stopped:
            return shown, text
    return [*shown, text.end()], text


def test_a_character_comes_when_its_last_byte_has_come() -> None:
    smile = "🙂".encode()
    shown, _ = typed([b"a", smile[:1], smile[1:3], smile[3:] + b"b"])
    assert shown == ["a", "", "", "🙂b", ""]


def test_bytes_that_can_never_be_a_character_do_not_hold_up_the_rest() -> None:
    assert typed([b"\xff", b"a", b"\xc3", b"a"])[0] == ["�", "a", "", "�a", ""]
    assert typed([b"a", b"\xe2\x82"])[0] == ["a", "", "�"]


def test_a_stop_string_across_tokens_is_cut_off_with_what_follows() -> None:
    shown, text = typed([b"one ST", b"O", b"P two"], "STOP")
    assert (shown, text.stopped, text.output_tokens) == (["one ", "", ""], True, 3)


def test_what_only_looked_like_a_stop_string_is_shown_later() -> None:
    assert typed([b"a\n", b"\nb", b"\n"], "\n\n\n")[0] == ["a", "\n\nb", "", "\n"]


def test_the_earliest_of_several_stop_strings_counts() -> None:
    shown, text = typed([b"abcdef"], "ef", "cd")
    assert (shown, text.stopped) == (["ab"], True)


def test_text_of_the_tokens_before_min_tokens_is_not_searched() -> None:
    shown, text = typed([b".", b".", b"a", b".", b"b"], ".", min_tokens=3)
    assert (shown, text.output_tokens) == ([".", ".", "a", ""], 4)


def test_a_stop_string_that_begins_before_min_tokens_and_ends_after_stops() -> None:
    """Nothing of it has been shown when it is complete; one that was complete before is text."""
    shown, text = typed([b"ab", b"XY", b"Z", b"c", b"X", b"Y", b"Zd"], "XYZ", min_tokens=3)
    assert (shown, text.stopped, text.output_tokens) == (["ab", "", ""], True, 3)
    shown, text = typed([b"ab", b"XY", b"Z", b"c", b"X", b"Y", b"Zd"], "XYZ", min_tokens=4)
    assert (shown, text.stopped, text.output_tokens) == (["ab", "", "XYZ", "c", "", "", ""], True, 7)


def test_a_stop_string_inside_what_is_held_back_for_another_came_before_min_tokens() -> None:
    shown, text = typed([b"abc", b"x", b"bc"], "abcd", "bc", min_tokens=2)
    assert (shown, text.stopped) == (["", "abcx", ""], True)


@given(
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 8),
)
def test_it_stops_with_the_first_token_from_min_tokens_on_that_completes_a_stop_string(
    pieces: list[str], stops: list[str], min_tokens: int
) -> None:
    """By the whole text: what a token completes ends beyond the text before it."""
    want, wanted_tokens = "".join(pieces), len(pieces)
    for tokens in range(max(min_tokens, 1), len(pieces) + 1):
        before, text = "".join(pieces[: tokens - 1]), "".join(pieces[:tokens])
        begins = [
            at
            for stop in stops
            for at in range(len(text))
            if text.startswith(stop, at) and at + len(stop) > len(before)
        ]
        if begins:
            want, wanted_tokens = text[: min(begins)], tokens
            break
    shown, result = typed([piece.encode() for piece in pieces], *stops, min_tokens=min_tokens)
    assert ("".join(shown), result.output_tokens) == (want, wanted_tokens)


@given(st.text(), st.lists(st.integers(0, 40)))
def test_any_cut_of_any_text_gives_that_text(text: str, cuts: list[int]) -> None:
    shown, _ = typed(_cut(text.encode("utf-8", "replace"), cuts))
    assert "".join(shown) == text.encode("utf-8", "replace").decode()


@given(st.text("ab", max_size=30), st.lists(st.integers(0, 30)), st.text("ab", min_size=1, max_size=4))
def test_any_cut_stops_where_the_whole_text_would(text: str, cuts: list[int], stop: str) -> None:
    shown, result = typed(_cut(text.encode(), cuts), stop)
    assert "".join(shown) == text.split(stop, 1)[0]
    assert result.stopped == (stop in text)


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(at)]


@pytest.mark.parametrize("tokens", [0, 1])
def test_nothing_more_comes_after_the_end(tokens: int) -> None:
    text = Detokenizer([b"x"].__getitem__, ("xy",))
    for token in range(tokens):
        assert text.push(token) == ""
    assert text.end() == "x" * tokens
    assert text.end() == ""
