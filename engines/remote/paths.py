"""ServerPaths: where the pages of an API are, by the path of the URL that the user gave."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Api = Literal["completions", "chat", "tgi"]

# Behind the version; TGI's has none.
ENDINGS: dict[Api, str] = {"completions": "/completions", "chat": "/chat/completions", "tgi": "/generate_stream"}
_PASTED = ("/chat/completions", "/completions", "/generate_stream", "/models")  # the longer one of two first
# Where a server has its API elsewhere than below /v1: /api/v3, /v1beta/openai, /openai/deployments/NAME.
_VERSIONED = re.compile(r".*/v\d+[a-z0-9]*(/openai)?|.*/deployments/[^/]+")


@dataclass(frozen=True)
class ServerPaths:
    """Paths with the query string of the URL. base: what stands before the version, for /health and /metrics."""

    base: str
    generate: str
    info: str  # the models, or TGI's own description

    @staticmethod
    def of(path: str, query: str, api: Api) -> ServerPaths:
        """A path that ends in the API's own is used as it stands; else the API is below /v1 unless the path says so."""
        behind = f"?{query}" if query else ""
        path = path.rstrip("/")
        pasted = next((ending for ending in _PASTED if path.endswith(ending)), "")
        if pasted == "/models" and not _VERSIONED.fullmatch(path.removesuffix(pasted)):
            pasted = ""  # a path of the server's own
        prefix = path.removesuffix(pasted)
        base = prefix.removesuffix("/v1")
        if api == "tgi":
            return ServerPaths(base, base + ENDINGS[api] + behind, base + "/info" + behind)
        is_whole = pasted in (*ENDINGS.values(), "/models") and pasted != ENDINGS["tgi"]
        if not is_whole and not _VERSIONED.fullmatch(prefix):
            prefix += "/v1"
        return ServerPaths(base, prefix + ENDINGS[api] + behind, prefix + "/models" + behind)
