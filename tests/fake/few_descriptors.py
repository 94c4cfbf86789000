"""`python -m smallplates.service`, with a limit of ten more open files that it may raise."""

import resource
import sys

import psutil

from smallplates.service import main

if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 10, hard))
    sys.exit(main())
