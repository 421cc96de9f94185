"""Types of the columns that plans and length tables are made of. No module of the project is imported here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntColumn = NDArray[np.int64]
FloatColumn = NDArray[np.float64]
