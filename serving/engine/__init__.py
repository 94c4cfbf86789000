"""The engine: slots in shared memory, one work queue, worker programs, and their supervisor.

Web processes hold a `client.EngineClient`; one process, the web process itself or `cluster/parent.py`
above several, holds the `supervisor.Supervisor`, which starts the programs in `worker.py`.
"""
