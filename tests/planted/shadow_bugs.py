"""Guards of shadow runs, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

SHADOWED = "tests/insight/test_shadow.py"
COMPARED = f"{SHADOWED}::test_what_both_write_is_compared"
MEANWHILE = f"{SHADOWED}::test_what_changed_meanwhile_does_not_count"
COMPARISON = "insight/shadowing/comparison.py"
SNAPSHOT = "insight/shadowing/snapshot.py"
WATCHING = "insight/shadowing/watching.py"
SHADOW = "insight/shadowing/shadow.py"

SHADOW_BUGS = (
    Bug(
        "a change by a service passes for a difference of versions",
        SHADOW,
        "PipelineShadow._meanwhile",
        "if names := changed_names(row, self._leased):",
        "if names := ():",
        (MEANWHILE,),
    ),
    Bug(
        "a row that another holder had is compared",
        SHADOW,
        "PipelineShadow._meanwhile",
        "if row.held_by:",
        "if not row:",
        (MEANWHILE,),
    ),
    Bug(
        "a row counts as settled before an outcome was written",
        WATCHING,
        "WatchRules.after_look",
        "if stamp == row.stamp:",
        "if stamp is row:",
        (f"{SHADOWED}::test_nothing_is_written_where_nobody_works",),
    ),
    Bug(
        "a reset passes for an outcome that is compared",
        WATCHING,
        "WatchRules.after_look",
        "if is_reserved and owner == self.owner:",
        "if is_reserved and owner is row:",
        (f"{SHADOWED}::test_a_reset_is_no_outcome_and_two_are_one_too_many",),
    ),
    Bug(
        "a shadow run shows what is hidden",
        COMPARISON,
        "RowComparison._difference",
        "column in self.columns.hidden",
        "column is None",
        (COMPARED,),
    ),
    Bug(
        "a shadow run has the time of its own for that of an outcome",
        SHADOW,
        "PipelineShadow._compared",
        "at if row.after is None else stamp_of(self._leased, row.after)",
        "at if row.after is None else at",
        (COMPARED,),
    ),
    Bug(
        "values are compared as the host wrote them",
        SNAPSHOT,
        "read_as_kept",
        "kept[column] = with_zone(found[0], column)",
        "kept[column] = with_zone(value, column)",
        (COMPARED,),
    ),
    Bug(
        "failures of two kinds are the same",
        COMPARISON,
        "RowComparison._of_error",
        "and live != shadow",
        "and live is shadow",
        (COMPARED,),
    ),
    Bug(
        "a shadow run shows errors of rows as they are",
        SHADOW,
        "PipelineShadow._answer",
        "self._redact(comparison.live_error)",
        "comparison.live_error",
        (COMPARED,),
    ),
    Bug(
        "a column that is ignored is compared",
        COMPARISON,
        "RowComparison._compared",
        "if one not in columns.ignored",
        "if one not in columns.hidden",
        (f"{SHADOWED}::test_ignored_columns_and_due_times",),
    ),
    Bug(
        "a row that was worked on twice is compared",
        COMPARISON,
        "was_worked_on_again",
        "> row.before.attempt",
        "> 2 * row.before.attempt",
        (f"{SHADOWED}::test_a_reset_is_no_outcome_and_two_are_one_too_many",),
    ),
    Bug(
        "a shadow run is of rows that no claim gets",
        SNAPSHOT,
        "read_snapshot",
        "read(where=question.parts.whole, limit=limit)",
        "read(where=question.parts.free, limit=limit)",
        (f"{SHADOWED}::test_replicas_work_while_the_shadow_does",),
    ),
    Bug(
        "a guard of a row that is gone fails by another error",
        "leases/item.py",
        "PipelineItem.guard",
        "if not rows:",
        "if rows is None:",
        (f"{SHADOWED}::test_replicas_work_while_the_shadow_does",),
    ),
    Bug(
        "related rows of a rehearsal cannot be written by its outcome",
        "insight/rehearsing/attempt.py",
        "ReadingLocker.lock",
        "item.held_rows().holds(leased, {key: {} for key in keys})",
        "pass",
        (COMPARED,),
    ),
    Bug(
        "a shadow run that has compared nothing exits as if all were the same",
        "cli/asking/plan.py",
        "_code_of_shadow",
        "WELL if answer.compared else NO_SUCH_ROW",
        "WELL",
        ("tests/cli/test_plan.py::test_the_exit_code_says_what_was_compared",),
    ),
)
