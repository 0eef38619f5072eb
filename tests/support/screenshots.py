"""Pictures for the docs: ``python tests/support/screenshots.py FOLDER [report.html] [http://127.0.0.1:8642/token/]``.

Of the page of a study, and of a lab that serves it; the lab's steps become lab.gif.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from chromium import Chromium
from PIL import Image

SHOTS = (  # name, width, height, dark, vision, fragment, selector at the top
    ("report-desktop", 1440, 900, False, "none", "", ""),
    ("report-head", 1440, 900, False, "none", "#head=5.9", ""),
    ("report-dark", 1440, 900, True, "none", "", ""),
    ("report-deuteranopia", 1440, 900, False, "deuteranopia", "", ""),
    ("report-lesions", 1440, 900, False, "none", "", "[id^=lesions]"),
    ("report-phone", 390, 844, False, "none", "", ""),
)


def take_report(window: Chromium, page: Path, folder: Path) -> None:
    for name, width, height, dark, vision, fragment, place in SHOTS:
        window.size(width, height)
        window.open(page, fragment)
        if place:
            top = "scrollTo(0, document.querySelector(arguments[0]).getBoundingClientRect().top - 60)"
            window.run(top, place)
        print(window.look(folder / f"{name}.png", dark=dark, vision=vision))


def take_lab(window: Chromium, address: str, folder: Path) -> None:
    """The lab step by step, as one picture after another, and its faces."""
    press = "document.querySelector(arguments[0]).click()"
    steps = ("", ".chip", "[data-do=open]", "[data-do=why]", "[data-do=flip]", "[data-do=use]")
    steps_taken: list[Path] = []
    window.size(1200, 860)
    window.open(address)
    for number, selector in enumerate(steps):
        if selector:
            window.run(press, selector)
        time.sleep(12 if selector == "[data-do=flip]" else 5)
        if "flip" in selector or "use" in selector:
            window.run("scrollTo(0, 420)")
        steps_taken.append(window.look(folder / f"lab-step-{number}.png"))
    animate(steps_taken, folder / "lab.gif")
    for name, width, height, dark, vision in (
        ("lab-desktop", 1440, 900, False, "none"),
        ("lab-dark", 1440, 900, True, "none"),
        ("lab-deuteranopia", 1440, 900, False, "deuteranopia"),
        ("lab-phone", 390, 844, False, "none"),
    ):
        window.size(width, height)
        window.open(address)
        time.sleep(3)
        window.run(press, ".chip")
        time.sleep(8)
        print(window.look(folder / f"{name}.png", dark=dark, vision=vision))


def animate(pictures: list[Path], file: Path) -> Path:
    """One picture after another, three seconds each."""
    frames = [Image.open(path).convert("RGB").quantize(96, dither=Image.Dither.NONE) for path in pictures]
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=3000, loop=0, optimize=True)
    return file


def take(folder: Path, places: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        window = Chromium(Path(profile))
        try:
            for place in places:
                take_lab(window, place, folder) if place.startswith("http") else take_report(
                    window, Path(place), folder
                )
        finally:
            window.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), sys.argv[2:])
