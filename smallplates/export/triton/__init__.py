"""Triton model repository of a model folder: `python -m smallplates.export.triton` writes it.

`build.py` lays out the folders, `config.py` writes the configurations, `graph.py` renames the input and
output of the ONNX file, and `photo_model.py` runs inside Triton.
"""
