"""python -m cbbench: the command line from a checkout that is not installed."""

from cbbench.entry import main

main()
