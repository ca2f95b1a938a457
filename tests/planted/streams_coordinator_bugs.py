"""Guards of what is seen to beside the steps: the coordinator, expiry, snapshots, upgrades. And the
tests that miss them.
"""

from __future__ import annotations

from bug import Bug

STALLS = "tests/streams/coordinator/test_stalls.py"
COORDINATOR = "tests/streams/coordinator/test_coordinator.py"
TWO = "tests/streams/coordinator/test_concurrent_coordinators.py"
WANTED = "tests/streams/coordinator/test_wanted_shards.py"

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
        "stall_of_steps",
        "if shard.parked is not None:",
        "if shard.parked is not None and all(one.is_held or one.parked for one in last):",
        (f"{STALLS}::test_the_worst_of_several_causes_is_told",),
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
