"""`python -m serving`, but its main process believes in eight cores."""

import sys
from unittest import mock

from serving.__main__ import main
from serving.system import cpus

if __name__ == "__main__":
    with mock.patch.object(cpus, "usable", return_value=8):
        sys.exit(main())
