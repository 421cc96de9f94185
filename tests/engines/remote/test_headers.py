"""Headers of one's own: what HTTP allows, what wins, and what is never shown."""

from __future__ import annotations

import pytest

from engines.remote.config import RemoteConfig
from engines.remote.headers import hide, is_credential, merged, parse_headers


def test_names_and_values() -> None:
    texts = ["X-Tenant: a", "X-Tight:b", "X-Spaced: \t two  words \t", "X-Colons: http://a:1", "X-Accent: é\tü"]
    assert parse_headers(texts) == (
        ("X-Tenant", "a"),
        ("X-Tight", "b"),
        ("X-Spaced", "two  words"),
        ("X-Colons", "http://a:1"),
        ("X-Accent", "é\tü"),
    )


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["X-A"], "no colon in the first"),
        (["X-A: 1", "secret"], "no colon in the second"),
        ([": secret"], "'' is not a header name"),
        (["X A: secret"], "'X A' is not a header name"),
        (["X-A : secret"], "'X-A ' is not a header name"),
        (["X-Ä: secret"], "is not a header name"),
        (["X-A\r\nX-B: secret"], "is not a header name"),
        (["X-A:"], "X-A has no value"),
        (["X-A:  \t"], "X-A has no value"),
        (["X-A: secret\r\nX-B: 1"], "line break"),
        (["X-A: secret\n"], "line break"),
        (["X-A: secret\r"], "line break"),
        (["X-A: secret\0"], "control character"),
        (["X-A: secret \N{EURO SIGN}"], "at position 8 that is not latin-1"),
        (["X-A: secret", "x-a: secret"], "duplicate x-a"),
        (["content-length: 7"], "content-length is set by cbbench"),
        (["Accept-Encoding: gzip"], "Accept-Encoding is set by cbbench"),
        (["Content-Encoding: gzip"], "Content-Encoding is set by cbbench"),
    ],
)
def test_refused_without_showing_the_value(texts: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_headers(texts)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert "secret" not in message


def test_theirs_win_whatever_their_case_and_keep_the_place() -> None:
    assert list(merged({"Host": "a", "User-Agent": "b"}, [("host", "c"), ("X-D", "e")]).items()) == [
        ("host", "c"),
        ("User-Agent", "b"),
        ("X-D", "e"),
    ]


def test_an_authorization_replaces_the_key() -> None:
    assert RemoteConfig(url="", api_key="k").caller == {"Authorization": "Bearer k"}
    both = RemoteConfig(url="", api_key="k", headers=(("authorization", "Basic x"),))
    assert both.caller == {"authorization": "Basic x"}
    assert both.has_key
    assert not RemoteConfig(url="", headers=(("X-Tenant", "a"),)).has_key
    assert "Basic" not in repr(both)


def test_what_a_server_repeats_is_blotted_out() -> None:
    sent = [("Authorization", "Bearer s3cr3t-key"), ("X-Tenant", "a")]
    assert hide("no such key: s3cr3t-key (Bearer s3cr3t-key)", sent) == "no such key: *** (***)"
    assert hide("a Bearer token that is not there", sent) == "a Bearer token that is not there"


def test_credentials_by_their_names() -> None:
    assert all(map(is_credential, ("Authorization", "proxy-authorization", "X-Api-Key", "Cookie", "X-Auth-Token")))
    assert not any(map(is_credential, ("X-Tenant", "X-Route", "User-Agent", "Host")))
