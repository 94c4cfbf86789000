"""The engine that all services share; it imports neither torch nor onnxruntime."""

from serving.tasks.python.task import PythonTask as PythonTask

__version__ = "0.2.0"
