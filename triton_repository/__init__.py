"""A model folder as NVIDIA Triton serves it: `python -m triton_repository` writes a model repository.

`config.py` words the configurations, `graph.py` gives the ONNX file the names that clients know,
`build.py` lays everything out, `photo_model.py` is what runs inside Triton.
"""
