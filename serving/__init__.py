"""The server that all backends share; it imports neither torch nor onnxruntime."""

from serving.tasks.python.task import PythonTask as PythonTask

__version__ = "0.3.0"
