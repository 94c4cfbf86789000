"""`python -m serving`, but web processes are asked every second whether they are there."""

import sys

from serving.__main__ import main
from serving.cluster import parent

if __name__ == "__main__":
    parent.ASK_S = 1.0
    sys.exit(main())
