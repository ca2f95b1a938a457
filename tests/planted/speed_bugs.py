"""The guards of what was made fast: what the library looks like without each, and the tests that must notice."""

from __future__ import annotations

from bug import Bug

FRESH = "tests/pipelines/test_fresh_rows.py"
ORDERS = "tests/pipelines/test_claim_orders.py"
DEADLINES = "tests/pipelines/test_deadlines.py"
SAME_SQL = "tests/rows/test_same_sql.py"
CONFORMANCE = "tests/conformance/test_claimed_rows.py"
TOGETHER = "tests/leases/test_apply_together.py"
ASSIGNMENTS = "tests/rows/test_assignments.py"
ATTEMPT = "tests/pipelines/test_attempt.py"

SPEED_BUGS = (
    Bug(
        "a row that came with its claim never grows old",
        "pipelines/loader.py",
        "return is_fresh and item.has_row and",
        "return item.has_row and",
        (f"{FRESH}::test_work_that_begins_late_sees_the_row_as_it_is_then",),
    ),
    Bug(
        "rows come with claims however slow the queue is",
        "pipelines/claim_orders.py",
        "with_rows = context.claims_rows and context.starts_soon and monotonic()",
        "with_rows = context.claims_rows and monotonic()",
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
        "rows/instances.py",
        "        and all(relation.lazy not in _EAGER for relation in mapper.relationships)\n",
        "",
        (f"{CONFORMANCE}::test_which_rows_can_come_with_a_claim",),
    ),
    Bug(
        "a row that comes with its claim is as it was before",
        "leases/dialects/sqlite.py",
        "{**times, **lease, **counted,",
        "{**times, **counted,",
        (f"{CONFORMANCE}::test_rows_that_come_with_a_claim_are_whole",),
    ),
    Bug(
        "the order of claims is made once and for all",
        "pipelines/claim_orders.py",
        "if self._last is None or not is_same(said, self._last[0]):",
        "if self._last is None:",
        (f"{ORDERS}::test_a_condition_that_changes_is_followed_at_once",),
    ),
    Bug(
        "takers' conditions are asked once",
        "pipelines/claim_orders.py",
        "            said += [said_by(condition, self._dialect) for condition in conditions]\n",
        "",
        (f"{ORDERS}::test_conditions_of_the_others_are_followed_too",),
    ),
    Bug(
        "values that are asked for late are taken to be the same",
        "rows/same_sql.py",
        "        if bound.callable is not None:\n            return None\n",
        "",
        (f"{SAME_SQL}::test_in_doubt_it_is_another_one",),
    ),
    Bug(
        "types of values are not compared",
        "rows/same_sql.py",
        "values.append((name, repr(bound.type), type(bound.value), bound.value))",
        "values.append((name, bound.value))",
        (f"{SAME_SQL}::test_a_condition_is_the_same_as_itself_alone",),
    ),
    Bug(
        "equal values are taken to be the same",
        "pipelines/plan.py",
        "all(map(is_, one.values(), other.values()))",
        "list(one.values()) == list(other.values())",
        (f"{FRESH}::test_what_is_merely_equal_is_written_as_it_is",),
    ),
    Bug(
        "equal parameters are taken to be the same",
        "rows/assignments.py",
        "is_flat = type_ in _FLAT",
        "is_flat = True",
        (f"{FRESH}::test_what_is_merely_equal_is_written_as_it_is",),
    ),
    Bug(
        "texts that are written together are cut to their length",
        "leases/dialects/postgresql_columns.py",
        "    return String() if isinstance(there, String) and not isinstance(there, Enum) else type_",
        "    return type_",
        (f"{TOGETHER}::test_what_is_too_long_is_refused_as_it_is_alone",),
    ),
    Bug(
        "texts of the host's own types are cut to their length",
        "leases/dialects/postgresql_columns.py",
        " and not isinstance(there, Enum) and is_ours(type_, _dialect())",
        " and not isinstance(there, Enum)",
        (f"{TOGETHER}::test_what_is_too_long_is_refused_as_it_is_alone",),
    ),
    Bug(
        "rows that are written together share what the host stamps",
        "leases/apply.py",
        "    if is_stamped or (differing",
        "    if (differing",
        (f"{TOGETHER}::test_host_code_stamps_each_row",),
    ),
    Bug(
        "a row that cannot be read stops its pipeline",
        "pipelines/fetcher.py",
        "            if not order.with_rows or is_outage(error) or is_of_the_schema(error):\n",
        "            if error:\n",
        (f"{FRESH}::test_a_row_that_cannot_be_read_fails_alone",),
    ),
    Bug(
        "a row that cannot be read leaves the others leased to nobody",
        "leases/claim.py",
        "alone = not order.related and order.prepared",
        "alone = True or order.prepared",
        (f"{FRESH}::test_a_row_that_cannot_be_read_fails_alone",),
    ),
    Bug(
        "claims ask for a row that cannot be read again and again",
        "pipelines/claim_orders.py",
        " and monotonic() >= self._with_rows_from",
        "",
        (f"{ORDERS}::test_rows_that_could_not_be_read_are_not_asked_for_again_at_once",),
    ),
    Bug(
        "what triggers write is missing in fresh rows",
        "leases/dialects/sqlite.py",
        "if order.with_rows and await _has_triggers(connection, order):",
        "if not order:",
        (f"{FRESH}::test_what_a_trigger_writes_is_in_the_row",),
    ),
    Bug(
        "a fresh row is worked on without trust",
        "pipelines/loader.py",
        "item.has_row and now < item.trusted_until",
        "item.has_row",
        ("tests/pipelines/test_loader.py::test_a_fresh_row_is_none_once_its_lease_is_not_trusted",),
    ),
    Bug(
        "statements of SQL that is like no other are remembered",
        "rows/assignments.py",
        "return all(rule in _RULES or isinstance(rule, Column | Formula) for _, rule in shape)",
        "return bool(shape)",
        (f"{ASSIGNMENTS}::test_statements_of_sql_that_is_like_no_other_are_not_remembered",),
    ),
    Bug(
        "expressions share a statement with the values of one of them",
        "rows/formulas.py",
        "            return places.get(id(element))\n",
        "            return None\n",
        (
            "tests/leases/test_apply_together.py::test_expressions_of_one_structure_share_a_statement",
            "tests/leases/test_apply_together.py::test_an_expression_reads_another_row_by_its_own_value",
        ),
    ),
    Bug(
        "an expression whose value is asked for each time is taken for one like others",
        "rows/formulas.py",
        "    is_asked_for = parameter.required or parameter.callable is not None\n",
        "    is_asked_for = False\n",
        (f"{ASSIGNMENTS}::test_statements_of_sql_that_is_like_no_other_are_not_remembered",),
    ),
    Bug(
        "each expression has a statement of its own",
        "rows/assignments.py",
        "    return formula_of(expression) or (expression, [])\n",
        "    return expression, []\n",
        ("tests/leases/test_apply_together.py::test_expressions_of_one_structure_share_a_statement",),
    ),
    Bug(
        "a table remembers all statements",
        "rows/leased_table.py",
        "if len(self._prepared) < PREPARED_MAX:",
        "if self.model:",
        (f"{ASSIGNMENTS}::test_a_table_remembers_so_many_statements",),
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
        "an attempt whose task was cancelled before its first step is waited for",
        "pipelines/attempt.py",
        "        task.add_done_callback(see_to)\n",
        "",
        (f"{ATTEMPT}::test_a_task_that_is_cancelled_before_its_first_step_comes_to_a_value",),
    ),
)
