"""Outcomes as data: what `process` may return, and what is refused before any transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rowlock import Apply, OutcomeError, Park, Reset, Retry
from rowlock.pipelines.outcomes import as_outcome, check_outcome, delay_of, error_text, hint_targets
from rowlock.rows.leased_table import LeasedTable

from ..host import Attachment, Run, Volume


@pytest.mark.parametrize("outcome", [Apply(), Retry(), Reset(), Park("why")])
def test_outcomes_are_themselves(outcome: Any) -> None:
    """A worker would act on something else than what was returned."""
    assert as_outcome(outcome) is outcome


def test_nothing_is_success() -> None:
    """A `process` without a return would fail."""
    assert as_outcome(None) == Apply()


@pytest.mark.parametrize(
    "junk", [0, False, True, "done", {}, [], Apply, ValueError("returned, not raised"), object()]
)
def test_junk_is_refused(junk: object) -> None:
    """A typing error in the host would count as success."""
    kinds = "must return Apply, Retry, Reset, Park, Delete or None"
    with pytest.raises(OutcomeError, match="write Apply" if junk is Apply else kinds):
        as_outcome(junk)


@pytest.mark.parametrize(
    ("outcome", "column"),
    [
        (Apply({"nonsense": 1}), "nonsense"),
        (Apply({Attachment.name: 1}), "Attachment.name"),
        (Apply({"lock_token": None}), "lock_token"),
        (Apply({Volume.lock_owner: "me"}), "lock_owner"),
        (Apply({"lock_expires_at": None}), "lock_expires_at"),
        (Apply({"last_processed_at": None}), "last_processed_at"),
        (Apply({"id": 1}), "id"),
        (Apply({"status": 1, Volume.status: 2}), "status"),
        (Apply({5: 1}), "5"),
        (Apply(unless_changed=["nonsense"]), "nonsense"),
        (Retry(values={"nonsense": 1}), "nonsense"),
        (Retry(values={"lock_token": None}), "lock_token"),
    ],
)
def test_columns_that_cannot_be_written(outcome: Any, column: str) -> None:
    """A wrong column would be found by the database, in the middle of a transaction, or a lease
    be taken by hand.
    """
    with pytest.raises(OutcomeError) as caught:
        check_outcome(LeasedTable.of(Volume), outcome)
    assert caught.value.column == column
    assert column in str(caught.value)


@pytest.mark.parametrize("name", ["attempts", "last_error", "parked_at"])
def test_the_schedule_is_kept_by_rowlock(name: str) -> None:
    """A host would overwrite the count of attempts that parks poisonous rows."""
    with pytest.raises(OutcomeError) as caught:
        check_outcome(LeasedTable.of(Run), Apply({name: None}))
    assert caught.value.column == name


@pytest.mark.parametrize(
    "outcome", [Apply(after=1), Apply(after=timedelta(0)), Retry(after=1), Park("why")]
)
def test_outcomes_that_need_a_schedule(outcome: Any) -> None:
    """A time would be asked for that the row cannot keep."""
    says = (
        f"^{type(outcome).__name__}.* needs ScheduleColumns, which Volume does not have; mix"
        " them in"
    )
    with pytest.raises(OutcomeError, match=says):
        check_outcome(LeasedTable.of(Volume), outcome)
    check_outcome(LeasedTable.of(Run), outcome)


@pytest.mark.parametrize("outcome", [Apply(after=-1), Retry(after=timedelta(seconds=-1))])
def test_a_time_in_the_past_is_refused(outcome: Any) -> None:
    """A row would overtake those that are due."""
    with pytest.raises(OutcomeError, match="from zero to 366 days"):
        check_outcome(LeasedTable.of(Run), outcome)


@pytest.mark.parametrize(
    "outcome",
    [
        Apply(
            {"status": "a", Volume.disk_id: "d"},
            unless_changed=[Volume.status, "disk_id"],
            hint=Volume,
        ),
        Retry(error="no", values={"status": "a"}),
        Reset(),
    ],
)
def test_what_is_right_passes(outcome: Any) -> None:
    """The checks would refuse what hosts write every day."""
    check_outcome(LeasedTable.of(Volume), outcome)


@pytest.mark.parametrize(
    ("error", "text"),
    [(None, None), ("no disk", "no disk"), (ValueError("no disk"), "ValueError: no disk")],
)
def test_error_text(error: BaseException | str | None, text: str | None) -> None:
    """A row would not tell what went wrong."""
    assert error_text(error) == text


def test_error_text_is_bounded() -> None:
    """One error with a whole answer of a server in it would fill the table."""
    assert len(error_text("x" * 10_000) or "") == 1024
    assert len(error_text(ValueError("x" * 10_000)) or "") == 1024


@pytest.mark.parametrize(
    ("after", "delay"), [(1.5, timedelta(seconds=1.5)), (timedelta(days=1), timedelta(days=1))]
)
def test_delay_of(after: timedelta | float, delay: timedelta) -> None:
    """A number would be some other unit than seconds."""
    assert delay_of(after) == delay


@pytest.mark.parametrize(
    ("hint", "targets"),
    [((), ()), (Volume, (Volume,)), ("Volume", ("Volume",)), ([Volume, "Run"], (Volume, "Run"))],
)
def test_hint_targets(hint: Any, targets: tuple[Any, ...]) -> None:
    """A name given without a list would be hinted letter by letter."""
    assert tuple(hint_targets(hint)) == targets


@pytest.mark.parametrize(
    "outcome",
    [
        Apply(after=float("nan")),
        Apply(after=float("inf")),
        Apply(after=1e300),
        Apply(after="soon"),  # type: ignore[arg-type]
        Retry(after="soon"),  # type: ignore[arg-type]
        Apply(values=None),  # type: ignore[arg-type]
        Apply(values=[("status", "a")]),  # type: ignore[arg-type]
        Retry(values=None),  # type: ignore[arg-type]
        Apply(unless_changed=5),  # type: ignore[arg-type]
        Apply(hint=5),  # type: ignore[arg-type]
        Apply(hint=[5]),  # type: ignore[list-item]
    ],
)
def test_arguments_of_a_wrong_type_are_refused(outcome: Any) -> None:
    """The check itself would raise something that nobody expects, and the worker die of it."""
    with pytest.raises(OutcomeError):
        check_outcome(LeasedTable.of(Run), outcome)
