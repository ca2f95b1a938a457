"""Guards of `rowlock.testing`: without them a host's tests would pass pipelines that fail, or
fail good ones.
"""

from __future__ import annotations

from bug import Bug

ENDINGS = "tests/testing/test_run_result.py"

TESTING_BUGS = (
    Bug(
        "a crash may change any row but one",
        "testing/crashes/run_result.py",
        "RunResult.differences_of_rows",
        "more or less",
        "False",
        (f"{ENDINGS}::test_a_row_that_was_given_is_compared",),
    ),
    Bug(
        "keys that are made anew are taken for the crash's doing",
        "testing/crashes/run_result.py",
        "keys_made_anew",
        "_not_in(_values(first, table, name), _values(second, table, name))",
        "False",
        (f"{ENDINGS}::test_keys_that_are_made_anew_are_no_difference",),
    ),
    Bug(
        "every column of a name that we use is taken for ours",
        "testing/crashes/run_result.py",
        "_kept_by_rowlock",
        " if LOCK_COLUMNS[0] in mapper.columns",
        "",
        (f"{ENDINGS}::test_columns_that_only_look_like_ours_are_compared",),
    ),
    Bug(
        "what a host leaves out is compared all the same",
        "testing/crashes/run_result.py",
        "read_rows",
        " and not _names_of(column) & {*ignore}",
        "",
        (f"{ENDINGS}::test_what_may_differ_is_not_compared",),
    ),
    Bug(
        "a contract leaves nothing out",
        "testing/crashes/crash_everywhere.py",
        "CrashContract.test_survives_a_crash_at_every_await",
        "            ignore=self.ignore,\n",
        "",
        (f"{ENDINGS}::TestLogging",),
    ),
    Bug(
        "the wrong row is worked on",
        "testing/crashes/crash_everywhere.py",
        "_Runs._set_scene",
        " or not isinstance(rows[0], pipeline.model)",
        "",
        (f"{ENDINGS}::test_a_row_that_is_not_the_pipelines",),
    ),
    Bug(
        "two processes prepare a server at once",
        "testing/databases/postgresql_server.py",
        "PostgresqlServer.start",
        "with fasteners.InterProcessLock(machine_lock()):",
        "if True:",
        ("tests/testing/test_server_starts.py::test_one_process_at_a_time_adds_the_system_user",),
    ),
    Bug(
        "a server's files fill a small memory",
        "testing/databases/postgresql_server.py",
        "server_parent",
        " and shutil.disk_usage(memory).free >= free_min",
        "",
        ("tests/testing/test_server_starts.py::test_files_are_kept_in_memory_where_there_is_room",),
    ),
    Bug(
        "a durable server writes each test's files to the disk",
        "testing/databases/temporary.py",
        "creation_of",
        'fsync == "off" and ',
        "",
        (
            "tests/testing/test_server_starts.py"
            "::test_files_are_copied_where_nobody_waits_for_the_disk",
        ),
    ),
    Bug(
        "a cursor is closed before a statement that is queued",
        "testing/databases/inline_sqlite.py",
        "InlineConnection.in_memory",
        "self._tx.is_idle and ",
        "",
        (
            "tests/testing/test_inline_sqlite.py"
            "::test_a_cursor_is_closed_behind_a_statement_that_is_queued",
        ),
    ),
)
