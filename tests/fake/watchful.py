"""`python -m serving`, but web processes are asked every second whether they are there."""

import sys

from serving import cluster
from serving.__main__ import main

if __name__ == "__main__":
    cluster.ASK_S = 1.0
    sys.exit(main())
