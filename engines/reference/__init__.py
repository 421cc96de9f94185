"""The reference engine: a paged-KV Llama-family runtime under the shared scheduler. The only room that imports torch."""
