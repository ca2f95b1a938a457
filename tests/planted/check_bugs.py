"""Guards of what is checked in a database, and of the migration that mends it."""

from __future__ import annotations

from bug import Bug

CHECK = "tests/insight/test_check.py"
EACH = f"{CHECK}::test_each_defect_is_found_and_mended"
TROUBLE = "tests/insight/test_check_trouble.py"
OLDER = f"{TROUBLE}::test_older_code_writes_while_the_migration_runs"

CHECK_BUGS = (
    Bug(
        "a check waits for a table that a migration has to itself",
        "insight/checking/checkup.py",
        "_findings_of",
        "isinstance(lock, TableLock)",
        "False",
        (f"{TROUBLE}::test_a_table_that_a_migration_has_to_itself",),
    ),
    Bug(
        "a check reads all rows for what was left behind",
        "insight/checking/leftovers.py",
        "look_for_leftovers",
        ".limit(LOOKED_MAX)",
        "",
        (f"{TROUBLE}::test_no_more_than_so_many_rows_are_looked_at",),
    ),
    Bug(
        "any index that begins with the time is taken for one that serves",
        "insight/checking/claim_plan.py",
        "_serving",
        "await serves(connection, leased, query=query, index=name)",
        "True",
        (f"{EACH}[sqlite-another condition]",),
    ),
    Bug(
        "an index with a lock column is not seen in its condition",
        "insight/dialects/postgresql_checks.py",
        "PostgresqlChecks.indexes",
        'str(row[1]).partition(" USING ")[2]',
        'str(row[1]).partition(" USING ")[2].partition(" WHERE ")[0]',
        (f"{EACH}[postgresql-lock column in a condition]",),
    ),
    Bug(
        "an index of all rows is taken for one of the rows that want work",
        "insight/checking/indexes.py",
        "_weaker",
        "_PARTIAL.search(serving.body) is None",
        "False",
        (f"{EACH}[sqlite-all rows]",),
    ),
    Bug(
        "a column is set to take no null before it has a default",
        "insight/checking/columns.py",
        "_nullability",
        "up=(*defaulted.up, code.executed(filled), *mend.up)",
        "up=(code.executed(filled), *mend.up)",
        (f"{EACH}[postgresql-due at null]", OLDER),
    ),
    Bug(
        "steps that commit stand before those of the transaction",
        "insight/checking/migration.py",
        "migration_text",
        "key=lambda mend: mend.commits",
        "key=lambda mend: not mend.commits",
        (f"{EACH}[postgresql-schedule lacks]",),
    ),
    Bug(
        "a time without a zone is taken for one with a zone",
        "insight/checking/columns.py",
        "kind_of",
        "kind for kind, pattern in _KINDS if pattern.search(upper)",
        'kind.replace("without", "with") for kind, pattern in _KINDS if pattern.search(upper)',
        (f"{EACH}[postgresql-naive time]",),
    ),
    Bug(
        "an invalid index is taken for a good one",
        "insight/checking/indexes.py",
        "index_findings",
        "not index.is_valid and",
        "False and",
        (f"{TROUBLE}::test_an_index_that_was_never_finished",),
    ),
    Bug(
        "owners whom the app has are taken for leftovers",
        "insight/checking/leftovers.py",
        "_is_of",
        "owner.partition(OWNER_SEPARATOR)[0] in pipelines",
        "False",
        (f"{TROUBLE}::test_what_was_left_behind_is_told",),
    ),
    Bug(
        "a part of a check that the database refuses costs the whole",
        "insight/checking/checkup.py",
        "_leftovers",
        "look_for_leftovers, connection, leased), apart=apart",
        "look_for_leftovers, connection, leased), apart=False",
        (f"{TROUBLE}::test_a_right_that_is_lacking_is_a_finding",),
    ),
    Bug(
        "an explanation tells of each small table that it has no index",
        "insight/checking/claim_plan.py",
        "unserved_remarks",
        "count <= LARGE_ROWS",
        "False",
        (f"{TROUBLE}::test_a_large_table_without_an_index_is_told_below_an_explanation",),
    ),
    Bug(
        "a plan that SQLite made for an index that is gone is told again",
        "dialects/sqlite/plans.py",
        "explaining",
        "/* {int(version)} */ ",
        "",
        (f"{TROUBLE}::test_a_large_table_without_an_index_is_told_below_an_explanation[sqlite]",),
    ),
    Bug(
        "a check that found something bad is a success",
        "insight/checking/finding.py",
        "Findings.needs_person",
        "one.level is Level.BAD",
        "False",
        ("tests/cli/test_check.py::test_a_check_in_the_terminal",),
    ),
    Bug(
        "autogenerate compares no conditions of the indexes of claims",
        "migrations/comparing.py",
        "compare_claim_indexes",
        "index.name in known - told and not _serves(connection, table, index)",
        "False",
        ("tests/migrations/test_autogenerate.py::test_an_index_of_another_condition_is_made_anew",),
    ),
    Bug(
        "an index is wanted for claims from small tables of our own",
        "insight/checking/claim_plan.py",
        "claim_seen",
        "not asked.question.leased.table.name.startswith(OWN_PREFIX)",
        "True",
        ("tests/insight/test_check_wings.py::test_a_host_with_streams",),
    ),
    Bug(
        "an index compares a column with an array of another type",
        "rows/expressions/index_condition.py",
        "_with_typed_arrays",
        "cast(element, element.type) if _is_array(element) else None",
        "None",
        ("tests/insight/test_values_without_literals.py::test_an_index_over_an_array_is_accepted",),
    ),
)
