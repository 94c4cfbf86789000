"""Other servers doing the same work, each in its best honest form for two cores; see `compare.py`.

All use this project's own decoder and ONNX graph (`common.py`), so that only the servers differ.
Each file is a program that takes the model's folder and a port.
"""
