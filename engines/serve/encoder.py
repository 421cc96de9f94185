"""Encoder: the prompts of a file as a model reads them, by its tokenizer and, for a chat, its template."""

from __future__ import annotations

from engines.base import EngineError
from workloads.prompt_texts import Content, Encode


def encoder_of(model: str, *, random_weights: bool) -> Encode | None:
    """As `cbbench serve` would read them; of random weights a token is a byte. None: the model has no tokenizer here.

    EngineError where it has one that cannot be read, or nothing that reads it is installed.
    """
    try:
        from engines.serve.load_text import files_of, load_text
    except ModuleNotFoundError as missing:
        raise EngineError(f"reading prompts needs {missing.name}: pip install 'cbbench[engine]'") from None
    if random_weights or model == "tiny":
        text = load_text(None)
    else:
        path = files_of(model)
        if path is None or not path.exists():
            return None
        text = load_text(path)

    from engines.serve.asked import plain_messages
    from engines.serve.chat import TemplateError
    from engines.serve.refusal import Refusal

    def encode(content: Content) -> list[int]:
        if isinstance(content, str):
            return text.tokenizer.encode(content, raw=True)
        if text.template is None:
            raise ValueError("the model has no chat template")
        try:
            return text.tokenizer.encode(text.template.render(plain_messages(content)), raw=False)
        except (Refusal, TemplateError) as error:
            raise ValueError(str(error)) from None

    return encode
