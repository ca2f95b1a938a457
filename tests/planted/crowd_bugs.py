"""The guards that keep many pipelines of one process from costing their square, and from
fighting each other.
"""

from __future__ import annotations

from bug import Bug

CROWDS = "tests/pipelines/test_crowds.py"
APART = "tests/pipelines/test_heartbeater_apart.py"

CROWD_BUGS = (
    Bug(
        "claims of one process fight for a SQLite file",
        "database/claim_slots.py",
        "claim_slot",
        "has_slot = await slots.acquire()",
        "pass",
        (f"{CROWDS}::test_claims_of_one_process_do_not_fight_for_a_sqlite_file",),
    ),
    Bug(
        "claims open more connections than the pool keeps",
        "database/claim_slots.py",
        "_claims_at_once",
        "kept or ",
        "",
        (f"{CROWDS}::test_claims_open_no_more_connections_than_the_pool_keeps",),
    ),
    Bug(
        "the queue of claims of a loop that has ended is kept",
        "database/claim_slots.py",
        "_slots_of",
        ".is_closed()",
        " is None",
        (f"{CROWDS}::test_a_loop_that_has_ended_leaves_no_queue_of_claims_behind",),
    ),
    Bug(
        "loops of two threads change the queues of claims at the same time",
        "database/claim_slots.py",
        "_slots_of",
        "with _slots_lock",
        "if True",
        (f"{CROWDS}::test_loops_of_two_threads_may_claim_at_the_same_time",),
    ),
    Bug(
        "claims that hang keep all others waiting",
        "database/claim_slots.py",
        "claim_slot",
        "(wait_s):",
        "(None):",
        (f"{CROWDS}::test_who_has_waited_for_long_goes_on",),
    ),
    Bug(
        "who went on without a place releases one",
        "database/claim_slots.py",
        "claim_slot",
        "has_slot:",
        "True:",
        (f"{CROWDS}::test_who_has_waited_for_long_goes_on",),
    ),
    Bug(
        "a place is never released",
        "database/claim_slots.py",
        "claim_slot",
        "slots.release()",
        "pass",
        (f"{CROWDS}::test_who_has_waited_for_long_goes_on",),
    ),
    Bug(
        "idle pipelines have timers",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater._until_something_is_tracked",
        "if self._tracked:\n                ",
        "",
        (f"{APART}::test_an_idle_pipeline_has_no_timers",),
    ),
    Bug(
        "what is tracked wakes nobody",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater.track",
        "loop.call_soon_threadsafe(something.set)",
        "pass",
        (f"{APART}::test_an_idle_pipeline_has_no_timers",),
    ),
    Bug(
        "one failure ends the watch over what a blocked loop keeps locked",
        "pipelines/renewing/heartbeat_thread.py",
        "HeartbeatThread._abort_stalled",
        "Exception",
        "ZeroDivisionError",
        (f"{APART}::test_what_a_loop_keeps_locked_is_ended_once_a_renewal_would_be_late",),
    ),
)
