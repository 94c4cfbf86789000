"""Programs that make parts of the documentation, its site, and the pinned requirements."""
