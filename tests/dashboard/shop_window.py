"""A dashboard over the shop of ``tests/insight``, and a browser that speaks to it without a
socket.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from httpx import ASGITransport, AsyncClient, Response
from sqlalchemy import ColumnElement, insert
from sqlalchemy.orm import Mapped, mapped_column

from rowlock import LockColumns, PipelineManager, ScheduleColumns
from rowlock.clock import utc_now
from rowlock.dashboard import Dashboard, Viewer, ViewerAction, dashboard, guarding, visits
from rowlock.insight import insight_tables
from rowlock.testing import TemporaryDatabase

from ..insight.shop import TOKEN, Base, FleetPipeline, Quiet, Volume, VolumePipeline

TABLES: Final = insight_tables(Base.metadata, history=True)
ORIGIN: Final = "http://shop.test:8000"
"""Of a name that no browser trusts, so that it sends no Sec-Fetch-Site."""
TOKEN_FIELD: Final = re.compile(r'name="token" value="([\w-]+)"')


class Label(LockColumns, ScheduleColumns, Base):
    """A row with a key that somebody else has chosen."""

    __tablename__ = "labels"
    id: Mapped[str] = mapped_column(primary_key=True)


class LabelPipeline(Quiet):
    model = Label

    def ready(self) -> ColumnElement[bool]:
        return Label.id != ""


def ago(seconds: float) -> datetime:
    """Return a time that is so long past by the machine's clock, which the databases have."""
    return utc_now() - timedelta(seconds=seconds)


def be_generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a page, a part of it and an answer of the host a minute each."""
    monkeypatch.setattr(dashboard, "PAGE_S_MAX", 60.0)
    monkeypatch.setattr(visits, "PART_S_MAX", 60.0)
    monkeypatch.setattr(guarding, "AUTHORIZE_S_MAX", 60.0)


def everything(_request: object, _action: ViewerAction) -> Viewer:
    return Viewer("alice")


def manager_of(database: TemporaryDatabase) -> PipelineManager:
    """Return a manager of all pipelines of the shop, which is not started."""
    pipelines = [VolumePipeline(), FleetPipeline(), LabelPipeline()]
    return PipelineManager(database.session_factory, pipelines, gates=[TABLES.pause_gate])


async def furnished(database: TemporaryDatabase) -> None:
    """Make the tables, and volume 17, which is leased and whose lease has ended."""
    await database.create_tables(Base.metadata)
    lease = {"lock_owner": "VolumePipeline", "lock_token": TOKEN, "lock_expires_at": ago(60)}
    async with database.engine.begin() as connection:
        await connection.execute(insert(Volume).values(id=17, status="submitted", **lease))


@asynccontextmanager
async def browser(
    database: TemporaryDatabase,
    *,
    authorize: Callable[..., Any] = everything,
    origin: str = ORIGIN,
    app: Any = None,
) -> AsyncIterator[AsyncClient]:
    app = app or Dashboard(manager_of(database), authorize=authorize)
    async with AsyncClient(transport=ASGITransport(app), base_url=origin) as client:
        yield client


def shown_form(page: Response) -> dict[str, str]:
    """Return the hidden fields of the form on a page."""
    fields = re.findall(r'<input type="hidden"[^>]* name="(\w+)" value="([^"]*)"', page.text)
    return dict(fields)


async def acted(
    client: AsyncClient, address: str, form: dict[str, str], **headers: str
) -> Response:
    """Send a form as a page of the same origin does."""
    sent = {"origin": ORIGIN} | headers
    return await client.post(address, data=form, headers=sent)
