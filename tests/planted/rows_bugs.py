"""Guards around rows that cannot be read, trouble of the server, and columns of all kinds, with
the tests that must notice.
"""

from __future__ import annotations

from bug import Bug

FAULTS = "tests/leases/test_faults.py"
REFUSES = "tests/faults/test_postgresql_refuses.py"
ENDS = "tests/dispatch/test_ends.py"
UNREADABLE = "tests/faults/test_unreadable_rows.py"
COMPARED = "tests/pipelines/test_compared_columns.py"
KEYS = "tests/faults/test_keys_of_hosts.py"
INDEX = "tests/migrations/test_due_index.py"

TROUBLE_BUGS = (
    Bug(
        "trouble of the server that is in no list drops finished work",
        "dialects/postgresql/faults.py",
        "PostgresqlFaults.fault_of",
        "not code.startswith(_FINAL_SQLSTATES)",
        "code.startswith(_OUTAGE_SQLSTATES)",
        (f"{REFUSES}::test_a_result_outlasts_the_trouble_of_the_server",),
    ),
    Bug(
        "a code of SQLite that nobody knows drops finished work",
        "dialects/sqlite/faults.py",
        "SqliteFaults.fault_of",
        "not in _FINAL_SQLITE_CODES",
        "in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)",
        (f"{FAULTS}::test_codes_that_pass",),
    ),
    Bug(
        "the trouble of one row is taken for that of all",
        "dialects/postgresql/faults.py",
        "PostgresqlFaults.fault_of",
        "=code.startswith(_OUTAGE_SQLSTATES)",
        "=True",
        (f"{REFUSES}::test_the_trouble_of_one_row_keeps_no_other_from_being_written",),
    ),
    Bug(
        "what no database raised is taken for a migration that was not run",
        "database/faults.py",
        "is_of_the_schema",
        "not _is_of_a_driver",
        "_is_of_a_driver",
        (f"{FAULTS}::test_states_of_the_schema",),
    ),
    Bug(
        "a dispatched row fails because its result could not be written for a while",
        "dispatch/pipeline.py",
        "DispatchPipeline.on_refused",
        "is_transient(error) or ",
        "",
        (f"{ENDS}::test_trouble_of_the_server_fails_no_row",),
    ),
    Bug(
        "a dispatched row fails because a note could not be written for a while",
        "dispatch/delivering/status_updates.py",
        "StatusUpdates.write",
        ' TransactionTimeout(purpose="write status", timeout_s=self._retry_timeout_s) from error',
        "",
        (f"{ENDS}::test_trouble_of_the_server_fails_no_row",),
    ),
)

INDEX_BUGS = (
    Bug(
        "parked rows are in the index of due rows",
        "rows/indexes/due_index.py",
        "due_index_parts",
        '("parked_at").is_(None)',
        '("due_at").is_not(None)',
        (f"{INDEX}::test_parked_rows_cost_no_claim",),
    ),
    Bug(
        "a ready with an OR lets parked rows into the index",
        "rows/indexes/due_index.py",
        "_where",
        'f"({ready})"',
        "ready",
        ("tests/rows/test_due_index.py::test_parked_rows_are_in_no_index_of_due_rows",),
    ),
)

UNREADABLE_BUGS = (
    Bug(
        "one row with a time that Python does not have stops its line on PostgreSQL",
        "dialects/postgresql/leases.py",
        "_claiming",
        "if_readable(due.c.place)",
        "due.c.place",
        (f"{UNREADABLE}::test_a_row_that_cannot_be_read_is_parked_and_told",),
    ),
    Bug(
        "one row with a time that Python does not have fails claims that bring their rows",
        "dialects/postgresql/leases.py",
        "_whole_row",
        "if_readable(column) if id(column) in times else ",
        "",
        (f"{UNREADABLE}::test_a_row_that_cannot_be_read_is_parked_and_told",),
    ),
    Bug(
        "a row that cannot be read is not noticed on SQLite",
        "dialects/sqlite/leases.py",
        "_claimed",
        "UNREADABLE",
        "UNREADABLE and name == name.upper()",
        (f"{UNREADABLE}::test_a_row_that_cannot_be_read_is_parked_and_told",),
    ),
    Bug(
        "a row that cannot be read is begun",
        "pipelines/processing/worker.py",
        "Worker._prevented",
        "item.unreadable is not None",
        "False",
        (f"{UNREADABLE}::test_a_row_that_cannot_be_read_is_parked_and_told",),
    ),
    Bug(
        "a row with a stamp behind all times waits for ever",
        "rows/eligibility.py",
        "is_due",
        ", is_beyond_time(last)",
        "",
        (f"{UNREADABLE}::test_without_a_schedule_its_stamp_is_mended_and_told",),
    ),
    Bug(
        "attempts overflow in the claim on PostgreSQL",
        "rows/expressions/unreadable.py",
        "attempts_counted",
        "case((attempts >= most, literal(most, Integer)), else_=attempts + more)",
        "attempts + more",
        (f"{UNREADABLE}::test_attempts_that_cannot_be_counted_further",),
    ),
    Bug(
        "attempts overflow in the claim on SQLite",
        "dialects/sqlite/leases.py",
        "_claimed",
        "min(values.read_attempts(failed) + bool(died_here), attempts_max(leased))",
        "values.read_attempts(failed) + bool(died_here)",
        (f"{UNREADABLE}::test_a_count_that_only_sqlite_keeps",),
    ),
    Bug(
        "a claim resumes behind a place that cannot be read",
        "leases/claim.py",
        "claim",
        " if row.unreadable is None",
        "",
        (f"{UNREADABLE}::test_no_claim_resumes_behind_a_place_that_cannot_be_read",),
    ),
)

DATACLASS_BUGS = (
    Bug(
        "a model that is a mapped dataclass cannot take the mixins",
        "rows/columns.py",
        "for_type_checkers",
        "    mixin.__annotations__ = {}\n",
        "",
        ("tests/rows/test_columns.py::test_a_mapped_dataclass_may_mix_them_in",),
    ),
)

COMPARED_BUGS = (
    Bug(
        "a row with a column that has no equality is worked on for ever",
        "dialects/postgresql/leases.py",
        "PostgresqlLeases.is_unchanged",
        "cast(column, Text).is_not_distinct_from(cast(cast(given, column.type), Text))",
        "column.is_not_distinct_from(value)",
        (f"{COMPARED}::test_a_row_is_written_unless_it_was_changed",),
    ),
    Bug(
        "a host's own shape of JSON is compared as what has no equality",
        "dialects/postgresql/column_kinds.py",
        "compared",
        "there, JSON",
        "type_, JSON",
        (f"{COMPARED}::test_a_row_is_written_unless_it_was_changed",),
    ),
    Bug(
        "a document that another program wrote to SQLite counts as changed",
        "dialects/sqlite/column_kinds.py",
        "_is_same_document",
        "or_(*alike, _values_of(column) == _values_of(literal(unescaped, Text)))",
        "alike[0]",
        (f"{COMPARED}::test_a_row_is_written_unless_it_was_changed",),
    ),
    Bug(
        "a column of which nothing is known is compared",
        "rows/updates.py",
        "compared_column",
        "isinstance(type_, NullType)",
        "False",
        (f"{COMPARED}::test_what_cannot_be_compared_is_refused",),
    ),
    Bug(
        "pickles are compared",
        "rows/updates.py",
        "compared_column",
        "isinstance(column.type, PickleType)",
        "False",
        (f"{COMPARED}::test_what_cannot_be_compared_is_refused",),
    ),
    Bug(
        "keys that are equal to themselves alone are claimed",
        "leases/claim.py",
        "claim.lease",
        "            await check_keys(connection, request.leased, [row.id for row in rows])\n",
        "",
        (f"{KEYS}::test_keys_that_cannot_be_found_again_are_refused",),
    ),
    Bug(
        "related rows with keys that are equal to themselves alone are locked",
        "leases/acquire.py",
        "acquire",
        "    await check_keys(connection, leased, keys)\n",
        "",
        (f"{KEYS}::test_related_rows_with_such_keys_are_refused",),
    ),
    Bug(
        "keys that are members of an enumeration are refused",
        "leases/equal_keys.py",
        "check_keys",
        " or await _is_found_again(connection, leased, key)",
        "",
        (f"{KEYS}::test_keys_that_are_equal_by_value_are_worked_on",),
    ),
    Bug(
        "a key that nobody can look up is claimed",
        "leases/equal_keys.py",
        "_compares_values",
        " and class_.__hash__ not in _NOT_BY_VALUE",
        "",
        (f"{KEYS}::test_keys_that_cannot_be_found_again_are_refused",),
    ),
    Bug(
        "a claim whose keys are refused leaves its rows leased",
        "dialects/postgresql/leases.py",
        "PostgresqlLeases.claims_surely",
        "request.leased.key",
        "",
        (f"{KEYS}::test_keys_that_cannot_be_found_again_are_refused",),
    ),
    Bug(
        "parameters of one name are shared by all pipelines of a statement",
        "rows/expressions/parameter_names.py",
        "with_names_of_its_own",
        "not any(_is_named(element) for element in iterate(condition))",
        "True",
        ("tests/pipelines/test_siblings.py::test_parameters_of_one_name_are_each_pipelines_own",),
    ),
    Bug(
        "a condition of the host's keeps its names",
        "pipelines/host_code/hooks.py",
        "ready_condition",
        "with_names_of_its_own(condition)",
        "condition",
        ("tests/pipelines/test_siblings.py::test_parameters_of_one_name_are_each_pipelines_own",),
    ),
    Bug(
        "what a lock is declared on keeps its names",
        "pipelines/lock_graph.py",
        "declared_locks",
        "None if on is None else with_names_of_its_own(on)",
        "on",
        (
            "tests/pipelines/test_lock_graph.py::test_what_two_locks_are_declared_on_keeps_its_values",
        ),
    ),
    Bug(
        "a statement cannot be printed",
        "rows/row_dialect.py",
        "rows_of",
        "known_dialects()[0].name if is_shown else ",
        "",
        ("tests/rows/test_database_time.py::test_statements_can_be_printed",),
    ),
)
