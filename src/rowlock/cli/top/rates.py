"""Rates of the last minutes, as `top` has seen them, and the small picture of them. Pure.

Replicas report the rate of their last minute only, so a picture begins when `top` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

MINUTES: Final = 10
"""How many minutes a picture has, a character each."""
MINUTE_S: Final = 60.0
SAMPLES_MAX: Final = 1_200
"""Most samples of one pipeline."""
PIPELINES_MAX: Final = 1_000
"""Most pipelines of which samples are kept."""
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class RateHistory:
    """Samples of each pipeline's rate; the oldest are forgotten."""

    _samples: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def add(self, at: float, rates: Iterable[tuple[str, float | None]]) -> None:
        """Keep what is known at a moment of the monotonic clock."""
        for pipeline, rows_s in rates:
            if rows_s is None:
                continue
            if pipeline in self._samples or len(self._samples) < PIPELINES_MAX:
                samples = self._samples.setdefault(pipeline, deque(maxlen=SAMPLES_MAX))
                samples.append((at, rows_s))

    def picture(self, pipeline: str, now: float) -> str:
        """Return the last `MINUTES` minutes of a pipeline, the newest at the right."""
        return sparkline(per_minute(self._samples.get(pipeline, ()), now))


def per_minute(samples: Iterable[tuple[float, float]], now: float) -> list[float | None]:
    """Return the mean of each minute, the oldest first; None for one without samples."""
    minutes: list[list[float]] = [[] for _ in range(MINUTES)]
    for at, rows_s in samples:
        age = int((now - at) // MINUTE_S)
        if 0 <= age < MINUTES:
            minutes[MINUTES - 1 - age].append(rows_s)
    return [sum(each) / len(each) if each else None for each in minutes]


def sparkline(values: Sequence[float | None]) -> str:
    """Return a bar for each value, by the share of the greatest; a space for None."""
    greatest = max((value for value in values if value is not None), default=0.0)
    return "".join(_bar(value, greatest) for value in values)


def _bar(value: float | None, greatest: float) -> str:
    if value is None:
        return " "
    if greatest <= 0 or value <= 0:
        return _BARS[0]
    return _BARS[min(len(_BARS) - 1, int(value / greatest * len(_BARS)))]
