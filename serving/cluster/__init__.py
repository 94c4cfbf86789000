"""Several web processes over one engine, on one port."""
