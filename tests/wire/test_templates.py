"""Values of each request in the body that is added to all."""

from __future__ import annotations

import numpy as np
import pytest

from engines.remote.templates import filled, has_names
from tests.wire.driving import load
from tests.wire.fake import FakeServer

VALUES = {"i": 3, "tenant": "acme", "output_tokens": 5}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("{i}", 3),
        ("run-{i}-{tenant}", "run-3-acme"),
        ({"a": ["{output_tokens}", {"b": "{tenant}"}], "c": 1}, {"a": [5, {"b": "acme"}], "c": 1}),
        ("{other} {{i} {3}", "{other} {3 {3}"),
        (None, None),
    ],
)
def test_filled(given: object, sent: object) -> None:
    assert filled(given, VALUES) == sent
    assert has_names(given) == (given != sent)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_every_request_has_its_own_values(api: str) -> None:
    extra = {"seed": "{i}", "metadata": {"row": "{tenant}/{i}"}, "top_k": 4}
    with FakeServer() as server:
        ran = load(server, 4, api=api, arrivals_ugap=np.arange(4), rate=1000.0, extra_body=extra)
    assert ran.failures == [None] * 4
    assert sorted(body["seed"] for body in server.bodies) == [0, 1, 2, 3]
    assert all(body["metadata"] == {"row": f"default/{body['seed']}"} for body in server.bodies)
    assert {body["top_k"] for body in server.bodies} == {4}
