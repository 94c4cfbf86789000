"""Backends: the protocol that they implement, and code that the CUDA backends share."""
