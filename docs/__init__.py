"""The documentation, and the two programs that make parts of it: `tables.py` and `site.py`."""
