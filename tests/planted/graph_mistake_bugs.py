"""Guards against mistakes of a host that builds a graph; and the tests that miss them."""

from __future__ import annotations

from bug import Bug

MAPS = "tests/graph/stock/test_maps.py"
MISTAKES = "tests/graph/building/test_mistakes.py"
PROCESSES = "tests/graph/test_processes.py"
TOPOLOGY = "tests/graph/test_topology.py"

GRAPH_MISTAKE_BUGS = (
    Bug(
        "a place that is misspelt is a thread",
        "graph/building/arguments.py",
        "check_place",
        "place not in allowed",
        "False",
        (f"{MISTAKES}::test_mistake",),
    ),
    Bug(
        "a source that cannot be read is found in the run",
        "graph/building/operators.py",
        "source_of",
        "    _check_readable(items)\n",
        "",
        (f"{MISTAKES}::test_mistake",),
    ),
    Bug(
        "a flow is run as if it were a graph",
        "graph/scheduling/run.py",
        "run_graph",
        "    _check_graph(graph)\n",
        "",
        (f"{MISTAKES}::test_flow_is_no_graph",),
    ),
    Bug(
        "an open flow is not named as one",
        "graph/building/topology.py",
        "Topology._check_connected",
        'kind == "output"',
        "False",
        (f"{TOPOLOGY}::test_mistake_is_found",),
    ),
    Bug(
        "lanes without a reader are prepared to hand on",
        "graph/scheduling/scheduler.py",
        "Scheduler.start",
        " if is_checked else None",
        "",
        (f"{MISTAKES}::test_flow_without_a_reader_is_named",),
    ),
    Bug(
        "a coroutine that nothing awaits is a result",
        "graph/stock/maps.py",
        "MapProcessor.process",
        "type(returned) is CoroutineType",
        "False",
        (f"{MAPS}::test_coroutine_of_a_plain_function_is_an_error",),
    ),
    Bug(
        "a main module that cannot be imported is not explained",
        "graph/lanes/processes.py",
        "ProcessLane.call",
        "error.args",
        "False",
        (f"{PROCESSES}::test_main_module_that_cannot_be_imported_is_explained",),
    ),
    Bug(
        "a crash is blamed on the main module",
        "graph/lanes/processes.py",
        "ProcessLane.call",
        "error.args",
        "True",
        (f"{PROCESSES}::test_child_that_dies_gets_no_advice",),
    ),
)
