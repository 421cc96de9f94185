"""The one error of this room. It lives alone, so that the command line can name it without loading NumPy."""

from __future__ import annotations


class WorkloadError(ValueError):
    """What was asked of a workload is wrong or impossible. One line: what is wrong, and what would be right."""
