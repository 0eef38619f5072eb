"""The expected time of an estimator with many forwards, logged before and while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Log = Callable[[str], None]
WORTH = 10.0  # seconds that make a log line worthwhile, and seconds between lines


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Meter:
    """Counts forwards of examples against the number that an estimator needs."""

    def __init__(self, name: str = "", log: Log = to_stderr, clock: Callable[[], float] = time.perf_counter):
        self.name, self.log, self.clock = name, log, clock
        self.total, self.count, self.said = 0, 0, False

    def start(self, forwards: int, examples: int, seconds: float) -> None:
        """Log the expected time: forwards per example, and the ``seconds`` of one forward over all examples."""
        self.total, self.count = forwards * examples, 0
        self.begun = self.last = self.clock()
        if self.said or forwards * seconds < WORTH:
            return
        self.said = True
        self.log(f"{self.name}: {forwards} forwards of {examples} examples, about {duration(forwards * seconds)}")

    def tick(self, examples: int) -> None:
        """Count a forward of some examples."""
        self.count += examples
        if self.total and self.clock() - self.last > WORTH and self.count < self.total:
            self.last = self.clock()
            left = (self.last - self.begun) / self.count * (self.total - self.count)
            self.log(f"{self.name}: {100 * self.count / self.total:.0f} %, about {duration(left)} left")


def duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    Example:
        >>> duration(42), duration(253), duration(9000)
        ('42 s', '4 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
