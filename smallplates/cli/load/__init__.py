"""`smallplates load`: measures a running server as its clients see it; `benchmarks` uses it, too."""
