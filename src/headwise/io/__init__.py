"""Files, records and what they are known by (no torch)."""
