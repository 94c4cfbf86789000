"""Triton model repository of a model folder: `python -m triton_repository` writes it.

`build.py` lays out the folders, `config.py` writes the configurations, `graph.py` renames the input and
output of the ONNX file, and `photo_model.py` runs inside Triton.
"""
