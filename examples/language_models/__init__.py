"""A study of language models as they are: `python -m examples.language_models --help`."""
