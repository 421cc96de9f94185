"""Builds the tokenizer of a GGUF file for the `tokenizers` library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from workloads.errors import CbbenchError

CONTROL, USER_DEFINED = 3, 4  # kinds in tokenizer.ggml.token_type

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(path: Path, header: dict[str, Any]) -> Tokenizer:
    """CbbenchError where the file's kind of tokenizer is not supported."""
    model = header.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise CbbenchError("model", f"{path}: tokenizer {model!r} is not supported (supported: gpt2, llama)")
    try:
        tokenizer = _byte_level(path, header) if model == "gpt2" else _sentencepiece(header)
    except KeyError as missing:
        raise CbbenchError("model", f"{path}: key {missing} is missing") from None
    pieces = header["tokenizer.ggml.tokens"]
    for token, kind in enumerate(header.get("tokenizer.ggml.token_type", ())):
        if kind in (CONTROL, USER_DEFINED):
            special = kind == CONTROL
            added = AddedToken(pieces[token], special=special, normalized=False)
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([added])
    bos = header.get("tokenizer.ggml.bos_token_id")
    # Without the flag, SentencePiece files mean yes.
    if bos is not None and header.get("tokenizer.ggml.add_bos_token", model == "llama"):
        begin = pieces[bos]
        tokenizer.post_processor = processors.TemplateProcessing(single=[begin, "$A"], special_tokens=[(begin, bos)])
    return tokenizer


def _byte_level(path: Path, header: dict[str, Any]) -> Tokenizer:
    split = header.get("tokenizer.ggml.pre", "gpt-2")
    words = _words(path, split)
    merges = [tuple(pair.split(" ")) for pair in header["tokenizer.ggml.merges"]]
    # Llama 3 looks up a whole word before it merges.
    tokenizer = Tokenizer(models.BPE(_ids(header), merges, ignore_merges=split == "llama-bpe"))
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _words(path: Path, split: str) -> pre_tokenizers.PreTokenizer:
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split == "gpt-2":
        return gpt2
    if split == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    digits = {"qwen2": "", "llama-bpe": "{1,3}"}.get(split)
    if digits is None:
        raise CbbenchError(
            "model", f"{path}: word splitting {split!r} is not supported (gpt-2, smollm, qwen2, llama-bpe are)"
        )
    words = pre_tokenizers.Split(Regex(_WORDS.replace("DIGITS", digits)), "isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(header: dict[str, Any]) -> Tokenizer:
    """Such a file has scores and no merges: two pieces merge where their union is a piece, the best score first."""
    ids, scores = _ids(header), header["tokenizer.ggml.scores"]
    merges = [
        (-scores[token], token, cut, piece)
        for piece, token in ids.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    pairs = [(piece[:cut], piece[cut:]) for _, _, cut, piece in sorted(merges)]
    unknown = header["tokenizer.ggml.tokens"][header.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(models.BPE(ids, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    if header.get("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend("▁"))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _ids(header: dict[str, Any]) -> dict[str, int]:
    return {piece: token for token, piece in enumerate(header["tokenizer.ggml.tokens"])}
