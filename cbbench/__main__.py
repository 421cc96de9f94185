"""python -m cbbench: the command line from a checkout that is not installed."""

import sys

if __name__ == "__main__":
    # Python puts the current folder first, and it may have packages of its own called reports, engines or workloads.
    del sys.path[0]
    from cbbench.entry import main

    main()
