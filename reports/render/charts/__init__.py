"""Charts as Vega-Lite: one specification gives the interactive chart of a page, SVG and PNG, without a browser.

The only package that needs the extra `charts`. Colours are CSS variables, so that a page can switch them.
"""

from __future__ import annotations

from workloads.errors import CbbenchError

try:
    import altair  # noqa: F401
    import vl_convert  # noqa: F401
except ImportError as error:
    raise CbbenchError(
        None, 'charts need altair and vl-convert: pip install "cbbench[charts]" (a page without charts: `no_charts`)'
    ) from error
