"""prompt_encoder: the prompts of a file to token ids, by the model's tokenizer and, for a chat, its template."""

from __future__ import annotations

from workloads.errors import CbbenchError
from workloads.prompt_texts import Content, Encode


def prompt_encoder(model: str, *, random_weights: bool) -> Encode | None:
    """Encodes as `cbbench serve` does; with random weights a token is a byte. None: the model has no tokenizer here.

    CbbenchError where its tokenizer cannot be read, or a package that reads it is not installed.
    """
    try:
        from engines.tokenizers.chat_template import TemplateError, plain_messages
        from engines.tokenizers.model_text import load_model_text, model_files
    except ModuleNotFoundError as missing:
        raise CbbenchError(None, f"reading prompts needs {missing.name}: pip install 'cbbench[engine]'") from None
    if random_weights or model == "tiny":
        text = load_model_text(None)
    else:
        path = model_files(model)
        if path is None or not path.exists():
            return None
        text = load_model_text(path)

    def encode(content: Content) -> list[int]:
        if isinstance(content, str):
            return text.tokenizer.encode(content, raw=True)
        if text.template is None:
            raise ValueError("the model has no chat template")
        try:
            return text.tokenizer.encode(text.template.render(plain_messages(content)), raw=False)
        except TemplateError as error:
            raise ValueError(str(error)) from None

    return encode
