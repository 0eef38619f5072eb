"""Runs the study."""

from examples.language_models.running import main

main()
