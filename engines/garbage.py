"""Keeps pauses of Python's garbage collection out of measurements."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def light_garbage_collection() -> Iterator[None]:
    """Excludes all objects that exist now from collections until the block ends.

    A full collection visits every object: with torch loaded it stops all threads for a tenth of a second. Collecting
    the objects of a run alone takes little time.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
