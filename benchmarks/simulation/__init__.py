"""Discrete-event simulation of many replicas of the service; `python -m benchmarks simulate` runs it.

`plan.py` describes a run, `cluster.py` simulates it with replicas (`replica.py`), load balancers
(`balancing.py`) and clients (`clients.py`). `scenarios.py` has the named
runs, `validation.py` the comparison with the real service. Times are in seconds, unless a name says ms.
"""
