"""Pictures of a page for the docs: ``python tests/support/screenshots.py report.html docs/images``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import Chromium

# name, width, height, dark, colouring of the map, where to scroll
SHOTS = (
    ("report-desktop", 1440, 1270, False, "owner", "h1"),
    ("report-head", 1440, 1000, False, "importance", ".dial"),
    ("report-dark", 1440, 1000, True, "probe", ".dial"),
    ("report-lesions", 1440, 1000, False, "owner", "[id^=lesions]"),
    ("report-phone", 390, 844, False, "owner", ".dial"),
)


def take(page: Path, folder: Path, head: str = "3.7") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        window = Chromium(Path(profile))
        try:
            for name, width, height, dark, colouring, place in SHOTS:
                window.size(width, height)
                window.open(page, "" if name == "report-desktop" else f"#{head}")
                window.run("document.querySelector(`[data-part=modes] [data-key=${arguments[0]}]`)?.click()", colouring)
                window.run("scrollTo(0, document.querySelector(arguments[0]).getBoundingClientRect().top - 40)", place)
                print(window.look(folder / f"{name}.png", dark=dark))
        finally:
            window.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
