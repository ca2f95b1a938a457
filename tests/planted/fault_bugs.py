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
        "        if not is_transient(error):\n            for submission",
        "        if True:\n            for submission",
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
        (f"{HOSTS}::test_an_error_is_stored_and_told",),
    ),
)
