"""Files, records and their identity (no torch)."""
