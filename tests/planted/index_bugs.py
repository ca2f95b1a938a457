"""Guards of what is said once: the index of a pipeline, the look for it at the start, and the
migrations that Alembic writes; with the tests that must notice.
"""

from __future__ import annotations

from bug import Bug

DUE = "tests/rows/test_due_index.py"
PARKED = "tests/migrations/test_parked_index.py"
LOOK = "tests/migrations/test_index_look.py"
WRITTEN = "tests/migrations/test_autogenerate.py"

PIPELINE_INDEX_BUGS = (
    Bug(
        "a model with columns of a pipeline's names passes for a pipeline",
        "rows/indexes/due_index.py",
        "is_of_pipeline",
        "return not is_mapped and",
        "return",
        (f"{DUE}::test_a_model_may_have_columns_of_a_pipelines_names",),
    ),
    Bug(
        "the index of a pipeline has parts of ready that no index can hold",
        "rows/expressions/index_condition.py",
        "index_condition",
        "if _fits_index(part, table)",
        "if table is not None",
        (f"{DUE}::test_what_no_index_can_hold_is_left_out",),
    ),
    Bug(
        "an index of a boolean column is spelt otherwise than the claim",
        "rows/expressions/index_condition.py",
        "index_condition",
        ".self_group(against=operators.and_)",
        "",
        (f"{DUE}::test_a_boolean_column_is_spelt_as_in_the_claim",),
    ),
    Bug(
        "the index of a pipeline may ask a lock column",
        "rows/expressions/index_condition.py",
        "_refuse_lock_columns",
        "if column in columns",
        "if column is columns",
        (f"{DUE}::test_a_lock_column_is_refused_by_whatever_name",),
    ),
    Bug(
        "the index of a pipeline needs all models",
        "rows/indexes/due_index.py",
        "_index_of_model",
        "configured=False",
        "configured=True",
        (f"{DUE}::test_a_pipeline_says_all_of_its_index",),
    ),
)

INDEX_LOOK_BUGS = (
    Bug(
        "the indexes are compared with a condition that has no values",
        "leases/indexes/plans.py",
        "spellings_of",
        '"literal_binds": True',
        '"literal_binds": False',
        (f"{LOOK}::test_the_index_of_a_pipeline_serves_it",),
    ),
    Bug(
        "an index in another order counts as one that serves",
        "dialects/postgresql/leases.py",
        "PostgresqlLeases.is_served_by",
        ' and \'"Node Type": "Sort"\' not in text',
        "",
        (f"{LOOK}::test_an_index_that_finds_rows_and_orders_none_is_named",),
    ),
    Bug(
        "an index with another condition counts as one that serves",
        "dialects/sqlite/plans.py",
        "is_plan_with",
        "return False",
        "return True",
        (f"{LOOK}::test_an_index_that_cannot_serve_is_named",),
    ),
    Bug(
        "a small table counts as one without an index",
        "dialects/postgresql/leases.py",
        "PostgresqlLeases.is_served_by",
        "SET LOCAL enable_sort = off",
        "SELECT 1",
        (f"{LOOK}::test_the_index_of_a_pipeline_serves_it",),
    ),
    Bug(
        "lock columns in the condition of an index are overlooked",
        "leases/indexes/index_look.py",
        "_with_lock_columns",
        'index.get("dialect_options", {}).values()',
        "()",
        (f"{LOOK}::test_an_index_that_heartbeats_write_is_named",),
    ),
    Bug(
        "a look at indexes that fails is a failure of the pipeline",
        "pipelines/fetching/index_look.py",
        "tell_indexes",
        "return None",
        "raise",
        (f"{LOOK}::test_a_look_that_fails_harms_nobody",),
    ),
    Bug(
        "a crowd looks at its indexes over a connection each",
        "pipelines/fetching/index_look.py",
        "tell_indexes",
        "claim_slot(engine, wait_s=timeout.total_seconds())",
        "claim_slot(engine, wait_s=0)",
        (
            "tests/pipelines/test_crowds.py"
            "::test_claims_open_no_more_connections_than_the_pool_keeps",
        ),
    ),
    Bug(
        "the look at indexes cannot be turned off",
        "pipelines/manager.py",
        "PipelineManager._start",
        "self._check_indexes and ",
        "",
        (f"{LOOK}::test_a_manager_looks_once",),
    ),
)

AUTOGENERATE_BUGS = (
    Bug(
        "the index of a table that is there is built while writes wait",
        "migrations/autogenerate.py",
        "_index_step",
        '"concurrently": not is_new',
        '"concurrently": False',
        (f"{WRITTEN}::test_only_what_is_there_is_indexed_concurrently",),
    ),
    Bug(
        "a written migration has no import of the type",
        "migrations/autogenerate.py",
        "item_renderer",
        "isinstance(item, UtcDateTime)",
        "item is None",
        (f"{WRITTEN}::test_what_is_written_runs_up_and_down",),
    ),
    Bug(
        "a written migration has a default of one database",
        "migrations/autogenerate.py",
        "item_renderer",
        "isinstance(item.arg, due_at_once)",
        "item.arg is None",
        (f"{WRITTEN}::test_what_is_written_is_for_all_databases",),
    ),
    Bug(
        "autogenerate overlooks the index on SQLite",
        "rows/indexes/due_index.py",
        "_order_column",
        "_NullsFirst(named_column(column))",
        "literal_column(column)",
        (f"{WRITTEN}::test_what_is_written_runs_up_and_down",),
    ),
    Bug(
        "pages of adopted tables have no room",
        "migrations/autogenerate.py",
        "_table_steps",
        "if _is_leased(added)",
        "if not added",
        (f"{WRITTEN}::test_only_what_is_there_is_indexed_concurrently",),
    ),
    Bug(
        "the index of an adopted table commits what came before it",
        "migrations/autogenerate.py",
        "_rewrite",
        "others and not several_databases",
        "False",
        (f"{WRITTEN}::test_what_is_written_runs_up_and_down",),
    ),
    Bug(
        "hooks of the host's are forgotten",
        "migrations/autogenerate.py",
        "directives_hook",
        "own(context, revision, directives)",
        "pass",
        (f"{WRITTEN}::test_hooks_of_the_host_are_called",),
    ),
    Bug(
        "an index of parked rows has all rows",
        "rows/indexes/parked_index.py",
        "parked_index",
        "**partial_index_options(parked_at.is_not(None))",
        "",
        (f"{PARKED}::test_parked_rows_alone_are_in_it",),
    ),
    Bug(
        "an index of parked rows is built while nobody may write",
        "migrations/autogenerate.py",
        "_is_concurrent",
        "isinstance(step, IndexStep)",
        "isinstance(step, AddDueIndex | DropDueIndex)",
        (f"{PARKED}::test_alembic_writes_it_for_a_table_that_is_there",),
    ),
    Bug(
        "Alembic writes an index of parked rows as any other",
        "migrations/autogenerate.py",
        "_key_of_parked",
        "names[0] == PARKED",
        "not names",
        (f"{PARKED}::test_alembic_writes_it_for_a_table_that_is_there",),
    ),
    Bug(
        "a check does not say how parked rows are counted",
        "insight/checking/checkup.py",
        "_claim_findings",
        "not has_parked_index(leased)",
        "has_parked_index(leased)",
        (f"{PARKED}::test_parked_rows_are_counted_by_it",),
    ),
    Bug(
        "all rows of one time are read for the place of one of them",
        "insight/questions.py",
        "place_of",
        ".limit(PLACES_MAX + 1)",
        "",
        ("tests/insight/test_explain.py::test_no_more_rows_are_counted_than_a_place_can_say",),
    ),
    Bug(
        "any partial index that begins with parked_at is taken for ours",
        "migrations/autogenerate.py",
        "_key_of_parked",
        " and all(map(_IS_PARKED.fullmatch, texts))",
        "",
        (f"{PARKED}::test_alembic_writes_no_step_for_what_is_another_index[sqlite]",),
    ),
    Bug(
        "a step names a column that the table calls otherwise",
        "migrations/autogenerate.py",
        "_made_of",
        ' and (told != "due_at" or PARKED in others)',
        "",
        (f"{PARKED}::test_alembic_writes_no_step_for_what_is_another_index[sqlite]",),
    ),
)
