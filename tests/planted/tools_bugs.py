"""Bugs that latency and hostile hosts find, and those of the tools that bring them."""

from __future__ import annotations

from bug import Bug

ORDERS = "tests/simulation/test_simulation.py::test_orders"
CROWD = "tests/simulation/test_simulation.py::test_crowd"
CONDITIONS = "tests/testing/simulation/test_conditions.py"
PATIENCE = "tests/testing/simulation/test_liveness.py::test_only_round_trips_make_a_bound_longer"
CONTRACT = "tests/testing/test_contract.py"

FOUND_BY_CONDITIONS = (
    Bug(
        "simulation: batches never shrink",
        "database/batcher.py",
        "BatchLimit.shrink",
        "self._fast = 0",
        "return",
        (CROWD,),
    ),
    Bug(
        "simulation: a wake that raises is let out",
        "hints/hinter.py",
        "_call_each",
        "BaseException ",
        "ZeroDivisionError ",
        (ORDERS,),
    ),
    Bug(
        "simulation: a log call that raises is let out",
        "logs.py",
        "ContainedLogger._log",
        "BaseException:",
        "ZeroDivisionError:",
        (ORDERS,),
    ),
    Bug(
        "simulation: a listener that raises is let out",
        "events.py",
        "emit",
        "BaseException:",
        "ZeroDivisionError:",
        (ORDERS,),
    ),
)
"""Nothing else of a simulation finds these: a database next door and a host that never raises
pass with them.
"""

OF_THE_CONDITIONS = (
    Bug(
        "simulation: statements travel in no time",
        "testing/simulation/environment/faulty_connection.py",
        "FaultyConnection._travel",
        "way_s = self.round_trip_s / 2",
        "way_s = 0.0",
        (f"{CONDITIONS}::test_every_statement_takes_a_round_trip",),
    ),
    Bug(
        "simulation: a ROLLBACK takes no time",
        "testing/simulation/environment/faulty_connection.py",
        "SimulatedConnection.rollback",
        "is_sent and self.faulty_connection.round_trip_s",
        "False",
        (f"{CONDITIONS}::test_every_statement_takes_a_round_trip",),
    ),
    Bug(
        "simulation: no process is far away",
        "testing/simulation/participants.py",
        "Participants.new_process",
        "self.conditions.round_trip_s",
        "0.0",
        (f"{CONDITIONS}::test_every_process_is_far_away",),
    ),
    Bug(
        "simulation: latency comes where it may not",
        "testing/simulation/faults/conditions.py",
        "Conditions.drawn",
        " if Fault.LATENCY in kinds else 0.0",
        "",
        (f"{CONDITIONS}::test_each_kind_is_drawn_and_only_what_may_be",),
    ),
    Bug(
        "simulation: bounds know nothing of round trips",
        "testing/simulation/liveness.py",
        "_Bounds.of",
        " + ROUND_TRIPS_MAX * round_trip",
        "",
        (PATIENCE,),
    ),
    Bug(
        "simulation: bounds are longer for everybody",
        "testing/simulation/liveness.py",
        "_Bounds.of",
        "ROUND_TRIPS_MAX * round_trip",
        "timedelta(seconds=1)",
        (PATIENCE,),
    ),
    Bug(
        "simulation: conditions share the randomness of the faults",
        "testing/simulation/run.py",
        "SimulationRun._run",
        "if kind not in ALL_ALONG",
        "",
        (f"{CONDITIONS}::test_a_run_without_them_is_the_run_that_it_was",),
    ),
    Bug(
        "simulation: handlers do not raise",
        "testing/simulation/faults/hostile_host.py",
        "HostileHost._with_a_raising_handler",
        "partial(self._raise_told, Fault.LOGGING)",
        "lambda: None",
        (f"{CONDITIONS}::test_log_calls_raise",),
    ),
    Bug(
        "simulation: a record factory does not raise",
        "testing/simulation/faults/hostile_host.py",
        "HostileHost._with_a_raising_factory.factory",
        "name.startswith(LOGGER)",
        "False",
        (f"{CONDITIONS}::test_log_calls_raise",),
    ),
    Bug(
        "simulation: the host sets no fields of ours",
        "testing/simulation/faults/hostile_host.py",
        "HostileHost._with_fields_of_its_own.factory",
        "FIELDS",
        "()",
        (f"{CONDITIONS}::test_log_calls_raise",),
    ),
    Bug(
        "simulation: hostile logging outlives its run",
        "testing/simulation/faults/hostile_host.py",
        "HostileHost",
        "         logging.setLogRecordFactory(factory)",
        "         pass",
        (f"{CONDITIONS}::test_logging_is_given_back",),
    ),
    Bug(
        "simulation: nobody listens",
        "testing/simulation/faults/hostile_host.py",
        "HostileHost.at_home",
        "stack.callback(subscribe(self._listen))",
        "pass",
        (f"{CONDITIONS}::test_listeners_and_relays_raise",),
    ),
    Bug(
        "simulation: no wake is attached",
        "testing/simulation/faults/hostile_host.py",
        "HostileHost.attach",
        "pipeline_hinter.attach(pipeline.leased.name, self._wake)",
        "pass",
        (f"{CONDITIONS}::test_wakes_raise",),
    ),
    Bug(
        "simulation: no relay is attached",
        "testing/simulation/faults/hostile_host.py",
        "HostileHost.at_home",
        "self._wake",
        "",
        (f"{CONDITIONS}::test_listeners_and_relays_raise",),
    ),
    Bug(
        "simulation: hooks raise to the end",
        "testing/simulation/faults/hostile_host.py",
        "HostileHost._is_hook_drawn",
        " and not self._is_calm()",
        "",
        (f"{CONDITIONS}::test_hooks_are_calm_in_the_end",),
    ),
    Bug(
        "simulation: no hook raises",
        "testing/simulation/participants.py",
        "Participants.new_replica.start",
        "self.host.spoil_hooks(pipeline)",
        "pass",
        (f"{CONDITIONS}::test_hooks_raise_until_the_faults_are_over",),
    ),
    Bug(
        "simulation: no `also` raises",
        "testing/simulation/participants.py",
        "Participants._watch.watched_process",
        "self.host.spoil_outcome(await _in_the_loop(process, item))",
        "await _in_the_loop(process, item)",
        (f"{CONDITIONS}::test_hooks_raise_until_the_faults_are_over",),
    ),
)

CONTRACT_BUGS = (
    Bug(
        "contract: work without related rows passes",
        "testing/contract.py",
        "PipelineContract.test_steps_back_while_somebody_holds_a_related_row",
        "counters.applied == 0",
        "True",
        (f"{CONTRACT}::test_a_pipeline_that_does_not_step_back_is_found",),
    ),
    Bug(
        "contract: related rows that stay locked pass",
        "testing/contract.py",
        "PipelineContract.test_steps_back_while_somebody_holds_a_related_row",
        ", *related[:-1]",
        "",
        (f"{CONTRACT}::test_a_pipeline_that_does_not_step_back_is_found",),
    ),
    Bug(
        "contract: a row that never comes back passes",
        "testing/contract.py",
        "PipelineContract.test_steps_back_while_somebody_holds_a_related_row",
        "_key(row)",
        "item.id for item in items",
        (f"{CONTRACT}::test_a_pipeline_that_never_comes_back_is_found",),
    ),
    Bug(
        "contract: related rows need not be named",
        "testing/contract.py",
        "PipelineContract.related_rows",
        "TypeError",
        "SkipTest",
        (f"{CONTRACT}::test_related_rows_must_be_named",),
    ),
)

CHAOS_BUGS = (
    Bug(
        "chaos: the proxy answers at once",
        "../../tests/chaos/proxy.py",
        "Proxy._delay",
        "loop.call_later(self._latency_s, late.feed_data, read)",
        "late.feed_data(read)",
        ("tests/chaos/test_proxy.py::test_each_round_trip_takes_its_time",),
    ),
    Bug(
        "chaos: the verdict knows nothing of round trips",
        "../../tests/chaos/verdict.py",
        "judge",
        " + timedelta(seconds=ROUND_TRIPS * latency_s)",
        "",
        ("tests/chaos/test_verdict.py::test_only_round_trips_make_the_wait_longer",),
    ),
    Bug(
        "chaos: the verdict waits longer for everybody",
        "../../tests/chaos/verdict.py",
        "judge",
        "* latency_s",
        "* 0.025",
        ("tests/chaos/test_verdict.py::test_only_round_trips_make_the_wait_longer",),
    ),
    Bug(
        "a COMMIT is told when its process has its next turn",
        "testing/simulation/environment/faulty_connection.py",
        "_commit",
        "faulty_connection.on_commit()",
        "asyncio.get_running_loop().call_soon(faulty_connection.on_commit)",
        (
            "tests/testing/simulation/test_faulty_connection.py::test_a_commit_is_told_in_the_turn_in_which_it_was_made",
        ),
    ),
)
