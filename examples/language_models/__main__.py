"""Runs the study."""

from examples.language_models.study import main

main()
