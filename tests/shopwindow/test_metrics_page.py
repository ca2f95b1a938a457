"""``docs/reference/metrics.md`` lists the metrics of the catalogue, and ``docs/how-to/observe.md``
every event, and no other.

Write the list of metrics anew with

    python -m pytest tests/shopwindow/test_metrics_page.py --renew-pages
"""

from __future__ import annotations

import re

import pytest

from rowlock import Event, events
from rowlock.pipelines.statistics import ROWS, SECONDS
from rowlock.telemetry.metrics import METRICS, OTHER, PIPELINES_MAX
from rowlock.telemetry.prometheus import PREFIX

from .pages import DOCS

PAGE = DOCS / "reference" / "metrics.md"
OBSERVE = DOCS / "how-to" / "observe.md"
HEAD = f"""# Metrics

What `rowlock.telemetry.prometheus` shows, made from the code. How to register it: [Metrics for
Prometheus](../how-to/metrics.md). Beyond {PIPELINES_MAX} pipelines, the others share the name
`{OTHER}`. A metric that is not known yet, such as the skew before the first claimed row, has no
series.

| name | kind | labels | what |
|---|---|---|---|
"""


def page() -> str:
    rows = [
        f"| `{PREFIX}{one.name}` | {one.kind} | "
        f"{', '.join(f'`{label}`' for label in one.all_labels) or '-'} | {one.help} |"
        for one in METRICS
    ]
    bounds = [f"{name}: {', '.join(f'{one:g}' for one in of)}." for name, of in BOUNDS.items()]
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join(bounds) + "\n"


BOUNDS = {"Bounds of seconds": SECONDS, "Bounds of rows": ROWS}


def test_the_page_lists_the_metrics(request: pytest.FixtureRequest) -> None:
    """A dashboard would be built of names that nobody exports."""
    if request.config.getoption("renew_pages"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_event_is_in_the_table() -> None:
    """Somebody would wait for an event that is never emitted, or not know of one that is."""
    table = OBSERVE.read_text(encoding="utf-8").partition("| event |")[2].partition("\n\n")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = re.findall(r"`(\w+)`", " ".join(first_cells))
    public = [one for one in vars(events).values() if isinstance(one, type)]
    # What has any subclasses is never emitted itself.
    emitted = [one for one in public if issubclass(one, Event) and not one.__subclasses__()]
    assert sorted(named) == sorted({one.__name__ for one in emitted})
