"""The command line: each verb parses, calls one function and prints."""

from headwise.cli import atlas, making, measuring, papers, records, studying, using
from headwise.cli.app import app, main

__all__ = ["app", "atlas", "main", "making", "measuring", "papers", "records", "studying", "using"]
