"""Guards of flows and logs that are deleted for good, and the tests that miss them."""

from __future__ import annotations

from bug import Bug

FILE = "streams/coordinating/deleting.py"
TESTS = "tests/streams/coordinator/test_deleting.py"

DELETING_BUGS = (
    Bug(
        "a flow that runs is deleted",
        FILE,
        "_why_in_use",
        'state != "stopped"',
        "False",
        (f"{TESTS}::test_a_flow_that_is_worked_on_is_refused",),
    ),
    Bug(
        "a flow is deleted whose shards are leased",
        FILE,
        "_why_in_use",
        "held or names",
        "names",
        (f"{TESTS}::test_a_shard_that_is_leased_is_refused",),
    ),
    Bug(
        "a flow is deleted that a process has among its pipelines",
        FILE,
        "_why_in_use",
        "held or names",
        "held",
        (f"{TESTS}::test_a_flow_that_is_worked_on_is_refused",),
    ),
    Bug(
        "a flow is deleted whose results another one reads",
        FILE,
        "_why_in_use",
        'one.startswith(f"{name}/")',
        "False",
        (f"{TESTS}::test_a_flow_that_is_read_is_refused",),
    ),
    Bug(
        "results are lost that nobody asked about",
        FILE,
        "_why_results_stay",
        "kept is None",
        "True",
        (f"{TESTS}::test_results_that_are_kept_are_asked_for",),
    ),
    Bug(
        "the first transaction of a deletion marks nothing",
        FILE,
        "_begin",
        "values(fingerprint=BEING_DELETED)",
        "values(fingerprint=row.fingerprint)",
        (f"{TESTS}::test_nothing_of_a_flow_is_left",),
    ),
    Bug(
        "a flow that is there anew is deleted with the old one",
        FILE,
        "Deletion.delete_flow",
        "not await _is_being_deleted(connection, tables, flow_id)",
        "False",
        (f"{TESTS}::test_a_flow_that_is_there_anew_is_not_deleted",),
    ),
    Bug(
        "a step that has many results is never deleted",
        FILE,
        "_delete_results",
        "max(end, found.step + 1)",
        "end",
        (f"{TESTS}::test_so_much_of_a_flow_is_deleted_at_once",),
    ),
    Bug(
        "all states of a flow are deleted at once",
        FILE,
        "_delete_some",
        ".limit(DELETED_ROWS_MAX)",
        "",
        (f"{TESTS}::test_so_much_of_a_flow_is_deleted_at_once",),
    ),
    Bug(
        "a log is deleted that a flow reads",
        FILE,
        "Deletion.delete_log",
        "source == name",
        "False",
        (f"{TESTS}::test_nothing_of_a_log_is_left",),
    ),
    Bug(
        "a flow that is being deleted is created or read",
        "streams/tables.py",
        "check_lasts",
        "fingerprint == BEING_DELETED",
        "False",
        (f"{TESTS}::test_what_is_cut_short_is_ended_later",),
    ),
    Bug(
        "a flow that is being deleted is started",
        "streams/commands.py",
        "_change",
        "flows.c.fingerprint != BEING_DELETED",
        "flows.c.id == program.id",
        (f"{TESTS}::test_what_is_cut_short_is_ended_later",),
    ),
    Bug(
        "an acknowledgement of a deleted flow counts for the next one",
        "streams/creation.py",
        "_create",
        "await connection.execute(old)",
        "pass",
        (f"{TESTS}::test_a_late_acknowledgement_is_not_taken_for_a_new_flows",),
    ),
)
