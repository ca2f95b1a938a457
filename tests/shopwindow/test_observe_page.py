"""The table of events in ``docs/how-to/observe.md`` has every event, and no other."""

from __future__ import annotations

import re

from rowlock import Event, events

from .pages import DOCS

PAGE = (DOCS / "how-to" / "observe.md").read_text(encoding="utf-8")


def test_every_event_is_in_the_table() -> None:
    """Somebody would wait for an event that is never emitted, or not know of one that is."""
    table = PAGE.partition("| event |")[2].partition("\n\n")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = re.findall(r"`(\w+)`", " ".join(first_cells))
    public = [one for one in vars(events).values() if isinstance(one, type)]
    emitted = {
        one.__name__
        for one in public
        if issubclass(one, Event)
        and not one.__subclasses__()  # what has any is never emitted itself
    }
    assert sorted(named) == sorted(emitted)
