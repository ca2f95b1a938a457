"""Guards of what explanations and statuses say beside the row: replicas, other databases, tables
that are locked, commands to copy. And the tests that miss them.
"""

from __future__ import annotations

from bug import Bug

PROGRESS = "tests/insight/test_in_progress.py"
KEPT_OUT = "tests/insight/test_kept_out.py"
RUNNING = "insight/counting/running.py"
OBSERVER = "insight/observing/observer.py"

STORIES_BUGS = (
    Bug(
        "a row in progress is found by its key alone",
        RUNNING,
        "_in_progress",
        'item.get("token", head)',
        "head",
        (f"{PROGRESS}::test_a_row_in_progress_is_told_by_its_replica",),
    ),
    Bug(
        "a report counts as written just now",
        RUNNING,
        "_said",
        "since_s[0] + one.seen_s",
        "since_s[0]",
        (f"{PROGRESS}::test_a_row_in_progress_is_told_by_its_replica",),
    ),
    Bug(
        "a row of unknown age is never overdue",
        "insight/verdicts.py",
        "is_overdue",
        "overdue_s is None or overdue_s > allowed_s",
        "overdue_s is not None and overdue_s > allowed_s",
        (f"{PROGRESS}::test_a_row_of_unknown_age_may_be_overdue",),
    ),
    Bug(
        "a key in a command is not quoted",
        "insight/shown.py",
        "typed_word",
        "return shlex.quote(text)",
        "return text",
        (f"{PROGRESS}::test_a_command_names_the_row_whatever_its_key_is",),
    ),
    Bug(
        "a key that looks like an option is read as one",
        "insight/shown.py",
        "row_command",
        'key.startswith("-")',
        "False",
        (f"{PROGRESS}::test_a_key_that_looks_like_an_option_is_read",),
    ),
    Bug(
        "a command is broken where the terminal ends",
        "insight/explanation.py",
        "_with_command",
        "if found is None:",
        "if True:",
        (f"{PROGRESS}::test_a_command_stands_in_one_line",),
    ),
    Bug(
        "claims that fail on every replica are no trouble",
        "insight/counting/pipeline_status.py",
        "_troubles",
        "elif one.failing:",
        "elif False:",
        (f"{PROGRESS}::test_status_tells_each_trouble",),
    ),
    Bug(
        "who has locked a table is not looked for",
        "insight/facts.py",
        "facts_of",
        "if lock is not None:",
        "if False:",
        (f"{KEPT_OUT}::test_who_has_locked_a_table_is_told",),
    ),
    Bug(
        "a question waits for a locked table as long as for its answer",
        "insight/dialects/postgresql.py",
        "PostgresqlInsight.begin_reading",
        '"lock_timeout": LOCK_TIMEOUT',
        '"lock_timeout": statement_timeout * 10',
        (f"{KEPT_OUT}::test_a_table_of_replicas_that_is_locked_costs_their_names_alone",),
    ),
    Bug(
        "a lock that is shared has no holder",
        "insight/dialects/postgresql.py",
        "PostgresqlInsight.open_transaction",
        "if row is None:",
        "if False:",
        (f"{KEPT_OUT}::test_a_shared_lock_names_one_of_its_holders",),
    ),
    Bug(
        "a replica is silent where one of the tables is missing",
        OBSERVER,
        "_parts_of",
        "if tables.replicas is not None and tables.controls is not None:",
        "if False:",
        (f"{KEPT_OUT}::test_a_replica_lives_without_one_of_the_tables",),
    ),
    Bug(
        "a replica forgets its pauses where it cannot say that it lives",
        OBSERVER,
        "_parts_of",
        "yield replace(tables, replicas=None)",
        "pass",
        (f"{KEPT_OUT}::test_a_replica_lives_without_one_of_the_tables",),
    ),
    Bug(
        "all pipelines are asked in the database of the first",
        "insight/insight.py",
        "Insight.of",
        "PipelineHost(manager.session_factory, manager.gates)",
        "PipelineHost(managers[0].session_factory, manager.gates)",
        (f"{KEPT_OUT}::test_each_pipeline_asks_its_own_database",),
    ),
    Bug(
        "an observer beats in its first database alone",
        OBSERVER,
        "Observer._databases",
        "for manager, one in self._pipelines()",
        "for manager, one in self._pipelines()[:1]",
        (f"{KEPT_OUT}::test_each_pipeline_asks_its_own_database",),
    ),
    Bug(
        "a look that fails ends the watch",
        "cli/watching/again.py",
        "_look",
        "return error",
        "raise",
        ("tests/cli/test_terminal.py::test_a_status_that_is_watched_survives_its_database",),
    ),
    Bug(
        "a watch that is piped draws over its last answer",
        "cli/paper.py",
        "may_embellish",
        "sys.stdout.isatty()\n        and ",
        "",
        ("tests/cli/test_terminal.py::test_a_watch_that_is_piped_draws_nothing",),
    ),
    Bug(
        "what a person is told to copy is not what helps",
        "insight/headlines.py",
        "_parked",
        "'unpark', facts, REASON",
        "'due', facts, REASON",
        ("tests/walks/stories/test_stories.py::test_poison",),
    ),
    Bug(
        "a replica lives by the clock of the machine that asks",
        "insight/counting/replicas.py",
        "read_replicas",
        "(row[0] - row.seen_at)",
        '(__import__("rowlock.clock").clock.utc_now() - row.seen_at)',
        ("tests/walks/stories/test_clocks.py",),
    ),
    Bug(
        "a document has a key that no schema knows",
        "insight/counting/status.py",
        "_status_dict",
        '"wing": one.wing,',
        '"wing": one.wing, "flow": None,',
        ("tests/shopwindow/test_json_page.py::test_each_command_prints_what_its_schema_says",),
    ),
    Bug(
        "a row that only its pipeline makes due is to be made due by hand",
        "insight/headlines.py",
        "_resting",
        'has_due = "due_at" in facts.columns',
        "has_due = True",
        (f"{PROGRESS}::test_only_what_has_a_due_time_is_made_due",),
    ),
    Bug(
        "the related row for which a main row stepped back is not looked for",
        "insight/facts.py",
        "facts_of",
        "if has_stepped_back and asked.pipeline.declared_locks:",
        "if False:",
        (f"{PROGRESS}::test_what_a_main_row_lacks_is_named",),
    ),
)
