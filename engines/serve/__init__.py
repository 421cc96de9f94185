"""The reference engine behind the OpenAI API: HTTP on one thread, the engine on another, an inbox between them."""
