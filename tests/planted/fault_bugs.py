"""Guards against bad data, bad hosts and bad databases, and the tests that must notice when one
is taken out.
"""

from __future__ import annotations

from bug import Bug

BY_HAND = "tests/faults/test_rows_by_hand.py"
HOSTS = "tests/faults/test_hosts_that_raise.py"
KEYS = "tests/faults/test_spoilt_keys.py"
VALUES = "tests/faults/test_values.py"

FAULT_BUGS = (
    Bug(
        "a COMMIT whose answer was lost counts as refused",
        "pipelines/settling/transactions.py",
        "PendingOutcome.stamp",
        "            self.stamps = self.stamps | stamps if self.stamps else stamps\n",
        "",
        (
            "tests/faults/test_lost_answers.py",
            "tests/faults/test_lost_answers_together.py",
        ),
    ),
    Bug(
        "a COMMIT that lost to another transaction counts as one whose answer was lost",
        "pipelines/settling/writer.py",
        "Writer._learn",
        "pending.stamps = frozenset()\n            raise error",
        "return Written.UNKNOWN",
        (
            "tests/pipelines/test_writer_trust.py::test_a_commit_that_lost_to_another_is_known_to_have_failed",
        ),
    ),
    Bug(
        "half a lock is never swept",
        "leases/release.py",
        "sweep",
        "half_a_lock, ",
        "",
        (f"{BY_HAND}::test_no_leftover_stays_on_a_row_that_nobody_wants",),
    ),
    Bug(
        "a value that SQLite should not hold fails the claim of all rows",
        "dialects/sqlite/leases.py",
        "_Values._read",
        "(TypeError, ValueError, AttributeError)",
        "ZeroDivisionError",
        (f"{BY_HAND}::test_what_is_no_value_of_its_column_costs_its_own_row_only",),
    ),
    Bug(
        "attempts that are no number fail the claim of all rows",
        "dialects/sqlite/leases.py",
        "_Values.read_attempts",
        " if isinstance(attempts, int) else 0",
        "",
        (f"{BY_HAND}::test_what_is_no_value_of_its_column_costs_its_own_row_only",),
    ),
    Bug(
        "a listener that exits ends the event loop",
        "events.py",
        "emit",
        "BaseException:",
        "Exception:",
        (f"{HOSTS}::test_whatever_a_listener_raises",),
    ),
    Bug(
        "an error that exits when it is asked for its text ends the event loop",
        "redaction.py",
        "text_of",
        "BaseException:",
        "Exception:",
        (f"{HOSTS}::test_an_error_that_exits_when_it_is_asked_for_its_text",),
    ),
    Bug(
        "rows are claimed that nobody can read, because a migration was not run",
        "pipelines/fetching/fetcher.py",
        "Fetcher.fetch_once",
        " or is_of_the_schema(error)",
        "",
        ("tests/faults/test_schemas.py::test_a_migration_that_was_not_run_yet",),
    ),
    Bug(
        "a failure that came too late is not told",
        "pipelines/settling/settler.py",
        "Settler._write_instead",
        "self.recorder.dropped(item, of, written)",
        "pass",
        (f"{VALUES}::test_a_failure_that_comes_too_late_is_told",),
    ),
    Bug(
        "a statement that was prepared before a migration is the row's failure",
        "dialects/postgresql/faults.py",
        "PostgresqlFaults.is_of_the_connection",
        'type(raised).__name__ == "InvalidCachedStatementError"',
        "False",
        (
            "tests/faults/test_schemas.py::test_what_was_prepared_before_a_migration_is_prepared_anew",
        ),
    ),
    Bug(
        "a row fails because no row can be read",
        "pipelines/processing/worker.py",
        "Worker._prevented",
        "Ended.INTERRUPTED if self._loader.concerns_all_rows(error) else ",
        "",
        ("tests/faults/test_schemas.py::test_a_migration_that_was_not_run_yet",),
    ),
    Bug(
        "rows are claimed again and again while none can be read",
        "pipelines/fetching/fetcher.py",
        "Fetcher._fetch",
        "        limit = limit if unreadable is None else min(limit, 2)\n",
        "",
        ("tests/faults/test_schemas.py::test_a_migration_that_was_not_run_yet",),
    ),
    Bug(
        "health does not tell that no row can be read",
        "pipelines/fetching/fetcher.py",
        "Fetcher._fetch",
        "unreadable is not None",
        "False",
        ("tests/faults/test_schemas.py::test_a_migration_that_was_not_run_yet",),
    ),
    Bug(
        "one kind of row that cannot be read stops all others",
        "pipelines/processing/loader.py",
        "Loader.concerns_all_rows",
        " and monotonic() >= self._others_load_until",
        "",
        (
            "tests/faults/test_schemas.py::test_one_kind_that_cannot_be_read_does_not_stop_the_others",
        ),
    ),
    Bug(
        "a key that cannot be read fails the claim of all rows",
        "dialects/sqlite/written_keys.py",
        "WrittenKeys._read",
        "Exception:  # noqa: BLE001 - a type may be the host's",
        "ZeroDivisionError:",
        (f"{KEYS}::test_a_key_that_is_none_costs_its_own_row_only",),
    ),
    Bug(
        "a key that cannot be read keeps whole rows from all others",
        "dialects/sqlite/leases.py",
        "_whole_row",
        "type_coerce(column, Text) if column in as_written else ",
        "",
        (f"{KEYS}::test_a_key_that_is_none_costs_its_own_row_only",),
    ),
    Bug(
        "a row that its key does not find is claimed for ever",
        "dialects/sqlite/written_keys.py",
        "WrittenKeys.keys_of",
        "not await self._finds(connection, key, value)",
        "False",
        (f"{KEYS}::test_a_key_in_another_shape_takes_no_lease_of_the_row_that_has_the_key",),
    ),
    Bug(
        "a row that its key finds in another shape is left alone",
        "dialects/sqlite/written_keys.py",
        "WrittenKeys.keys_of",
        " and not await self._finds(connection, key, value)",
        "",
        (f"{KEYS}::test_a_key_that_is_found_in_another_shape_is_not_left_alone",),
    ),
    Bug(
        "rows whose keys cannot be read take the places of a claim",
        "dialects/sqlite/leases.py",
        "_read_due",
        "len(spoilt) == known",
        "True",
        (f"{KEYS}::test_many_such_rows_at_the_head_starve_nobody",),
    ),
    Bug(
        "rows whose keys cannot be read are read by every claim",
        "dialects/sqlite/leases.py",
        "_due",
        "leased.spoilt_keys",
        "False",
        (f"{KEYS}::test_many_such_rows_at_the_head_starve_nobody",),
    ),
    Bug(
        "keys that cannot be read are remembered without a bound",
        "dialects/sqlite/written_keys.py",
        "WrittenKeys.leave_alone",
        " or len(spoilt) >= SPOILT_KEYS_MAX",
        "",
        (f"{KEYS}::test_how_many_are_remembered_is_bounded",),
    ),
    Bug(
        "a lock whose end is no time is never swept",
        "leases/release.py",
        "sweep",
        "half_a_lock, endless)",
        "half_a_lock)",
        (f"{KEYS}::test_an_end_that_is_no_time_is_swept",),
    ),
    Bug(
        "a lock without an owner whose end is no time is never swept",
        "leases/release.py",
        "sweep",
        "or_(lock_owner.is_not(None), endless)",
        "lock_owner.is_not(None)",
        (f"{KEYS}::test_an_end_that_is_no_time_is_swept",),
    ),
    Bug(
        "a statement of `also` that is out of time is the host's own affair",
        "pipelines/host_code/call.py",
        "_raised",
        "error.args == (OUT_OF_TIME,)",
        "False",
        (
            "tests/faults/test_postgresql_refuses.py::test_also_that_waits_for_a_locked_row_is_tried_again",
        ),
    ),
)
