"""A load generator for servers with the OpenAI API or that of TGI. It also measures its own client."""
