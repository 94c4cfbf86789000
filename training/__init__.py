"""Making of model folders: from zipped photos, or from a user's own weights."""
