"""What a host forgets in its tests is one sentence of the kit's, and no error of Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from rowlock import (
    ConfigurationError,
    Pipeline,
    PipelineError,
    make_due,
    park,
    request_update,
    unpark,
)
from rowlock.dispatch import DispatchPipeline
from rowlock.testing import (
    PipelineContract,
    TemporaryDatabase,
    crash_everywhere,
    run_until_settled,
    stepping,
)

from ..dispatch.renders import Fleet, Render, Scenes
from ..host import Attachment, Base
from .test_contract import AttachmentPipeline

pytestmark = pytest.mark.either_database


class Contract(PipelineContract[Attachment]):
    pipeline_class = AttachmentPipeline

    def ready_row(self) -> Attachment:
        return Attachment()


class WithoutClass(Contract):
    pipeline_class: Any = None


class WithInstance(Contract):
    pipeline_class: Any = AttachmentPipeline()


class WithRowClass(Contract):
    def ready_row(self) -> Any:
        return Attachment


CASES: list[tuple[Callable[[TemporaryDatabase], Any], str]] = [
    (lambda one: steps(one.session_factory, AttachmentPipeline), "such as VolumePipeline\\(\\)"),
    (lambda one: steps(one.session_factory, None), "is an instance of a Pipeline subclass"),
    (lambda one: steps(None, AttachmentPipeline()), "must make AsyncSession objects"),
    (lambda one: steps(sessionmaker(), AttachmentPipeline()), "must make AsyncSession objects"),
    (lambda one: steps(one.session_factory, AttachmentPipeline()), "fixture rowlock_metadata"),
    (lambda one: run_until_settled(one.session_factory, AttachmentPipeline()), "a list of"),  # type: ignore[arg-type]
    (lambda one: run_until_settled(one.session_factory, [Pipeline]), "is an instance of"),  # type: ignore[list-item]
    (lambda one: crash(one, AttachmentPipeline), "is an instance of"),
    (lambda one: crash(one.session_factory, AttachmentPipeline()), "a TemporaryDatabase"),
    (lambda one: one.create_tables(Base), "such as Base.metadata"),  # type: ignore[arg-type]
    (lambda one: one.create_tables(None), "such as Base.metadata"),  # type: ignore[arg-type]
    (lambda one: contract(WithoutClass(), one), "WithoutClass must say which class it tests"),
    (lambda one: contract(WithInstance(), one), "WithInstance must say which class it tests"),
    (lambda one: contract(WithRowClass(), one), "WithRowClass is a new instance, not"),
    (lambda one: contract(Contract(), one), "fixture rowlock_metadata"),
    (lambda one: contract(Contract(), None), "must make AsyncSession objects"),
]


async def steps(sessions: Any, pipeline: Any) -> None:
    async with stepping(sessions, pipeline) as found:
        await found.fetch_once()


async def crash(database: Any, pipeline: Any) -> None:
    await crash_everywhere(
        database, row=Attachment, world=dict, build=lambda world: pipeline, effects=dict
    )


async def contract(tests: Contract, database: TemporaryDatabase | None) -> None:
    sessions: Any = None if database is None else database.session_factory
    await tests.test_unlocks_on_success(sessions)


@pytest.mark.parametrize(("misuse", "message"), CASES)
async def test_the_kit_has_its_own_words(
    database_with_clock: TemporaryDatabase, misuse: Callable[[TemporaryDatabase], Any], message: str
) -> None:
    """No metadata, a class instead of an instance, no session factory: one sentence says what to
    write.
    """
    with pytest.raises((ConfigurationError, PipelineError, TypeError), match=message):
        await misuse(database_with_clock)


renders = DispatchPipeline(Render, handler=Scenes(), engine=Fleet(1))
SYNC: list[Callable[[Any], Any]] = [
    lambda session: make_due(session, Render()),
    lambda session: park(session, Render(), "x"),
    lambda session: unpark(session, Render()),
    lambda session: unpark(session, Render, where=Render.id.is_not(None)),
    lambda session: request_update(session, Render, 1, {}),
    lambda session: renders.submit(session, dedup_key="a"),
    lambda session: renders.cancel(session, dedup_key="a"),
    renders.count_active,
]


@pytest.mark.parametrize("call", SYNC)
async def test_a_sync_session_is_refused_in_our_words(call: Callable[[Any], Any]) -> None:
    """A host reads what to pass, and nothing of what cannot be awaited."""
    with Session() as session, pytest.raises(TypeError, match="pass an AsyncSession, not a"):
        await call(session)
