"""Guards of shadow runs against strange hosts, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

SHADOWED = "tests/insight/test_shadow.py"
COMPARED = f"{SHADOWED}::test_what_both_write_is_compared"
STRANGE = "tests/insight/test_shadow_strange.py"
EQUALS = f"{STRANGE}::test_what_equals_nothing_is_compared_all_the_same"
ALARM = f"{STRANGE}::test_a_failing_rehearsal_rings_no_alarm"
UNREADABLE = f"{STRANGE}::test_a_row_that_cannot_be_read_costs_no_other"
SNAPSHOT = "insight/shadowing/snapshot.py"
SHADOW = "insight/shadowing/shadow.py"

SHADOW_STRANGER_BUGS = (
    Bug(
        "a row that holds a NaN has always changed",
        SNAPSHOT,
        "is_same",
        "bool(one != one and other != other)",
        "bool(one is other)",
        (EQUALS,),
    ),
    Bug(
        "a value of a host ends a shadow run by an exit",
        SNAPSHOT,
        "is_same",
        "except BaseException:",
        "except Exception:",
        (EQUALS,),
    ),
    Bug(
        "a value that cannot be shown costs all rows of a shadow run",
        SHADOW,
        "PipelineShadow._compared",
        "except BaseException as error:  # noqa: BLE001 - as above",
        "except GeneratorExit as error:",
        (COMPARED,),
    ),
    Bug(
        "a value that the driver fails at costs all rows of a shadow run",
        SNAPSHOT,
        "read_as_kept",
        "if isinstance(error, SQLAlchemyError) or is_transient(error):",
        "if error:",
        (COMPARED,),
    ),
    Bug(
        "a shadow run shows errors of the new code as they are",
        SHADOW,
        "PipelineShadow._answer",
        "self._redact(write.error)",
        "write.error",
        (COMPARED,),
    ),
    Bug(
        "a value that the database refuses counts for the new code",
        "insight/shadowing/comparison.py",
        "RowComparison._judge",
        "same = not self._is_refused(column) and",
        "same = None if self._is_refused(column) else",
        (COMPARED,),
    ),
    Bug(
        "a rehearsal that fails counts as live work",
        "pipelines/settling/raised.py",
        "_tell_failed",
        "if item.is_rehearsal:",
        "if not context:",
        (ALARM,),
    ),
    Bug(
        "a rehearsal that fails is logged as live work",
        "pipelines/settling/raised.py",
        "record_failure",
        "if item.is_rehearsal",
        "if not context",
        (ALARM,),
    ),
    Bug(
        "a row that cannot be read costs a whole shadow run",
        SHADOW,
        "PipelineShadow._whole_else_apart",
        "if not is_of_a_value(error):",
        "if error:",
        (UNREADABLE,),
    ),
    Bug(
        "a row that is spoilt meanwhile is watched on",
        "insight/shadowing/watching.py",
        "WatchRules.after_look",
        "(unreadable := look.unreadable.get(row.before.key)) is not None",
        "(unreadable := None) is not None",
        (UNREADABLE,),
    ),
    Bug(
        "a rehearsal shows errors as they are",
        "insight/rehearsing/rehearsal.py",
        "PipelineRehearsal._row",
        "self._redact(row.reason)",
        "row.reason",
        (ALARM,),
    ),
)
