"""cbbench: benchmark and load-test large-language-model serving."""

__version__ = "0.1.0"
