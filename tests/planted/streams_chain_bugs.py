"""Guards of flows over the results of others, and the tests that miss them."""

from __future__ import annotations

from bug import Bug

CHAIN = "tests/streams/walk/test_flow_over_flow.py"
PLAN = "tests/streams/cutting/test_plan.py"
THROUGH = "tests/streams/queries/test_wait_through.py"
SOURCE = "streams/inputs/output_source.py"

CHAIN_BUGS = (
    Bug(
        "a wait for a flow over results goes by the last results, whoever has done them",
        SOURCE,
        "OutputSource.last_position",
        ", self._step < below",
        "",
        (f"{THROUGH}::test_what_comes_later_is_not_waited_for",),
    ),
    Bug(
        "a wait for a flow over results ends with the first flow",
        "streams/queries/waits.py",
        "FlowWaits.wait_for",
        "positions[name] = await",
        "await",
        (f"{THROUGH}::test_what_the_first_flow_reads_is_waited_for",),
    ),
    Bug(
        "a step without results is waited for as if it had some",
        SOURCE,
        "OutputSource.last_position",
        "0 if step is None else position_of_step(step)",
        "position_of_step(below - 1)",
        (f"{THROUGH}::test_a_step_without_results_is_waited_for",),
    ),
    Bug(
        "a step is divided among two of the flow that reads it",
        "streams/cutting/plan.py",
        "_last_whole",
        "ahead[first - 1] if first > begin else last",
        "last",
        (f"{PLAN}::test_reach",),
    ),
    Bug(
        "a flow reads steps that a shard has not done",
        SOURCE,
        "OutputWatch.__init__",
        "newest.where(rows.c.step < frontier.scalar_subquery())",
        "newest",
        (f"{CHAIN}::test_a_step_is_read_when_all_shards_have_done_it",),
    ),
    Bug(
        "what has no key goes by the shard that had it",
        SOURCE,
        "OutputSource.read",
        "[None if keys[index] is None else buckets[index] for index in order]",
        "[buckets[index] for index in order]",
        (f"{CHAIN}::test_results_without_a_key_have_one_shard",),
    ),
    Bug(
        "what a flow reads may be discarded",
        "streams/outputs/discarding.py",
        "_check",
        "if first is not None:",
        "if False:",
        (f"{CHAIN}::test_results_are_kept_for_the_flow_that_reads_them",),
    ),
    Bug(
        "results are discarded while a flow over them is created",
        "streams/outputs/discarding.py",
        "discard",
        "await lock_discarding(await session.connection(bind), output)",
        "pass",
        (f"{CHAIN}::test_results_are_not_discarded_while_a_flow_over_them_is_created",),
    ),
    Bug(
        "a flow over results is created while these are discarded",
        SOURCE,
        "OutputSource.lock_begin",
        "await lock_discarding(connection, self._output)",
        "pass",
        (f"{CHAIN}::test_a_flow_is_not_created_while_results_are_discarded",),
    ),
    Bug(
        "results that were discarded are passed over in silence",
        SOURCE,
        "OutputSource.read",
        "if after < discarded:",
        "if False:",
        (f"{CHAIN}::test_results_are_kept_for_the_flow_that_reads_them",),
    ),
    Bug(
        "a flow that was begun anew is read as the old one",
        SOURCE,
        "OutputWatch.look",
        "if assigned < recorded:",
        "if False:",
        (f"{CHAIN}::test_a_flow_that_was_begun_anew_is_told",),
    ),
)
