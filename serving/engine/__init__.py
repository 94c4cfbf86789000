"""Engine: computes batches of tensors in worker processes; knows nothing of HTTP or file formats.

Requests stand in slots of shared memory (`memory.py`), and records in two pipes name the slots that wait
(`queue.py`). Every web process holds an `EngineClient`. One process, the web process itself or the
cluster's parent, runs a `Supervisor`, which starts, watches and replaces the workers (`worker.py`).
"""
