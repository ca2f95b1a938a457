"""Guards of long work: what it writes as it goes, and how it is asked to stop; with the tests that
must notice.
"""

from __future__ import annotations

from bug import Bug

FENCE = "tests/leases/test_fence.py"
STOP = "tests/pipelines/test_stop_requests.py"

FENCE_BUGS = (
    Bug(
        "a guarded transaction needs no token",
        "leases/item.py",
        "PipelineItem.guard",
        "not held or ",
        "",
        (f"{FENCE}::test_a_holder_that_lost_its_row_is_refused",),
    ),
    Bug(
        "a guarded transaction needs no trust",
        "leases/item.py",
        "PipelineItem.guard",
        " or not self.is_trusted()",
        "",
        (f"{FENCE}::test_a_holder_that_may_not_trust_its_lease_is_refused",),
    ),
    Bug(
        "a fence needs no token",
        "leases/lasting/fence.py",
        "fence",
        "row.item.lock_token in locked and ",
        "",
        (f"{FENCE}::test_a_row_may_be_fenced_without_being_written",),
    ),
    Bug(
        "a fence needs no trust",
        "leases/lasting/fence.py",
        "fence",
        " and row.item.is_trusted()",
        "",
        (f"{FENCE}::test_each_row_is_fenced_by_its_own_token",),
    ),
    Bug(
        "a fence does not compare",
        "leases/lasting/fence.py",
        "_unchanged",
        "compared.get(number, not row.unless_changed)",
        "True",
        (f"{FENCE}::test_each_row_is_fenced_by_its_own_token",),
    ),
    Bug(
        "a fence takes a guard that was not compared for kept",
        "leases/lasting/fence.py",
        "_unchanged",
        "is_same = await",
        "is_same = True or await",
        (f"{FENCE}::test_a_row_with_a_guard_of_its_own_shape_is_compared",),
    ),
    Bug(
        "a fence waits for nobody, though it is asked to",
        "leases/lasting/fence.py",
        "fence",
        "waits=waits",
        "waits=False",
        (f"{FENCE}::test_a_locked_row_is_left_out_or_waited_for",),
    ),
)

STOP_BUGS = (
    Bug(
        "a shutdown asks nobody to stop",
        "pipelines/run.py",
        "PipelineRun._stop_fetching",
        "self.context.stop.give()",
        "pass",
        (
            f"{STOP}::test_work_without_an_end_is_asked_to_stop",
            f"{STOP}::test_a_thread_sees_that_it_is_to_stop",
        ),
    ),
    Bug(
        "cleaning up has no limit where work has none",
        "pipelines/host_code/host_calls.py",
        "HostCalls.__init__",
        "Deadlines(CLEANUP_S_MAX)",
        "Deadlines(None)",
        (f"{STOP}::test_cleaning_up_has_a_limit_though_work_has_none",),
    ),
    Bug(
        "who is not at work waits to be asked",
        "leases/item.py",
        "PipelineItem.wait_for_stop",
        "if self.stop is None:",
        "if False:",
        (f"{STOP}::test_who_is_not_at_work_is_not_asked",),
    ),
)

TOPIC_BUGS = (
    Bug(
        "whoever hints hears of it",
        "hints/hinter.py",
        "PipelineHinter.hint_fetch",
        " if wake != but",
        "",
        ("tests/pipelines/test_hinter_relays.py::test_whoever_hints_may_be_left_out",),
    ),
    Bug(
        "a topic without a listener is a warning",
        "hints/hinter.py",
        "PipelineHinter.hint_fetch",
        " or TOPIC_MARK in name",
        "",
        (
            "tests/pipelines/test_hinter_relays.py"
            "::test_a_topic_is_hinted_like_a_model_and_may_have_no_listener",
        ),
    ),
)
