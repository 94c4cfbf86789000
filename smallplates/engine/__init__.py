"""Engine: what web processes and workers share to compute batches of tensors.

Items lie in slots of shared memory (`memory.py`); records in two pipes name the queued slots
(`worker/queue.py`). Every web process has an `EngineClient`. One process, either the web process itself
or the cluster's parent, runs a `Supervisor`, which starts, monitors and replaces the workers
(`worker/process.py`).
"""
