"""What a story of a flow says, and which boundaries count in it.

The one idea: boundaries are counted within transactions of some purposes, and belong to these
alone, so the n-th one is about the same statement in each run, whatever else goes on beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.pipelines.context import PipelineContext

from ...failpoints.stories import Scene
from .host import Flow

When = Callable[[PipelineContext[Any], str], bool]
"""Whether boundaries count in a transaction of a purpose."""
Sessions = async_sessionmaker[AsyncSession]
Play = Callable[[Scene, "FlowStory"], Awaitable[None]]
Act = Callable[[Sessions, "FlowStory"], Awaitable[None]]


@dataclass(frozen=True)
class FlowStory:
    """What a replica does, and who goes on.

    Attributes:
        name: for the test's id, and for the table; with the number of steps of a checkpoint where
            both kinds are tried.
        about: what is cut short, for the table.
        dies_before: the statement, or how it begins, before which a replica dies in each run of the
            tests: a part is written and a part is not.
        flow: declares the flow.
        play_it: what is done.
        before: what was done before, by a replica that has ended well.
        heir: what another replica, or a service, does afterwards.
        when: makes the condition for transactions whose boundaries are tried.
        rows: what is put in before.
        shards: how many there are at the end.
        days: that pass between `before` and `play`.
        afterwards: what is done when no snapshot is kept any longer.
    """

    name: str
    about: str
    dies_before: str
    flow: Callable[[], Flow]
    play_it: Play
    before: Act
    heir: Act
    when: Callable[[], When]
    rows: Callable[[], Sequence[Any]]
    shards: int = 2
    days: int = 0
    afterwards: Act | None = None

    async def play(self, scene: Scene) -> None:
        await self.play_it(scene, self)


@contextmanager
def transactions_armed(
    scene: Scene, when: When, *, behind: Callable[[str], Awaitable[None]] | None = None
) -> Iterator[None]:
    """Count boundaries inside of the transactions of pipelines for which `when` holds.

    Args:
        scene: of the replica.
        when: asked before each transaction.
        behind: awaited behind each transaction that has ended well, with its purpose.
    """
    original: Any = PipelineContext.transact

    async def transact(context: Any, work: Any, *, purpose: str, **options: Any) -> Any:
        with scene.points.armed_here() if when(context, purpose) else nullcontext():
            result = await original(context, work, purpose=purpose, **options)
        if behind is not None:
            await behind(purpose)
        return result

    PipelineContext.transact = transact  # type: ignore[method-assign]
    try:
        yield
    finally:
        PipelineContext.transact = original  # type: ignore[method-assign]


def of(*purposes: str, skip: int = 0, owner: str | None = None) -> Callable[[], When]:
    """Return what makes conditions for transactions of these purposes.

    Args:
        purposes: which ones.
        skip: how many do not count at first.
        owner: only those of this pipeline count.
    """

    def new() -> When:
        passed = 0

        def is_one(context: PipelineContext[Any], purpose: str) -> bool:
            nonlocal passed
            counts = purpose in purposes and owner in {None, context.name}
            passed += counts
            return counts and passed > skip

        return is_one

    return new


def never() -> When:
    """Return the condition for no transaction: the story arms its own."""
    return lambda *_: False


def at_the_end() -> When:
    """Return the condition for all that is done once the replica is to stop."""
    return lambda context, _: context.stop.is_set()
