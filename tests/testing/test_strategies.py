"""Tests of the strategies: what is drawn is valid, on a real database, and of every kind that
there is.
"""

from __future__ import annotations

import enum
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from sqlalchemy import Enum, ForeignKey, Numeric, String, delete
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from rowlock import Apply, LockColumns, Outcome, Park, Pipeline, Reset, Retry, ScheduleColumns
from rowlock.pipelines.outcomes import as_outcome, check_outcome
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, stepping
from rowlock.testing.strategies import outcomes, step_sequences, values_of

from ..host import Run, Volume
from ..shopwindow.programs import run_python

SOME = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


AS_DRAWN = settings(max_examples=100, phases=[Phase.generate], database=None)
"""Something is found or not; nobody asks for the least of it."""
COUNTED_AS = {
    Apply: "applied",
    type(None): "applied",
    Retry: "retried",
    Reset: "reset",
    Park: "parked",
}


class Base(DeclarativeBase):
    """Classes of this file only."""


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Folded(TypeDecorator[str]):
    impl = String
    cache_ok = True


class Thing(LockColumns, ScheduleColumns, Base):
    __tablename__ = "things"
    id: Mapped[int] = mapped_column(primary_key=True)
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("things.id"))
    colour: Mapped[Colour | None]
    size: Mapped[str | None] = mapped_column(Enum("small", "large", name="size"))
    short: Mapped[str | None] = mapped_column(String(3))
    weight: Mapped[float | None]
    price: Mapped[Decimal | None] = mapped_column(Numeric(5, 2))
    is_open: Mapped[bool | None]
    folded: Mapped[str | None] = mapped_column(Folded)


class ThingPipeline(Pipeline[Thing]):
    model = Thing
    answer: Outcome | None = None

    def ready(self) -> Any:
        return Thing.id > 0

    async def process(self, item: Any) -> Outcome | None:
        return self.answer


@given(outcomes(Run))
@settings(deadline=None)
def test_outcomes_are_accepted(outcome: Any) -> None:
    """A property test would be about refusals."""
    check_outcome(LeasedTable.of(Run), as_outcome(outcome))


@pytest.mark.parametrize("kind", [Apply, Retry, Reset, Park, type(None)])
def test_each_outcome_is_drawn(kind: type[Any]) -> None:
    """One of them would never be tried."""
    drawn = find(outcomes(Run), lambda outcome: isinstance(outcome, kind), settings=AS_DRAWN)
    assert isinstance(drawn, kind)


def test_outcomes_fit_the_model() -> None:
    """A model without a schedule would be given what it cannot do."""
    with pytest.raises(Exception, match=r"(?i)no .*example|unsatisfiable|NoSuchExample"):
        find(
            outcomes(Volume),
            lambda outcome: (
                isinstance(outcome, Park) or getattr(outcome, "after", None) is not None
            ),
            settings=AS_DRAWN,
        )


def test_a_host_says_what_is_drawn() -> None:
    """A status that no code knows would be written."""
    drawn = find(
        values_of(Thing, columns={Thing.folded: st.just("x"), "size": st.just("large")}),
        lambda values: {"folded", "size"} <= set(values),
        settings=AS_DRAWN,
    )
    assert (drawn["folded"], drawn["size"]) == ("x", "large")


@given(values_of(Thing))
@settings(deadline=None)
def test_what_is_not_known_is_left_out(values: dict[str, Any]) -> None:
    """A key, a foreign key, a column of ours or a type of the host's own would get a value that
    means nothing.
    """
    assert set(values) <= {"colour", "size", "short", "weight", "price", "is_open"}


@pytest.fixture
async def things(database: TemporaryDatabase) -> TemporaryDatabase:
    await database.create_tables(Base.metadata)
    return database


@given(outcome=outcomes(Thing))
@SOME
async def test_values_can_be_stored(things: TemporaryDatabase, outcome: Any) -> None:
    """The database would refuse what a strategy calls valid."""
    async with things.session_factory.begin() as session:
        await session.execute(delete(Thing))
        session.add(Thing(id=1))
    pipeline = ThingPipeline()
    pipeline.answer = outcome
    async with stepping(things.session_factory, pipeline) as steps:
        assert len(await steps.fetch_once()) == 1
        await steps.work_once()
        counters = steps.run.context.counters
        assert getattr(counters, COUNTED_AS[type(outcome)]) == 1, counters
    async with things.session_factory() as session:
        assert (await session.get_one(Thing, 1)).lock_token is None


@given(step_sequences(replicas=2, kinds=["fetch", "pass"], seconds_max=5, max_size=7))
def test_steps_are_those_that_were_asked_for(steps: list[Any]) -> None:
    """A test would step a replica that it does not have, or wait for longer than its leases
    last.
    """
    assert len(steps) <= 7
    for step in steps:
        assert step.kind in {"fetch", "pass"}
        assert step.replica in {0, 1}
        assert 0 <= step.seconds <= 5


def test_the_missing_extra_is_named(tmp_path: Path) -> None:
    """A host would be told the name of a package, and not which extra brings it."""
    code = "import sys; sys.modules['hypothesis'] = None; import rowlock.testing.strategies"
    ended = run_python("-c", code, folder=tmp_path)
    assert (
        "rowlock.testing.strategies needs hypothesis, which is not installed: pip install"
        " 'rowlock[testing]'." in ended.errors
    )
