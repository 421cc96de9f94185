"""Tokenizer: text to token ids, and a token id to bytes. Not to text, because a token may be half a character."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

import tokenizers

RESERVED = 3  # the first ids of a random-weight model: unknown, begin, end
BYTES = 256


class Tokenizer(Protocol):
    def encode(self, text: str, *, raw: bool) -> list[int]:
        """raw: a plain prompt, so special tokens such as BOS are added; a chat template has added them already."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """b"" for a special token, which is not text."""
        ...


class ByteTokenizer:
    """For random weights, which come without a vocabulary: ids 3 to 258 are bytes, higher ids are words.

    So every output is text that a client sees token by token.
    """

    def encode(self, text: str, *, raw: bool) -> list[int]:
        return [RESERVED + byte for byte in text.encode()]

    def token_bytes(self, token: int) -> bytes:
        if token < RESERVED:
            return b""
        if token < RESERVED + BYTES:
            return bytes([token - RESERVED])
        return f" w{token}".encode()


class FileTokenizer:
    """The model's tokenizer, run by the `tokenizers` library."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token: b"" if one.special else one.content.encode() for token, one in added.items()}
        self._byte_level = "ByteLevel" in json.dumps(json.loads(tokenizer.to_str())["decoder"])

    def encode(self, text: str, *, raw: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=raw).ids
        return ids

    def token_bytes(self, token: int) -> bytes:
        if (added := self._added.get(token)) is not None:
            return added
        piece: str | None = self._tokenizer.id_to_token(token)
        if piece is None:  # the embedding is often a little larger than the vocabulary
            return b""
        return bytes_of_byte_level(piece) if self._byte_level else bytes_of_sentencepiece(piece)


def bytes_of_byte_level(piece: str) -> bytes:
    """GPT-2 writes every byte as a printable character."""
    table = byte_of_character()
    return bytes([table[character] for character in piece])


def bytes_of_sentencepiece(piece: str) -> bytes:
    """SentencePiece writes a space as U+2581, and a byte without a piece of its own as <0x0A>."""
    if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
        return bytes([int(byte[1], 16)])
    return piece.replace("▁", " ").encode()


@lru_cache
def byte_of_character() -> Mapping[str, int]:
    """Printable Latin-1 stands for itself; the 68 other bytes, in order, are the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
