"""`python -m flask_app`, but it asks for the model each time: one page serves tests of many models."""

import sys

from flask_app import service
from flask_app.__main__ import main

if __name__ == "__main__":
    service.KEEP_S = 0.0
    sys.exit(main())
