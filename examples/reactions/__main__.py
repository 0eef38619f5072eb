"""Runs the study."""

from examples.reactions.study import main

main()
