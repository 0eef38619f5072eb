"""Ways to train: each is a Method with a few hooks on the one loop."""

from headwise.training.methods.method import Method, methods

__all__ = ["Method", "methods"]
