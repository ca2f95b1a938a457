"""Guards that the bugs of peers led to, and guards of what graphs report: deadlocks and pictures;
and the tests that miss them.
"""

from __future__ import annotations

from bug import Bug

ENGINES = "tests/graph/conformance/test_engines_of_peers.py"
PICTURES = "tests/graph/building/test_pictures.py"
THREADS = "tests/graph/test_threads.py"
DEADLOCKS = "tests/graph/building/test_deadlocks.py"

GRAPH_REPORT_BUGS = (
    Bug(
        "a deadlock of parts names no cycle",
        "graph/stock/parts.py",
        "ScatterProcessor.awaited",
        "(self.gather,) if len(self.open) == self.groups else ()",
        "()",
        (f"{DEADLOCKS}::test_cycle_is_named",),
    ),
    Bug(
        "a deadlock through ordered lanes names no cycle",
        "graph/stock/ordered.py",
        "OrderedDispatch.awaited",
        "self.collect is not None and self.is_full",
        "False",
        (f"{DEADLOCKS}::test_cycle_is_named",),
    ),
    Bug(
        "a deadlock through keyed lanes names no cycle",
        "graph/stock/keyed.py",
        "KeyedDispatch.awaited",
        "self.collect is not None and is_held",
        "False",
        (f"{DEADLOCKS}::test_cycle_is_named",),
    ),
    Bug(
        "a node that no reader asks waits for nothing",
        "graph/scheduling/deadlock.py",
        "waits_for",
        "if not found:",
        "if node.status is NodeStatus.NEED_CONSUME:",
        (f"{ENGINES}::test_branches_read_one_after_the_other",),
    ),
    Bug(
        "a buffer is empty until its reader asks",
        "graph/stock/limits.py",
        "BufferProcessor.attach",
        "self.wake()",
        "pass",
        (f"{ENGINES}::test_room_for_branches_read_one_after_the_other",),
    ),
    Bug(
        "a surplus thread wakes none for what it has left before",
        "graph/lanes/runtime.py",
        "GraphRuntime.is_surplus",
        "waiting = len(self._shared)",
        "waiting = 0",
        (f"{THREADS}::test_surplus_thread_leaves_its_calls_to_one_that_sleeps",),
    ),
    Bug(
        "a name becomes a formula in Mermaid",
        "graph/building/pictures.py",
        "",
        '"$": "#36;",',
        "",
        (f"{PICTURES}::test_no_name_ends_its_label",),
    ),
    Bug(
        "a name becomes an icon in Mermaid",
        "graph/building/pictures.py",
        "",
        '":": "#58;",',
        "",
        (f"{PICTURES}::test_no_name_ends_its_label",),
    ),
    Bug(
        "a name becomes a directive in Mermaid",
        "graph/building/pictures.py",
        "",
        '"{": "#123;",',
        "",
        (f"{PICTURES}::test_no_name_ends_its_label",),
    ),
    Bug(
        "a name has entities in Graphviz",
        "graph/building/pictures.py",
        "_quoted",
        'text.replace("&", "&amp;")',
        "text",
        (f"{PICTURES}::test_no_name_ends_its_label",),
    ),
    Bug(
        "a report has a node wait for a reader that is not there",
        "graph/scheduling/deadlock.py",
        "reason_of",
        " and not node.processor.awaited()",
        "",
        (f"{DEADLOCKS}::test_report_says_what_a_scattering_node_waits_for",),
    ),
)
