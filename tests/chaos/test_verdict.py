"""The verdict finds what was lost, doubled or never worked on, and counts what may be doubled."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from ..simulator.judge.stories import LEASE_S, Story
from .host import SITES, Traces, sites_of
from .replicas import Replica
from .verdict import OVERLAP_S_MAX, TAKEN_WITHIN, Work, judge, read_work


@dataclass(eq=False)
class Known:
    """What the verdict wants to know of a replica."""

    name: str = "replica-1"
    speed: float = 1.0
    frozen: list[tuple[float, float]] = field(default_factory=list)


class Run:
    """A run by hand: a job, a batch and its sites, and the traces of the work on them."""

    def __init__(self) -> None:
        self.story, self.work = Story(), list[Work]()
        self.story.add("1", "jobs", values={"wanted": 1, "done": 0})
        self.story.add("1", "batches", values={"wanted": 1, "done": 0})
        for site in range(1, SITES + 1):
            self.story.add(str(site), "sites", values={"touched": 0})

    def play(
        self, table: str, *, worked: int = 1, done: int = 1, touched: int = 1, **applied: Any
    ) -> None:
        """Claim a row, work on its round, and apply it."""
        token = self.story.claim("1", table)
        for _ in range(worked):
            self.leave_trace(table, token.hex)
        sites = [str(site) for site in sites_of(1)] if table == "batches" else []
        for site in sites:
            self.story.take(
                token,
                site,
                "sites",
                lock_owner="P:1",
                lock_expires_at=self.story.state("1", table).lock_expires_at,
            )
        wanted = self.story.state("1", table).values["wanted"]
        self.story.apply("1", table, values={"wanted": wanted, "done": done}, **applied)
        for site in sites:
            self.story.free(site, "sites", together=True, values={"touched": touched})

    def leave_trace(
        self,
        table: str,
        token: str,
        *,
        at: tuple[float, float] = (0.0, 0.0),
        by: Known | None = None,
    ) -> None:
        """Leave a trace of work on a row's first round."""
        replica = cast("Replica", by or Known())
        self.work.append(Work(replica, (table, "1"), 1, token, *at, is_done=True))

    @property
    def wrongs(self) -> list[str]:
        return judge(self.story.changes, self.work).wrongs


def test_a_good_run_is_found_good() -> None:
    """The verdict would cry wolf."""
    run = Run()
    run.play("jobs")
    run.play("batches")
    assert run.wrongs == []
    assert judge(run.story.changes, run.work).figures["rounds applied"] == 2


def test_a_lost_row_is_found() -> None:
    """Work that nobody did would go unseen."""
    run = Run()
    run.play("batches")
    (wrong,) = run.wrongs
    assert wrong.startswith("B1 broken: jobs 1: is not settled")


@pytest.mark.parametrize(
    ("done", "text"),
    [(0, "done went from 1 to 0"), (1, "not settled"), (3, "done went from 1 to 3")],
)
def test_a_round_that_is_not_the_next_is_found(done: int, text: str) -> None:
    """A round that was written twice, or skipped, would go unseen."""
    run = Run()
    run.play("batches")
    run.play("jobs")
    run.story.change("1", "jobs", values={"wanted": 2, "done": 1})
    run.play("jobs", done=done)
    assert any(text in wrong for wrong in run.wrongs)


def test_a_round_without_work_is_found() -> None:
    """An outcome could come from nowhere."""
    run = Run()
    run.play("batches")
    run.play("jobs", worked=0)
    (wrong,) = run.wrongs
    assert "no work for it was done under that token" in wrong


@pytest.mark.parametrize("touched", [0, 2])
def test_a_related_write_that_was_lost_or_doubled_is_found(touched: int) -> None:
    """Related rows would be written without their main row, or the reverse."""
    run = Run()
    run.play("jobs")
    run.play("batches", touched=touched)
    assert len(run.wrongs) == len(sites_of(1))
    assert f"was touched {touched} times for 1 rounds" in run.wrongs[0]


@pytest.mark.parametrize("worked", [False, True])
def test_claims_that_count_no_death_may_follow_one_another_without_work(*, worked: bool) -> None:
    """A row that kills its process would be tried for ever; or claims that died be called that."""
    run = Run()
    run.play("batches")
    run.story.claim("1", "jobs")
    for _ in range(2):
        run.story.wait(LEASE_S)
        token = run.story.claim("1", "jobs", attempts=0)
        if worked:
            run.leave_trace("jobs", token.hex)
    run.story.wait(LEASE_S)
    run.play("jobs")
    assert [wrong[:9] for wrong in run.wrongs] == ["B4 broken"] * worked


def test_a_lease_that_nobody_looked_after_is_found() -> None:
    """Rows of a dead replica could wait for an hour."""
    run = Run()
    run.play("batches")
    run.story.claim("1", "jobs")
    run.story.wait(3600)
    run.play("jobs")
    assert [wrong.partition(" ")[0] for wrong in run.wrongs] == ["B2"]


def test_only_round_trips_make_the_wait_longer() -> None:
    """A run far from its server would be judged as one next door, or the reverse."""
    run = Run()
    run.play("batches")
    run.story.claim("1", "jobs")
    lease = run.story.state("1", "jobs").lock_expires_at
    assert lease is not None
    run.story.wait((lease - run.story.now).total_seconds() + TAKEN_WITHIN.total_seconds() + 1)
    run.play("jobs")
    assert [wrong.partition(" ")[0] for wrong in run.wrongs] == ["B2"]
    assert judge(run.story.changes, run.work, latency_s=0.025).wrongs == []
    assert judge(run.story.changes, run.work, latency_s=0.005).wrongs == run.wrongs


def test_a_parked_row_is_found() -> None:
    """Rows could be set aside instead of being worked on."""
    run = Run()
    run.play("batches")
    run.play("jobs", done=0, attempts=1, parked_at=run.story.now)
    assert any("was parked" in wrong for wrong in run.wrongs)


@pytest.mark.parametrize(
    ("second", "broken"),
    [
        (Known("replica-2"), True),
        (Known("replica-2", speed=0.25), False),
        (Known("replica-2", frozen=[(0.5, 9.0)]), False),
    ],
)
def test_two_at_work_for_long_are_found(second: Known, broken: bool) -> None:
    """A holder that lost its lease could go on for ever; but one that is frozen, or has the
    wrong time, cannot know.
    """
    run = Run()
    run.play("jobs")
    run.play("batches")
    run.leave_trace("jobs", "a", at=(0.0, 10.0))
    run.leave_trace("jobs", "b", at=(10.0 - OVERLAP_S_MAX - 0.1, 11.0), by=second)
    assert any(wrong.startswith("A3 broken") for wrong in run.wrongs) is broken


def test_traces_are_read_as_they_were_left(tmp_path: Path) -> None:
    """Work that was broken off would be taken for work that was done."""

    @dataclass
    class Item:
        id: int
        lock_token: Any

    @dataclass
    class Token:
        hex: str

    traces, known = Traces(tmp_path / "replica-1.traces"), cast("Replica", Known())
    with traces.of(cast("Any", Item(1, Token("a"))), "jobs", 4):
        pass
    with pytest.raises(ConnectionError), traces.of(cast("Any", Item(1, Token("b"))), "jobs", 5):
        raise ConnectionError
    done, broken_off = read_work(tmp_path, [known])
    assert (done.place, done.number, done.token, done.is_done) == (("jobs", "1"), 4, "a", True)
    assert (broken_off.number, broken_off.is_done) == (5, False)
    assert broken_off.ended is not None
