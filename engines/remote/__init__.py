"""A load generator for servers that speak the OpenAI API (or TGI's own), which measures itself too."""
