"""The guards of what was made fast: what the library looks like without each, and the tests that must notice."""

from __future__ import annotations

from bug import Bug

FRESH = "tests/pipelines/test_fresh_rows.py"
ORDERS = "tests/pipelines/test_claim_orders.py"
DEADLINES = "tests/pipelines/test_deadlines.py"
SAME_SQL = "tests/rows/test_same_sql.py"
CONFORMANCE = "tests/conformance/test_claimed_rows.py"
ATTEMPT = "tests/pipelines/test_attempt.py"

SPEED_BUGS = (
    Bug(
        "a row that came with its claim never grows old",
        "pipelines/loader.py",
        "if is_fresh and item.has_row:",
        "if item.has_row:",
        (f"{FRESH}::test_work_that_begins_late_sees_the_row_as_it_is_then",),
    ),
    Bug(
        "rows come with claims however slow the queue is",
        "pipelines/fetcher.py",
        "with_rows=context.claims_rows and context.starts_soon,",
        "with_rows=context.claims_rows,",
        (f"{FRESH}::test_rows_are_not_read_with_a_claim_while_the_queue_is_slow",),
    ),
    Bug(
        "rows come with claims whatever options the host wants",
        "pipelines/pipeline.py",
        'claims_rows=self.leased.is_plain and getattr(self.options, "__func__", None) is Pipeline.options,',
        "claims_rows=self.leased.is_plain,",
        (f"{FRESH}::test_the_hosts_options_are_respected",),
    ),
    Bug(
        "rows come with claims though more belongs to them",
        "rows/leased_table.py",
        "            and all(relation.lazy not in _EAGER for relation in mapper.relationships)\n",
        "",
        (f"{CONFORMANCE}::test_which_rows_can_come_with_a_claim",),
    ),
    Bug(
        "a row that comes with its claim is as it was before",
        "leases/dialects/sqlite.py",
        "            set_committed_value(claimed.row, name, value)",
        "            _ = name, value",
        (f"{CONFORMANCE}::test_rows_that_come_with_a_claim_are_whole",),
    ),
    Bug(
        "the order of claims is made once and for all",
        "pipelines/claim_orders.py",
        "if self._last is None or not _is_same(self._last[0], asked):",
        "if self._last is None:",
        (f"{ORDERS}::test_a_condition_that_changes_is_followed_at_once",),
    ),
    Bug(
        "takers' conditions are asked once",
        "pipelines/claim_orders.py",
        "        and all(map(_is_same_taker, takers, other_takers))\n",
        "",
        (f"{ORDERS}::test_conditions_of_the_others_are_followed_too",),
    ),
    Bug(
        "siblings' conditions are asked once",
        "pipelines/claim_orders.py",
        "        and all(map(_is_same_sibling, siblings, other_siblings))\n",
        "",
        (f"{ORDERS}::test_conditions_of_the_others_are_followed_too",),
    ),
    Bug(
        "the host's own elements are taken to be the same",
        "rows/same_sql.py",
        "return not is_late and type(element).__module__.startswith(_KNOWN)",
        "return not is_late",
        (f"{SAME_SQL}::test_in_doubt_it_is_another_one",),
    ),
    Bug(
        "values that are asked for late are taken to be the same",
        "rows/same_sql.py",
        "return not is_late and type(element).__module__.startswith(_KNOWN)",
        "return type(element).__module__.startswith(_KNOWN)",
        (f"{SAME_SQL}::test_in_doubt_it_is_another_one",),
    ),
    Bug(
        "equal values are taken to be the same",
        "pipelines/plan.py",
        "key is last_key and value is last_value for",
        "key is last_key and value == last_value for",
        (f"{FRESH}::test_what_is_merely_equal_is_written_as_it_is",),
    ),
    Bug(
        "equal parameters are taken to be the same",
        "rows/assignments.py",
        "value is first or (type(value) is type(first) and bool(value == first))",
        "value is first or bool(value == first)",
        (f"{FRESH}::test_what_is_merely_equal_is_written_as_it_is",),
    ),
    Bug(
        "the timer of the first call is the last",
        "pipelines/deadlines.py",
        "                self._timer = loop.call_at(at, self._look)\n                return\n",
        "                return\n",
        (f"{DEADLINES}::test_each_is_called_when_its_time_is_up",),
    ),
    Bug(
        "a call that has ended keeps its place among the deadlines",
        "pipelines/attempt.py",
        "            self._deadlines.remove(self)\n",
        "            pass\n",
        (f"{ATTEMPT}::test_an_attempt_leaves_nothing_behind",),
    ),
    Bug(
        "an attempt that was ended before it began is waited for",
        "pipelines/attempt.py",
        "            self._task.add_done_callback(self._finish)\n",
        "",
        (f"{ATTEMPT}::test_an_attempt_that_is_ended_before_its_first_step",),
    ),
)
