"""Guards of graphs: ports, scheduling, lanes and the end of a run; and the tests that miss them."""

from __future__ import annotations

from bug import Bug

PORTS = "tests/graph/test_ports.py"

GRAPH_BUGS = (
    Bug(
        "the end of an edge is seen before its last value",
        "graph/ports.py",
        "InputPort.is_finished",
        " and edge.value is EMPTY",
        "",
        (f"{PORTS}::test_value_before_the_end_is_read",),
    ),
    Bug(
        "a consumer that is done keeps the value in its slot",
        "graph/ports.py",
        "Edge.clear",
        "self.value = EMPTY",
        "pass",
        (f"{PORTS}::test_consumer_that_is_done_drops_the_value",),
    ),
    Bug(
        "a port is used outside of its node's event",
        "graph/ports.py",
        "_End._used_edge",
        "edge.changes.asked is not self.owner",
        "edge is _UNCONNECTED",
        (f"{PORTS}::test_port_outside_of_its_event_is_refused[push]",),
    ),
    Bug(
        "a port is noted with each of its changes",
        "graph/ports.py",
        "_End._notify",
        "not self.is_changed and",
        "",
        (f"{PORTS}::test_port_is_noted_once",),
    ),
    Bug(
        "a value is pushed over another",
        "graph/ports.py",
        "OutputPort.push",
        "edge.value is not EMPTY or ",
        "",
        (f"{PORTS}::test_full_slot_is_not_overwritten",),
    ),
)
