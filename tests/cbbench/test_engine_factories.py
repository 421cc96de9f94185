"""What an engine gets where the command line leaves it to us."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cbbench.experiment.engine_factories.reference import ReferenceFactory
from cbbench.settings.run import RunSettings

SWAPPING = RunSettings.of({"model": "tiny", "device": "cpu", "dtype": "fp32", "on_kv_pressure": "swap"})
BLOCK_BYTES = 4 * 2 * 2 * 2 * 16 * 16  # float32, K and V, layers, KV heads, head_dim, positions


@pytest.mark.parametrize(("asked", "expected"), [(None, 25), (60, 60)])
def test_the_host_pool_is_the_kv_pools_size_within_a_quarter_of_the_hosts_memory(
    asked: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's pool may be larger than the host, whose blocks are pinned: there from the start."""
    pytest.importorskip("torch")
    monkeypatch.setattr("engines.reference.kv_capacity.free_bytes", lambda device: 100 * BLOCK_BYTES)
    config = SWAPPING.replaced(swap_blocks=asked)
    reference = ReferenceFactory(config)
    assert reference.scheduler(config, 1000).swap_blocks == expected
    assert reference.scheduler(config, 20).swap_blocks == (asked or 20)


@pytest.mark.parametrize(
    ("disaggregate", "most", "expected", "told"),
    [
        (False, None, 1000, "1,000 KV blocks of 16 tokens\n"),
        (True, None, 500, "500 KV blocks of 16 tokens for each instance\n"),
        (True, 600, 500, "500 KV blocks of 16 tokens for each instance\n"),
        (True, 400, 400, "400 KV blocks of 16 tokens for each instance\n"),  # there is room for both to have that
    ],
)
def test_two_pools_share_the_memory_of_one_gpu(
    disaggregate: bool,
    most: int | None,
    expected: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = RunSettings.of({"model": "tiny", "disaggregate": disaggregate})
    reference = ReferenceFactory(config)
    monkeypatch.setattr(reference, "model", SimpleNamespace(device="cuda"))
    monkeypatch.setattr(reference, "kv_blocks_in_memory", lambda config: 1000)
    assert reference.kv_blocks(config, most) == expected
    assert capsys.readouterr().err == told
