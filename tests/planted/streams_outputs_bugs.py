"""Guards of results and of those who read them, and the tests that miss them."""

from __future__ import annotations

from bug import Bug

CONSUMERS = "tests/streams/outputs/test_consumers.py"

OUTPUT_BUGS = (
    Bug(
        "a step is shown before all shards have done it",
        "streams/outputs/consumers.py",
        "Consumer._read",
        "func.min(shards.c.step)",
        "func.max(shards.c.step)",
        (f"{CONSUMERS}::test_a_step_is_shown_when_all_shards_have_done_it",),
    ),
    Bug(
        "a step comes in two parts",
        "streams/outputs/consumers.py",
        "Consumer._read",
        "[row for row in found if row.step < last]",
        "found",
        (f"{CONSUMERS}::test_results_come_step_by_step",),
    ),
    Bug(
        "a step that has many results is read in part",
        "streams/outputs/consumers.py",
        "Consumer._read",
        "if not whole:",
        "if False:",
        (f"{CONSUMERS}::test_results_come_step_by_step",),
    ),
    Bug(
        "a cursor is moved wherever it was",
        "streams/outputs/consumers.py",
        "move_cursor",
        ", cursors.c.step < step)",
        ")",
        (f"{CONSUMERS}::test_two_consumers_of_one_name_count_each_step_once",),
    ),
    Bug(
        "a cursor is not looked at",
        "streams/outputs/consumers.py",
        "Consumer._first",
        "known.get(self._name, -1) if self._name is not None else -1",
        "-1",
        (f"{CONSUMERS}::test_a_consumer_goes_on_behind_what_it_has_acknowledged",),
    ),
    Bug(
        "what was discarded is passed over",
        "streams/outputs/consumers.py",
        "Consumer._first",
        "if after < discarded:",
        "if False:",
        (f"{CONSUMERS}::test_what_was_discarded_is_not_passed_over_in_silence",),
    ),
    Bug(
        "results are discarded past a cursor",
        "streams/outputs/discarding.py",
        "_check",
        "if slowest is not None:",
        "if False:",
        (f"{CONSUMERS}::test_what_is_needed_is_not_discarded",),
    ),
    Bug(
        "steps are discarded that are not done",
        "streams/outputs/discarding.py",
        "_check",
        "if end is None or end < before:",
        "if False:",
        (f"{CONSUMERS}::test_what_is_needed_is_not_discarded",),
    ),
    Bug(
        "results are discarded without a bound",
        "streams/outputs/discarding.py",
        "discard",
        "if first_left is not None:",
        "if False:",
        (f"{CONSUMERS}::test_so_much_is_discarded_at_once",),
    ),
)
