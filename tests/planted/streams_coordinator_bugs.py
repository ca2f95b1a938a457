"""Guards of what is seen to beside the steps: the coordinator, expiry, snapshots, upgrades. And the
tests that miss them.
"""

from __future__ import annotations

from bug import Bug

STALLS = "tests/streams/coordinator/test_stalls.py"
COORDINATOR = "tests/streams/coordinator/test_coordinator.py"
TWO = "tests/streams/coordinator/test_concurrent_coordinators.py"
WANTED = "tests/streams/coordinator/test_wanted_shards.py"
EXPIRY = "tests/streams/coordinator/test_expiry.py"

EXPIRY_BUGS = (
    Bug(
        "expiry goes by what shards do next, not by what they have written",
        "streams/coordinating/needs.py",
        "lowest_version",
        "func.min(shards.version)",
        "func.min(shards.step)",
        (
            f"{EXPIRY}::test_slowest_shard_counts",
            f"{EXPIRY}::test_a_flow_that_is_not_declared_here_counts",
        ),
    ),
    Bug(
        "expiry goes by the fastest shard",
        "streams/coordinating/needs.py",
        "lowest_version",
        "func.min(shards.version)",
        "func.max(shards.version)",
        (f"{EXPIRY}::test_slowest_shard_counts",),
    ),
    Bug(
        "expiry passes the cursors of consumers",
        "streams/coordinating/needs.py",
        "first_needed_step",
        "version if first is None else min(version, first)",
        "version",
        (f"{EXPIRY}::test_a_consumer_that_is_behind_counts",),
    ),
    Bug(
        "what was discarded counts as a consumer",
        "streams/coordinating/needs.py",
        "first_needed_step",
        ", cursors.consumer != DISCARDED",
        "",
        (f"{EXPIRY}::test_a_consumer_that_is_behind_counts",),
    ),
    Bug(
        "the step before which a shard begins is deleted",
        "streams/coordinating/expiry.py",
        "Expiry._last_expired_step",
        "end = first - 1 if",
        "end = first if",
        (f"{EXPIRY}::test_what_is_old_and_not_needed_goes",),
    ),
    Bug(
        "steps go whose results are kept",
        "streams/coordinating/expiry.py",
        "Expiry._last_expired_step",
        "min(first - 1, result)",
        "first - 1",
        (f"{EXPIRY}::test_steps_of_results_that_are_kept_stay",),
    ),
    Bug(
        "steps go that are young",
        "streams/coordinating/expiry.py",
        "Expiry._last_expired_step",
        ".where(is_old)",
        "",
        (f"{EXPIRY}::test_what_is_young_stays",),
    ),
    Bug(
        "a log knows the flows of this process alone",
        "streams/coordinating/needs.py",
        "needed_positions",
        "if source not in upto:",
        "if source not in upto or flow_id == 7:",
        (f"{EXPIRY}::test_a_flow_that_is_not_declared_here_counts",),
    ),
    Bug(
        "a flow may be created while its log expires",
        "streams/inputs/event_log.py",
        "EventLog.lock_begin",
        "await self.lock_expiry(connection)",
        "pass",
        (f"{EXPIRY}::test_a_flow_is_not_created_while_a_log_expires",),
    ),
    Bug(
        "a state that was written meanwhile is dropped as empty",
        "streams/state/store.py",
        "drop_empty",
        "delete(table).where(is_empty, tuple_(*key).in_(empty))",
        "delete(table).where(own.flow_id == flow_id, tuple_(*key).in_(empty))",
        (f"{EXPIRY}::test_a_state_that_is_written_meanwhile_is_not_dropped",),
    ),
    Bug(
        "all that is old is deleted in one transaction",
        "streams/coordinating/expiry.py",
        "Expiry._steps",
        ".limit(EXPIRY_ROWS_MAX)",
        "",
        (f"{EXPIRY}::test_so_much_is_deleted_at_once",),
    ),
)

COORDINATOR_BUGS = (
    Bug(
        "a flow that advances is called stalled",
        "streams/coordinating/stalls.py",
        "stall_of",
        "now.frontier > before.frontier",
        "False",
        (f"{STALLS}::test_what_advances_is_not_stalled",),
    ),
    Bug(
        "steps that have just been cut count as undone",
        "streams/coordinating/stalls.py",
        "stall_of",
        "before.frontier < before.next_step",
        "now.frontier < now.next_step",
        (f"{STALLS}::test_what_has_nothing_to_do_is_not_stalled",),
    ),
    Bug(
        "a parked shard is named behind one that is free for a moment",
        "streams/coordinating/stalls.py",
        "_broken",
        "parked_of(shards) or _failing(shards)",
        "_failing(shards) or parked_of(shards)",
        (f"{STALLS}::test_the_worst_of_several_causes_is_told",),
    ),
    Bug(
        "rows that are not cut hide a shard that is parked",
        "streams/coordinating/stalls.py",
        "_without_holder",
        "parked_of(now.shards)",
        "parked_of([])",
        (f"{STALLS}::test_rows_that_a_broken_shard_keeps_from_being_cut",),
    ),
    Bug(
        "an error that is over is told of rows that are not cut",
        "streams/coordinating/stalls.py",
        "_without_holder",
        "one.step < now.next_step or one.is_to_replay",
        "True",
        (f"{STALLS}::test_rows_that_a_broken_shard_keeps_from_being_cut",),
    ),
    Bug(
        "a shard is named that is further than others",
        "streams/coordinating/stalls.py",
        "stall_of_steps",
        "if shard.step == step",
        "",
        (f"{STALLS}::test_a_shard_that_is_further_is_no_cause",),
    ),
    Bug(
        "rows that came since the first look count as not cut",
        "streams/coordinating/stalls.py",
        "stall_of_cuts",
        "source.upto >= earlier.newest",
        "source.upto >= source.newest",
        (f"{STALLS}::test_rows_that_came_since_the_first_look_are_no_stall",),
    ),
    Bug(
        "a flow that rests as it was told to is called stalled",
        "streams/coordinating/stalls.py",
        "stall_of",
        'now.state == "running" and',
        "",
        (f"{STALLS}::test_a_flow_that_is_paused_is_not_stalled",),
    ),
    Bug(
        "a coordinator writes over what services write",
        "streams/coordinating/coordinator.py",
        "Coordinator._values",
        "for name, one in values.items() if one != getattr(row, name)",
        'for name, one in (values | {"state": row.state}).items()',
        (f"{COORDINATOR}::test_what_services_have_asked_for_stays",),
    ),
    Bug(
        "with each new coordinator a stall seems to be over",
        "streams/coordinating/coordinator.py",
        "Coordinator._values",
        'del values["stalled"]',
        "pass",
        (f"{COORDINATOR}::test_another_coordinator_keeps_what_is_known",),
    ),
    Bug(
        "a stall is told at each look",
        "streams/coordinating/coordinator.py",
        "Coordinator._tell",
        "and kind is not self._stall",
        "",
        (f"{COORDINATOR}::test_a_stall_is_told_once_and_ends",),
    ),
    Bug(
        "the frontier goes back",
        "streams/coordinating/coordinator.py",
        "Coordinator._values",
        "max(row.frontier, seen.look.frontier)",
        "seen.look.frontier",
        (f"{COORDINATOR}::test_the_frontier_is_written",),
    ),
    Bug(
        "a changed flow is coordinated by its new declaration",
        "streams/coordinating/coordinator.py",
        "CoordinatorPipeline.ready",
        "flows.c.fingerprint == self.program.fingerprint",
        "flows.c.fingerprint.is_not(None)",
        (f"{TWO}::test_a_changed_flow_is_not_coordinated",),
    ),
    Bug(
        "shards are joined as soon as a replica is away",
        "streams/coordinating/wanted_shards.py",
        "WantedShards.after",
        "now - self._fewer_since < self._shrinks_after_s",
        "False",
        (f"{WANTED}::test_more_shards_at_once_and_fewer_later",),
    ),
    Bug(
        "a flow that nobody works on has its shards joined",
        "streams/coordinating/wanted_shards.py",
        "WantedShards.after",
        "or not replicas",
        "",
        (f"{WANTED}::test_nothing_is_found_of_a_flow_that_nobody_works_on",),
    ),
)
