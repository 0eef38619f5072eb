"""``python -m headwise`` is the command line."""

from headwise.cli import main

if __name__ == "__main__":  # worker processes of a sweep import this module again
    main()
