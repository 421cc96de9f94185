"""Python's garbage collection where a pause would be taken for the system's own slowness."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def light_garbage_collection() -> Iterator[None]:
    """Leaves everything loaded so far out of collections until the block ends.

    A full collection looks at every object there is: with torch loaded that stops all threads for a tenth of a second.
    One of what a run adds is hardly felt.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
