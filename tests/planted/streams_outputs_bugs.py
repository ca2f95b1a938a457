"""Guards of results and of those who read them, and the tests that miss them."""

from __future__ import annotations

from bug import Bug

CONSUMERS = "tests/streams/outputs/test_consumers.py"
TABLE = "tests/streams/outputs/test_table_output.py"

OUTPUT_BUGS = (
    Bug(
        "a consumer that loses its connection does not give it back",
        "streams/outputs/consumers.py",
        "Consumer._look",
        'in_transaction(self._sessions, self._leased, work, purpose="read results",'
        " timeout=READ_TIMEOUT, writes=writes)",
        "work(session := self._sessions(), await session.connection())",
        (f"{CONSUMERS}::test_no_connection_is_left_behind",),
    ),
    Bug(
        "a step is shown before all shards have done it",
        "streams/outputs/consumers.py",
        "Consumer._found",
        "func.min(shards.c.step)",
        "func.max(shards.c.step)",
        (f"{CONSUMERS}::test_a_step_is_shown_when_all_shards_have_done_it",),
    ),
    Bug(
        "a step comes in two parts",
        "streams/outputs/consumers.py",
        "Consumer._found",
        "[row for row in found if row.step < last]",
        "found",
        (f"{CONSUMERS}::test_results_come_step_by_step",),
    ),
    Bug(
        "a step that has many results is read in part",
        "streams/outputs/consumers.py",
        "Consumer._found",
        "if whole:",
        "if True:",
        (f"{CONSUMERS}::test_results_come_step_by_step",),
    ),
    Bug(
        "a cursor is moved wherever it was",
        "streams/outputs/cursors.py",
        "move_cursor",
        ", cursors.c.step < step)",
        ")",
        (f"{CONSUMERS}::test_two_consumers_of_one_name_count_each_step_once",),
    ),
    Bug(
        "a cursor is not looked at",
        "streams/outputs/consumers.py",
        "Consumer._first",
        "return cursor if after is None else after",
        "return -1 if after is None else after",
        (f"{CONSUMERS}::test_a_consumer_goes_on_behind_what_it_has_acknowledged",),
    ),
    Bug(
        "a consumer without a name begins with what was discarded",
        "streams/outputs/consumers.py",
        "Consumer._first",
        "await last_discarded(connection, output) if after is None",
        "-1 if after is None",
        (f"{CONSUMERS}::test_a_consumer_without_a_name_begins_with_what_is_kept",),
    ),
    Bug(
        "what was discarded is passed over",
        "streams/outputs/cursors.py",
        "check_kept",
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
    Bug(
        "an outbox refuses a step for a key that is there",
        "streams/outputs/table_output.py",
        "TableOutput._insert",
        "if self._unique is None",
        "if True",
        (f"{TABLE}::test_an_outbox_is_delivered_once_for_each_key",),
    ),
    Bug(
        "nobody hears of rows of the host",
        "streams/outputs/table_output.py",
        "TableOutput.__init__",
        "self.topic = model.__name__",
        "pass",
        (f"{TABLE}::test_the_pipeline_of_the_rows_is_woken",),
    ),
    Bug(
        "values of no column are dropped",
        "streams/outputs/table_output.py",
        "TableOutput.stored",
        "if unknown:",
        "if False:",
        (f"{TABLE}::test_what_is_no_row_is_refused_where_it_is_emitted",),
    ),
    Bug(
        "the database tells what a row lacks",
        "streams/outputs/table_output.py",
        "TableOutput.stored",
        "if missing:",
        "if False:",
        (f"{TABLE}::test_what_is_no_row_is_refused_where_it_is_emitted",),
    ),
    Bug(
        "rows with other columns are written as the first one",
        "streams/outputs/table_output.py",
        "TableOutput.write",
        "tuple(sorted(row.stored))",
        "()",
        (f"{TABLE}::test_results_are_rows_of_the_host",),
    ),
    Bug(
        "columns are named as attributes",
        "streams/outputs/table_output.py",
        "TableOutput.stored",
        "columns[name].key: one",
        "name: one",
        (f"{TABLE}::test_results_are_rows_of_the_host",),
    ),
)
