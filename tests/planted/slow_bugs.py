"""Guards of outcomes that cost many statements, and of columns that are another type on each
database.
"""

from __future__ import annotations

from bug import Bug

COMPARED = "tests/pipelines/test_compared_columns.py"
RELATED = "tests/leases/test_related_together.py"
SLOW = "tests/pipelines/test_slow_statements.py"

SLOW_BUGS = (
    Bug(
        "an outcome that never fits into its transaction is tried for ever",
        "pipelines/settling/writer.py",
        "Writer.write",
        " or overruns >= OVERRUNS_MAX",
        "",
        (f"{SLOW}::test_an_outcome_that_never_fits_into_its_transaction_is_a_failed_attempt",),
    ),
    Bug(
        "no renewal gets in between two tries of a slow outcome",
        "pipelines/settling/writer.py",
        "Writer.write",
        "await self._let_a_renewal_in(item)",
        "pass",
        (f"{SLOW}::test_a_renewal_gets_in_between_two_tries",),
    ),
    Bug(
        "what services own of related rows is compared row by row",
        "leases/compare.py",
        "all_unchanged",
        "COMPARED_MAX",
        "1",
        (f"{RELATED}::test_what_services_own_is_compared_for_many_rows_at_once",),
    ),
    Bug(
        "each related row whose values are SQL is a statement of its own",
        "rows/assignments.py",
        "_read",
        "formula_of(expression) or (expression, [])",
        "expression, []",
        (f"{RELATED}::test_each_row_gets_its_own_expression",),
    ),
    Bug(
        "related rows that host code stamps share a stamp",
        "leases/related/writes.py",
        "_write",
        "await connection.execute(statement.values(set_clause(shape)), rows)",
        "stamps = {one: one.onupdate.arg(None) for one in leased.columns_stamped_by_host_code}\n   "
        "     await connection.execute(statement.values({**set_clause(shape), **stamps}), rows)",
        (f"{RELATED}::test_host_code_stamps_each_related_row",),
    ),
    Bug(
        "related rows of any number of kinds are accepted",
        "pipelines/outcomes.py",
        "check_related",
        "len(kinds) > RELATED_KINDS_MAX",
        "False",
        (f"{RELATED}::test_more_kinds_than_fit_into_a_transaction_are_refused",),
    ),
    Bug(
        "a key whose variant is a UUID is sent as a text",
        "dialects/postgresql/column_kinds.py",
        "unbounded",
        ".dialect_impl(_dialect())",
        "",
        (
            "tests/conformance/test_dialects.py::test_a_lease_lives_alike_for_every_kind_of_model[postgresql-ByVariant]",
        ),
    ),
    Bug(
        "a variant is compared as the type of the model on PostgreSQL",
        "dialects/postgresql/column_kinds.py",
        "compared",
        "as_there",
        "innermost",
        (f"{COMPARED}::test_a_row_is_written_unless_it_was_changed",),
    ),
    Bug(
        "a variant is compared as the type of the model on SQLite",
        "dialects/sqlite/column_kinds.py",
        "is_unchanged_document",
        ", _dialect()",
        "",
        (f"{COMPARED}::test_a_row_is_written_unless_it_was_changed",),
    ),
    Bug(
        "a token that is a text on this database is accepted",
        "database/binds.py",
        "check_session_factory",
        "    leased.check_token(bind.dialect)\n",
        "",
        (
            "tests/conformance/test_session_factories.py::test_a_token_that_is_another_type_on_this_database_is_refused",
        ),
    ),
    Bug(
        "guards are compared one by one on SQLite",
        "dialects/sqlite/leases.py",
        "SqliteLeases.reads_alike",
        "all(is_read_alike(one) for _, one in slots)",
        "False",
        (
            "tests/leases/test_apply_guarded_together.py::test_guarded_writes_of_one_shape_share_statements[sqlite]",
        ),
    ),
    Bug(
        "values of any type are compared as they are read",
        "dialects/sqlite/column_kinds.py",
        "is_read_alike",
        "isinstance(innermost(type_, _dialect()), _PLAIN) and is_ours(type_, _dialect())",
        "True",
        (
            "tests/leases/test_apply_guarded_together.py::test_guards_of_the_hosts_own_types_are_compared_by_the_database",
        ),
    ),
    Bug(
        "rows are unchanged whatever was read again",
        "leases/compare.py",
        "_compared_here.is_same",
        "values is not None and",
        "True or",
        (
            "tests/leases/test_apply_guarded_together.py::test_guards_are_compared_together_as_they_are_alone",
        ),
    ),
    Bug(
        "rows that are compared in Python are told apart by their tokens",
        "leases/compare.py",
        "_compared_here.is_same",
        "there.get(lease[0])",
        "next(reversed(there.values()), None)",
        (
            "tests/leases/test_related_rows.py::test_what_services_own_must_be_as_it_was_where_it_is_written[sqlite]",
        ),
    ),
)
