"""`python -m serving`, but web processes are pinged every second."""

import sys

from serving.__main__ import main
from serving.cluster import parent

if __name__ == "__main__":
    parent.PING_S = 1.0
    sys.exit(main())
