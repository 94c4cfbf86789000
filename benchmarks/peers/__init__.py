"""Other servers doing the same work; see `compare.py`, and `servers.py` for how each is started.

Each `*_server.py` is a program that takes the model's folder, a port and a pipeline; the work itself is
in `common.py`. All but `fastapi_server.py` are in their best honest form, found by trying, and say what
was tried.
"""
