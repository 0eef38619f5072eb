"""A study of chemistry Transformers: `python -m examples.reactions --help`."""
