"""The guards of what was made fast: what the library looks like without each, and the tests that
must notice.
"""

from __future__ import annotations

from bug import Bug

FRESH = "tests/pipelines/test_fresh_rows.py"
ORDERS = "tests/pipelines/test_claim_builder.py"
DEADLINES = "tests/pipelines/test_deadlines.py"
SAME_SQL = "tests/rows/test_sql_fingerprint.py"
CONFORMANCE = "tests/conformance/test_claimed_rows.py"
TOGETHER = "tests/leases/test_apply_together.py"
ASSIGNMENTS = "tests/rows/test_assignments.py"
ATTEMPT = "tests/pipelines/test_attempt.py"

SPEED_BUGS = (
    Bug(
        "a row that came with its claim never grows old",
        "pipelines/processing/loader.py",
        "Loader.check_fresh",
        "is_fresh and ",
        "",
        (f"{FRESH}::test_work_that_begins_late_sees_the_row_as_it_is_then",),
    ),
    Bug(
        "rows come with claims however slow the queue is",
        "pipelines/fetching/claim_builder.py",
        "ClaimBuilder.next",
        "context.queue.starts_soon and ",
        "",
        (f"{FRESH}::test_rows_are_not_read_with_a_claim_while_the_queue_is_slow",),
    ),
    Bug(
        "rows come with claims whatever options the host wants",
        "pipelines/pipeline.py",
        "Pipeline.build_run",
        ' and getattr(self.options, "__func__", None) is Pipeline.options',
        "",
        (f"{FRESH}::test_the_hosts_options_are_respected",),
    ),
    Bug(
        "rows come with claims though more belongs to them",
        "rows/instances.py",
        "is_plain",
        "        and all(relation.lazy not in _EAGER for relation in mapper.relationships)\n",
        "",
        (f"{CONFORMANCE}::test_which_rows_can_come_with_a_claim",),
    ),
    Bug(
        "a row that comes with its claim is as it was before",
        "dialects/sqlite/leases.py",
        "_claimed",
        "lease, **",
        "",
        (f"{CONFORMANCE}::test_rows_that_come_with_a_claim_are_whole",),
    ),
    Bug(
        "the order of claims is made once and for all",
        "pipelines/fetching/claim_builder.py",
        "ClaimBuilder.next",
        " or not is_same(fingerprints, self._last[0])",
        "",
        (f"{ORDERS}::test_a_condition_that_changes_is_followed_at_once",),
    ),
    Bug(
        "takers' conditions are asked once",
        "pipelines/fetching/claim_builder.py",
        "ClaimBuilder._fingerprints",
        "            fingerprints += [fingerprint_of(condition, self._dialect) for condition in"
        " conditions]\n",
        "",
        (f"{ORDERS}::test_conditions_of_the_others_are_followed_too",),
    ),
    Bug(
        "values that are asked for late are taken to be the same",
        "rows/expressions/fingerprint.py",
        "fingerprint_of",
        "        if bound.callable is not None:\n            return None\n",
        "",
        (f"{SAME_SQL}::test_in_doubt_it_is_another_one",),
    ),
    Bug(
        "types of values are not compared",
        "rows/expressions/fingerprint.py",
        "fingerprint_of",
        "repr(bound.type), type(bound.value), ",
        "",
        (f"{SAME_SQL}::test_a_condition_is_the_same_as_itself_alone",),
    ),
    Bug(
        "equal values are taken to be the same",
        "pipelines/settling/planner.py",
        "_is_alike",
        "all(map(is_, one.values(), other.values()))",
        "list(one.values()) == list(other.values())",
        (f"{FRESH}::test_what_is_merely_equal_is_written_as_it_is",),
    ),
    Bug(
        "equal parameters are taken to be the same",
        "rows/assignments.py",
        "_all_same",
        "type_ in _FLAT",
        "True",
        (f"{FRESH}::test_what_is_merely_equal_is_written_as_it_is",),
    ),
    Bug(
        "texts that are written together are cut to their length",
        "dialects/postgresql/column_kinds.py",
        "unbounded",
        "String() if isinstance(there, String) and not isinstance(there, Enum) else ",
        "",
        (f"{TOGETHER}::test_what_is_too_long_is_refused_as_it_is_alone",),
    ),
    Bug(
        "texts of the host's own types are cut to their length",
        "dialects/postgresql/column_kinds.py",
        "fits_array",
        " and is_ours(type_, _dialect())",
        "",
        (f"{TOGETHER}::test_what_is_too_long_is_refused_as_it_is_alone",),
    ),
    Bug(
        "rows that are written together share what the host stamps",
        "leases/apply.py",
        "_update_together",
        "is_stamped or ",
        "",
        (f"{TOGETHER}::test_host_code_stamps_each_row",),
    ),
    Bug(
        "a row that cannot be read stops its pipeline",
        "pipelines/fetching/fetcher.py",
        "Fetcher.fetch_once",
        "not request.with_rows or is_outage(error) or is_of_the_schema(error)",
        "error",
        (f"{FRESH}::test_a_row_that_cannot_be_read_fails_alone",),
    ),
    Bug(
        "a row that cannot be read leaves the others leased to nobody",
        "leases/claim.py",
        "claim",
        "not request.related and",
        "True or",
        (f"{FRESH}::test_a_row_that_cannot_be_read_fails_alone",),
    ),
    Bug(
        "claims ask for a row that cannot be read again and again",
        "pipelines/fetching/claim_builder.py",
        "ClaimBuilder.next",
        " and monotonic() >= self._with_rows_from",
        "",
        (f"{ORDERS}::test_rows_that_could_not_be_read_are_not_asked_for_again_at_once",),
    ),
    Bug(
        "what triggers write is missing in fresh rows",
        "dialects/sqlite/leases.py",
        "SqliteLeases.claim",
        "request.with_rows and await _has_triggers(connection, request)",
        "not request",
        (f"{FRESH}::test_what_a_trigger_writes_is_in_the_row",),
    ),
    Bug(
        "a fresh row is worked on without trust",
        "pipelines/processing/loader.py",
        "Loader.check_fresh",
        " and item.is_trusted(now)",
        "",
        ("tests/pipelines/test_loader.py::test_a_fresh_row_is_none_once_its_lease_is_not_trusted",),
    ),
    Bug(
        "statements of SQL that is like no other are remembered",
        "rows/assignments.py",
        "can_be_kept",
        "isinstance(rule, Column | Formula | UnlessSet)",
        "True",
        (f"{ASSIGNMENTS}::test_statements_of_sql_that_is_like_no_other_are_not_remembered",),
    ),
    Bug(
        "expressions share a statement with the values of one of them",
        "rows/expressions/formulas.py",
        "Formula.filled.replaced",
        "places.get(id(element))",
        "None",
        (
            "tests/leases/test_apply_together.py::test_expressions_of_one_structure_share_a_statement",
            "tests/leases/test_apply_together.py::test_an_expression_reads_another_row_by_its_own_value",
        ),
    ),
    Bug(
        "an expression whose value is asked for each time is taken for one like others",
        "rows/expressions/formulas.py",
        "_is_plain",
        "parameter.required or parameter.callable is not None",
        "False",
        (f"{ASSIGNMENTS}::test_statements_of_sql_that_is_like_no_other_are_not_remembered",),
    ),
    Bug(
        "each expression has a statement of its own",
        "rows/assignments.py",
        "_read",
        "formula_of(expression) or (expression, [])",
        "expression, []",
        (
            "tests/leases/test_apply_together.py::test_expressions_of_one_structure_share_a_statement",
        ),
    ),
    Bug(
        "a table remembers all statements",
        "rows/leased_table.py",
        "LeasedTable.prepared",
        "len(self._prepared) < PREPARED_MAX",
        "self.model",
        (f"{ASSIGNMENTS}::test_a_table_remembers_so_many_statements",),
    ),
    Bug(
        "the timer of the first call is the last",
        "pipelines/host_code/deadlines.py",
        "Deadlines._look",
        "self._timer = loop.call_at(at, self._look)\n                ",
        "",
        (f"{DEADLINES}::test_each_is_called_when_its_time_is_up",),
    ),
    Bug(
        "a call that has ended keeps its place among the deadlines",
        "pipelines/host_code/call.py",
        "Attempt.run_here",
        "self._deadlines.remove(self)",
        "pass",
        ("tests/pipelines/test_attempt_ended.py::test_an_attempt_leaves_nothing_behind",),
    ),
    Bug(
        "an attempt whose task was cancelled before its first step is waited for",
        "pipelines/host_code/call.py",
        "Attempt.run",
        "        task.add_done_callback(see_to)\n",
        "",
        (f"{ATTEMPT}::test_a_task_that_is_cancelled_before_its_first_step_comes_to_a_value",),
    ),
)
