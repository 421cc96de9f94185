"""Text to tokens and back: the tokenizers and chat templates of models, as a server and a prompt file need them."""
