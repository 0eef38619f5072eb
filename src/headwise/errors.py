"""The one error of headwise: what was seen, what was expected, what to type."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HeadwiseError(ValueError):
    """An error in usage or data: what was seen, what was expected, and the next step.

    Example:
        >>> raise HeadwiseError("gates of shape (2, 3)", "(6, 12)", "pass torch.ones(6, 12)")
        Traceback (most recent call last):
        headwise.errors.HeadwiseError: gates of shape (2, 3); expected (6, 12). Try: pass torch.ones(6, 12)
    """

    def __init__(self, seen: str, expected: str = "", hint: str = ""):
        self.seen, self.expected, self.hint = seen, expected, hint
        message = seen
        if expected:
            message += f"; expected {expected}"
        if hint:
            message += f". Try: {hint}"
        super().__init__(message)


class HeadwiseWarning(UserWarning):
    """Execution continued but differs from what was requested or published; the difference is recorded."""


def unknown(what: str, name: object, known: Iterable[str]) -> HeadwiseError:
    """The error for an unknown name; the closest known names come first."""
    known = sorted(map(str, known))
    near = get_close_matches(str(name), known, n=3, cutoff=0.5)
    listed = ", ".join(known[:40]) + (f" and {len(known) - 40} more" if len(known) > 40 else "")
    return HeadwiseError(
        f"unknown {what} {name!r}",
        f"one of: {listed or '(none)'}",
        " or ".join(near),
    )


def option(name: str, value: str) -> str:
    """What to type in Python and, because it shows the same errors, on the command line."""
    return f'{name}="{value}" (--{name.replace("_", "-")} {value})'


def install(extra: str) -> str:
    """How to install an extra; headwise is not on a package index yet."""
    return f'pip install -e ".[{extra}]" in the source folder of headwise'


def missing_extra(package: str, extra: str, purpose: str, otherwise: str = "") -> HeadwiseError:
    """The error for an optional library that is not installed, with an alternative if there is one."""
    seen = f"{purpose} needs the package {package!r}, which is not installed"
    return HeadwiseError(seen, hint=install(extra) + (f", or {otherwise}" if otherwise else ""))


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"[:300]
