"""Guards of what proves that streams are right: the reference, the comparison with it, and the
simulation; and guards of streams that were found by them. And the tests that miss them.
"""

from __future__ import annotations

from bug import Bug

LEASES = "tests/streams/walk/test_leases.py"
RUNNING = "tests/testing/streams/test_running.py"
KEPT = "tests/testing/simulation/test_kept_leases.py"
SAME = "tests/simulation/streams/test_flows.py"

LEASE_BUGS = (
    Bug(
        "leases of a flow are held for somebody else",
        "streams/program.py",
        "lease_owner",
        'flow.replace(OWNER_SEPARATOR, ".")',
        "flow",
        (f"{LEASES}::test_the_owner_of_a_lease_is_the_pipeline_alone",),
    ),
    Bug(
        "a long name of a flow is longer than an owner may be",
        "streams/program.py",
        "lease_owner",
        "[:OWNER_NAME_CHARS_MAX]",
        "",
        (f"{LEASES}::test_flows_of_like_names_are_told_apart",),
    ),
    Bug(
        "two flows have one owner",
        "streams/program.py",
        "lease_owner",
        "plain == flow",
        "True",
        (f"{LEASES}::test_flows_of_like_names_are_told_apart",),
    ),
    Bug(
        "a host is ended by an error when the database is away",
        "streams/shards/runner.py",
        "FlowRunner.disappear",
        "except Exception as error",
        "except KeyError as error",
        (f"{LEASES}::test_a_host_ends_without_its_database",),
    ),
    Bug(
        "a hint behind the last look is forgotten",
        "streams/shards/runner.py",
        "FlowRunner.has_nothing_left",
        " or self._hinted > asked",
        "",
        (f"{LEASES}::test_a_flow_that_is_hinted_behind_its_look_has_something_left",),
    ),
    Bug(
        "an idle flow is asked twice for each answer",
        "streams/shards/runner.py",
        "FlowRunner.has_nothing_left",
        "self._asked = self.wakes",
        "self._asked = self.wakes if asked is None else None",
        (f"{LEASES}::test_an_idle_flow_has_nothing_left_however_often_it_is_asked",),
    ),
)

REFERENCE_BUGS = (
    Bug(
        "results are not compared",
        "testing/streams/records.py",
        "_in_words",
        "if more != less:",
        "if False:",
        (f"{RUNNING}::test_each_difference_is_told",),
    ),
    Bug(
        "states are not compared",
        "testing/streams/records.py",
        "_by_key",
        "own.get(key) != expected.get(key)",
        "False",
        (f"{RUNNING}::test_each_difference_is_told",),
    ),
    Bug(
        "steps are not counted",
        "testing/streams/records.py",
        "FlowRecord._differences",
        "self.next_step != expected.next_step",
        "False",
        (f"{RUNNING}::test_each_difference_is_told",),
    ),
    Bug(
        "timers are not compared",
        "testing/streams/records.py",
        "FlowRecord._differences",
        "self.timers[name], timers)",
        "timers, timers)",
        (f"{RUNNING}::test_each_difference_is_told",),
    ),
    Bug(
        "rows of the host that are missing are not told",
        "testing/streams/records.py",
        "_unmatched",
        "missing += list(wanted.elements())",
        "pass",
        (f"{RUNNING}::test_rows_of_the_host_are_compared",),
    ),
    Bug(
        "rows of the host that are too many are not told",
        "testing/streams/records.py",
        "_unmatched",
        "[_frozen(row, frozenset(row)) for row in left]",
        "[]",
        (f"{RUNNING}::test_rows_of_the_host_are_compared",),
    ),
    Bug(
        "an outbox is expected to have each key as often as it was emitted",
        "testing/streams/one_loop.py",
        "_inserted",
        "if not output.is_outbox:",
        "if True:",
        (f"{RUNNING}::test_rows_of_the_host_are_compared",),
    ),
    Bug(
        "a flow whose shard is parked is compared",
        "testing/streams/recorded.py",
        "check_at_one_step",
        "if shard.parked is not None:",
        "if False:",
        (f"{RUNNING}::test_what_cannot_be_compared_is_an_error",),
    ),
    Bug(
        "a flow whose shards are at several steps is compared",
        "testing/streams/recorded.py",
        "check_at_one_step",
        "!= 1:",
        "< 1:",
        (f"{RUNNING}::test_what_cannot_be_compared_is_an_error",),
    ),
    Bug(
        "a reference begins with the first step that is left",
        "testing/streams/one_loop.py",
        "_cuts",
        "if row.step != expected:",
        "if False:",
        (f"{RUNNING}::test_what_cannot_be_compared_is_an_error",),
    ),
    Bug(
        "a reference has no end",
        "testing/streams/one_loop.py",
        "read_reference",
        "if end is not None and cut.step >= end:",
        "if False:",
        (f"{RUNNING}::test_states_of_an_earlier_step",),
    ),
)

SIMULATION_BUGS = (
    Bug(
        "a row has settled whose lease nobody trusts",
        "testing/simulation/quiescence.py",
        "_abandoned_in",
        "if place not in held:",
        "if False:",
        (f"{KEPT}::test_a_row_that_its_holder_has_lost_has_not_settled",),
    ),
    Bug(
        "names of subqueries are drawn with the tokens",
        "testing/simulation/environment/randomness.py",
        "_urandom.urandom",
        'caller.startswith("sqlalchemy")',
        "False",
        (f"{SAME}::test_a_seed_gives_the_same_history_in_each_process",),
    ),
    Bug(
        "a hint that a shard is free has nothing looked at",
        "streams/shards/pipeline.py",
        "FlowPipeline.look_around_soon",
        'self.looked_around_at = float("-inf")',
        "pass",
        (f"{SAME}::test_flows",),
    ),
    Bug(
        "a hint for a flow is not heard",
        "streams/shards/runner.py",
        "FlowRunner.wake_from_anywhere",
        "self._loop.call_soon_threadsafe(self.wake)",
        "pass",
        (f"{SAME}::test_flows",),
    ),
    Bug(
        "a replica must release what it has lost",
        "testing/simulation/run.py",
        "SimulationRun._judge",
        'violation.promise != "B5" or not self.trace.is_lost(place)',
        "True",
        (f"{KEPT}::test_a_lease_that_is_lost_in_the_end_is_no_fault",),
    ),
    Bug(
        "each replica but one is not asked whether something is left",
        "testing/unsettled.py",
        "all_that_know",
        "or isinstance(one, KnowsUnsettled)",
        "",
        (f"{KEPT}::test_each_replica_is_asked",),
    ),
)

FOUND_BUGS = (
    Bug(
        "a cut that was recorded elsewhere counts here, too",
        "streams/cutting/cutter.py",
        "Cutter.cut",
        'not await self._transact(record, purpose="cut a step")',
        'await self._transact(record, purpose="cut a step") is None',
        (f"{SAME}::test_flows",),
    ),
    Bug(
        "a shard that is opened again has what it had in memory",
        "streams/shards/own_shard.py",
        "OwnShard.open",
        "self.cache, self.sent = cache, set()",
        "self.sent = set()",
        (f"{SAME}::test_flows",),
    ),
    Bug(
        "a shard that has begun anew goes on with the steps that were under way",
        "streams/shards/own_shard.py",
        "OwnShard.drop",
        "self.doing = None",
        "pass",
        (f"{SAME}::test_flows",),
    ),
)
"""Found by runs of the simulation."""
