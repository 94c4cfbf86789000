"""`python -m smallplates.service`, but its main process believes in eight cores, and in slow web
processes.

However slow this machine is, workers do not take longer than the web processes seem to.
"""

import sys
from unittest import mock

from smallplates.service import main
from smallplates.supervision import balance
from smallplates.system import cpus

if __name__ == "__main__":
    with (
        mock.patch.object(cpus, "usable", return_value=8),
        mock.patch.object(balance, "REQUEST_MS", 1000.0),
    ):
        sys.exit(main())
