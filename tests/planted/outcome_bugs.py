"""Guards of what a host says by an outcome: when a row is due, whether it is deleted, and what is
raised.
"""

from __future__ import annotations

from bug import Bug

DUE_AT = "tests/pipelines/test_due_at.py"
EXPECTED = "tests/pipelines/test_expected_errors.py"
RAISED = "tests/pipelines/test_raised.py"

OUTCOME_BUGS = (
    Bug(
        "a time that the host says is forgotten",
        "pipelines/settling/planner.py",
        "Planner._next_due",
        "outcome.due_at is not None",
        "False",
        (f"{DUE_AT}::test_the_row_is_due_at_that_time",),
    ),
    Bug(
        "an outcome with a due time passes for one with values alone",
        "pipelines/outcomes.py",
        "has_values_alone",
        " and outcome.due_at is None",
        "",
        (f"{DUE_AT}::test_what_is_no_time_is_refused",),
    ),
    Bug(
        "a time without a zone is taken",
        "pipelines/outcomes.py",
        "_check_due_at",
        " or due_at.utcoffset() is None",
        "",
        (f"{DUE_AT}::test_what_is_no_time_is_refused",),
    ),
    Bug(
        "a traceback cannot be written on a raised outcome",
        "pipelines/raisable.py",
        "raisable.set_unless_frozen",
        "name in KEPT_BY_PYTHON",
        "False",
        (f"{RAISED}::test_they_pass_through_context_managers",),
    ),
    Bug(
        "a raised outcome is pickled without what was given by name",
        "pipelines/raisable.py",
        "raisable",
        '    setattr(cls, "__reduce__", _reduce)  # noqa: B010\n',
        "",
        (f"{RAISED}::test_they_are_pickled_whole",),
    ),
    Bug(
        "an outcome in a task group is a failure",
        "pipelines/settling/raised.py",
        "_leaves",
        "isinstance(error, BaseExceptionGroup)",
        "False",
        (f"{RAISED}::test_a_task_group_gives_one_outcome",),
    ),
    Bug(
        "groups are opened once",
        "pipelines/settling/raised.py",
        "_leaves",
        "yield from _leaves(one)",
        "yield one",
        (f"{RAISED}::test_groups_within_groups_are_opened",),
    ),
    Bug(
        "a failure hides behind an outcome beside it",
        "pipelines/settling/raised.py",
        "outcome_of_error",
        "if said.failures:",
        "if said.failures and outcome is None:",
        (f"{RAISED}::test_a_task_group_gives_one_outcome",),
    ),
    Bug(
        "of several retries the first counts",
        "pipelines/settling/raised.py",
        "_together",
        "max(said.retries, key=_rest_s)",
        "said.retries[0]",
        (f"{RAISED}::test_a_task_group_gives_one_outcome",),
    ),
    Bug(
        "what a retry was raised from is forgotten",
        "pipelines/settling/raised.py",
        "_with_cause",
        "cause = raised.__context__",
        "pass",
        (f"{RAISED}::test_a_retry_is_stored_with_what_it_was_raised_from",),
    ),
    Bug(
        "a raised outcome is not checked",
        "pipelines/settling/decisions.py",
        "decide",
        "return checked(context, item, outcome_of_error(context, item, error))",
        "return outcome_of_error(context, item, error)",
        (f"{RAISED}::test_what_cannot_be_written_is_refused_when_raised",),
    ),
    Bug(
        "an outcome that also raises is a failure",
        "pipelines/settling/raised.py",
        "raised_by_also",
        "isinstance(error, HostCodeError)",
        "False",
        (f"{RAISED}::test_also_may_raise_an_outcome",),
    ),
    Bug(
        "a copy of a raised outcome loses the host's class",
        "pipelines/copies.py",
        "_is_read_plainly",
        "BaseException if issubclass(cls, BaseException) else object",
        "object",
        (f"{RAISED}::test_a_copy_keeps_the_host_s_own_class",),
    ),
    Bug(
        "of the rules for an error any counts",
        "pipelines/host_code/expected_errors.py",
        "ExpectedErrors.rule_for",
        "type(error).__mro__",
        "reversed(type(error).__mro__)",
        (f"{EXPECTED}::test_an_expected_error_is_retried_after_its_delay",),
    ),
    Bug(
        "a rule that needs a schedule is taken without one",
        "pipelines/host_code/expected_errors.py",
        "_need_schedule",
        "not leased.has_schedule",
        "False",
        (f"{EXPECTED}::test_a_rule_that_cannot_be_is_refused",),
    ),
    Bug(
        "an error stands in both lists",
        "pipelines/host_code/expected_errors.py",
        "ExpectedErrors.of",
        "error in rules",
        "False",
        (f"{EXPECTED}::test_a_rule_that_cannot_be_is_refused",),
    ),
    Bug(
        "a delay that is none is found where outcomes are written",
        "pipelines/host_code/expected_errors.py",
        "ErrorRule.delay_after",
        "delay if delay is None else delay_of(delay)",
        "delay",
        (f"{EXPECTED}::test_a_delay_that_is_none_fails_the_row_alone",),
    ),
)
