"""Guards against bad data, bad hosts and bad databases, and the tests that must notice when one is taken out."""

from __future__ import annotations

from bug import Bug

BY_HAND = "tests/faults/test_rows_by_hand.py"
HOSTS = "tests/faults/test_hosts_that_raise.py"
VALUES = "tests/faults/test_values.py"

FAULT_BUGS = (
    Bug(
        "a refused COMMIT counts as one whose answer was lost",
        "pipelines/writer.py",
        "                submission.stamps = stamps\n",
        "                pass\n",
        (f"{VALUES}::test_what_is_refused_everywhere",),
    ),
    Bug(
        "a COMMIT whose answer was lost counts as refused",
        "pipelines/writer.py",
        "if isinstance(error, TransactionTimeout) else not is_transient(error):",
        "if isinstance(error, TransactionTimeout) else True:",
        ("tests/faults/test_lost_answers.py",),
    ),
    Bug(
        "half a lock is never swept",
        "leases/release.py",
        "or_(expires_at < limit, never_returned, half_a_lock)",
        "or_(expires_at < limit, never_returned)",
        (f"{BY_HAND}::test_no_leftover_keeps_a_row_for_ever",),
    ),
    Bug(
        "a value that SQLite should not hold fails the claim of all rows",
        "leases/dialects/sqlite.py",
        "        except (TypeError, ValueError, AttributeError):\n            return otherwise",
        "        except ZeroDivisionError:\n            return otherwise",
        (f"{BY_HAND}::test_what_is_no_value_of_its_column_costs_its_own_row_only",),
    ),
    Bug(
        "attempts that are no number fail the claim of all rows",
        "leases/dialects/sqlite.py",
        "return attempts if isinstance(attempts, int) else 0",
        "return attempts",
        (f"{BY_HAND}::test_what_is_no_value_of_its_column_costs_its_own_row_only",),
    ),
    Bug(
        "a listener that exits ends the event loop",
        "events.py",
        "        except BaseException:\n",
        "        except Exception:\n",
        (f"{HOSTS}::test_whatever_a_listener_raises",),
    ),
    Bug(
        "an error that exits when it is asked for its text ends the event loop",
        "errors.py",
        "    except BaseException:  # noqa: BLE001 - a host's __str__",
        "    except Exception:  # noqa: BLE001 - a host's __str__",
        (f"{HOSTS}::test_an_error_that_exits_when_it_is_asked_for_its_text",),
    ),
    Bug(
        "rows are claimed that nobody can read, because a migration was not run",
        "pipelines/fetcher.py",
        " or is_of_the_schema(error):",
        ":",
        ("tests/faults/test_schemas.py::test_a_migration_that_was_not_run_yet",),
    ),
    Bug(
        "a failure that came too late is not told",
        "pipelines/settler.py",
        "                self._note_stale(item, written.value)\n        await free_held",
        "                pass\n        await free_held",
        (f"{VALUES}::test_a_failure_that_comes_too_late_is_told",),
    ),
    Bug(
        "a statement that was prepared before a migration is the row's failure",
        "leases/faults.py",
        ' or type(error.orig).__name__ == "InvalidCachedStatementError"',
        "",
        ("tests/faults/test_schemas.py::test_what_was_prepared_before_a_migration_is_prepared_anew",),
    ),
    Bug(
        "a row fails because no row can be read",
        "pipelines/worker.py",
        "Ended.INTERRUPTED if self._loader.concerns_all_rows(error) else note_failure(self.context, item, error)",
        "note_failure(self.context, item, error)",
        ("tests/faults/test_schemas.py::test_a_migration_that_was_not_run_yet",),
    ),
    Bug(
        "rows are claimed again and again while none can be read",
        "pipelines/fetcher.py",
        "        limit = limit if unreadable is None else min(limit, 2)\n",
        "",
        ("tests/faults/test_schemas.py::test_a_migration_that_was_not_run_yet",),
    ),
    Bug(
        "health does not tell that no row can be read",
        "pipelines/fetcher.py",
        "        if unreadable is not None:\n",
        "        if False:\n",
        ("tests/faults/test_schemas.py::test_a_migration_that_was_not_run_yet",),
    ),
    Bug(
        "one kind of row that cannot be read stops all others",
        "pipelines/loader.py",
        "return is_of_the_schema(error) and monotonic() >= self._others_load_until",
        "return is_of_the_schema(error)",
        ("tests/faults/test_schemas.py::test_one_kind_that_cannot_be_read_does_not_stop_the_others",),
    ),
)
