"""The command line: each verb parses, calls one function and prints."""

from headwise.cli import atlas, lab, making, measuring, papers, records, studying, trials, using
from headwise.cli.app import app, main

__all__ = ["app", "atlas", "lab", "main", "making", "measuring", "papers", "records", "studying", "trials", "using"]
