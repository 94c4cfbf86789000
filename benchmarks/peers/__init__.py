"""Other servers doing the same work, each in its best honest form for two cores; see `compare.py`.

Each file is a program that takes the model's folder and a port; the work itself is in `common.py`.
"""
