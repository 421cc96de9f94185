"""Values of one request in the body that a user adds to all of them: {i}, {tenant}, {output_tokens}."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NAMES = ("i", "tenant", "output_tokens")
_NAMED = re.compile("{(" + "|".join(NAMES) + ")}")


def has_names(value: Any) -> bool:
    """Whether a text in it names a value of the request."""
    if isinstance(value, str):
        return _NAMED.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(has_names, value.values()))
    return isinstance(value, list) and any(map(has_names, value))


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """A text that is a name alone becomes the value; a name within a text is replaced. values: by NAMES."""
    if isinstance(value, str):
        if (alone := _NAMED.fullmatch(value)) is not None:
            return values[alone[1]]
        return _NAMED.sub(lambda named: str(values[named[1]]), value)
    if isinstance(value, Mapping):
        return {name: filled(one, values) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, values) for one in value]
    return value
