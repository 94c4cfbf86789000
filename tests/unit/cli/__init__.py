"""Tests of `smallplates/cli/`."""
