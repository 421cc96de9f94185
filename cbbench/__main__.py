"""python -m cbbench: the command line, also from a checkout that is not installed."""

import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first, and it may have packages of its own called reports, engines or workloads.
    if not sys.flags.safe_path:
        del sys.path[0]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if root not in sys.path:
        sys.path.insert(0, root)
    from cbbench.entry import main

    main()
