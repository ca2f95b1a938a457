"""Guards of how many steps are cut at once, and the tests that miss them."""

from __future__ import annotations

from bug import Bug

TOGETHER = "tests/streams/cutting/test_together.py"

TOGETHER_BUGS = (
    Bug(
        "what does not fill a step is cut with those before it",
        "streams/cutting/together.py",
        "plan_cuts",
        "rows_ahead(sources) >= bounds.step_rows_max",
        "rows_ahead(sources) > 0",
        (f"{TOGETHER}::test_full_steps_are_cut_at_once",),
    ),
    Bug(
        "steps that are cut at once are without number",
        "streams/cutting/together.py",
        "plan_cuts",
        " or len(cuts) == STEPS_TOGETHER_MAX",
        "",
        (f"{TOGETHER}::test_full_steps_are_cut_at_once",),
    ),
    Bug(
        "steps are cut behind a snapshot",
        "streams/cutting/together.py",
        "plan_cuts",
        "plan.is_snapshot or ",
        "",
        (f"{TOGETHER}::test_nothing_is_cut_behind_a_snapshot",),
    ),
    Bug(
        "steps that are cut at once have any number of rows",
        "streams/cutting/together.py",
        "_is_too_much",
        "rows > ROWS_TOGETHER_MAX or ",
        "",
        (f"{TOGETHER}::test_rows_and_bytes_together_have_bounds",),
    ),
    Bug(
        "steps that are cut at once have any number of bytes",
        "streams/cutting/together.py",
        "_is_too_much",
        " or size > BYTES_TOGETHER_MAX",
        "",
        (f"{TOGETHER}::test_rows_and_bytes_together_have_bounds",),
    ),
    Bug(
        "a checkpoint is requested behind many steps that are cut at once",
        "streams/cutting/together.py",
        "_is_too_much",
        "or unwritten > bounds.dirty_keys_max // UNWRITTEN_PART",
        "",
        (f"{TOGETHER}::test_states_that_are_not_written_have_a_bound",),
    ),
    Bug(
        "a request for a checkpoint is met by each step that is cut at once",
        "streams/cutting/together.py",
        "_behind",
        ", checkpoint_requested=False",
        "",
        (f"{TOGETHER}::test_checkpoints_come_by_number",),
    ),
    Bug(
        "a look reads the positions of one step",
        "streams/cutting/together.py",
        "rows_looked_at",
        "min(step_rows_max * STEPS_TOGETHER_MAX, max(step_rows_max, ROWS_TOGETHER_MAX))",
        "step_rows_max",
        (f"{TOGETHER}::test_how_far_is_looked",),
    ),
    Bug(
        "of steps that are cut at once the flow counts one",
        "streams/cutting/cutter.py",
        "Cutter._record",
        '"next_step": last.step + 1',
        '"next_step": first.step + 1',
        ("tests/streams/queries/test_pause_races.py::test_of_many_cutters_one_cuts_each_step",),
    ),
)
