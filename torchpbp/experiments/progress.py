"""Progress of long work: a bar with an estimate on a terminal, elsewhere a line per tenth."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm


class Progress:
    """Shows how much of some work is done, on stderr.

    Args:
        title: of the work.
        total: steps.
        unit: name of a step.
        done: steps done before.
        shown: whether anything is shown.
    """

    def __init__(self, title: str, total: int, unit: str = "step", done: int = 0, shown: bool = True) -> None:
        self.title, self.total, self.done, self.began, self.first = title, max(1, total), done, time.monotonic(), done
        self.bar: tqdm[Any] | None = None
        self.lines = shown and not sys.stderr.isatty()
        if shown and not self.lines:
            self.bar = tqdm(total=total, initial=done, desc=title, unit=unit, leave=False, dynamic_ncols=True)

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Count steps as done.

        Args:
            steps: their number.
            note: shown beside the bar, such as the loss.
        """
        before, self.done = self.done, self.done + steps
        if self.bar is not None:
            self.bar.set_postfix_str(note, refresh=False)
            self.bar.update(steps)
        elif self.lines and 10 * self.done // self.total > 10 * before // self.total:
            seconds = time.monotonic() - self.began
            left = seconds / (self.done - self.first) * max(0, self.total - self.done)
            rest = f"{duration(seconds)}, about {duration(left)} left" if self.done < self.total else duration(seconds)
            text = f"{self.title}: {min(100, 100 * self.done // self.total)} % after {rest}"
            print(f"{text}, {note}" if note else text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar."""
        if self.bar is not None:
            self.bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def duration(seconds: float) -> str:
    """A number of seconds as people write it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
