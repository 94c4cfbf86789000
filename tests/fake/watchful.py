"""`python -m smallplates.service`, but web processes are pinged every second."""

import sys

from smallplates.service import main
from smallplates.supervision import cluster

if __name__ == "__main__":
    cluster.PING_S = 1.0
    sys.exit(main())
