"""Tests of `servery/`."""
