"""Request handlers change rows that pipelines work on, without losing what either of them wrote.

The one idea: there are two ways, and the API shows which. What can wait is *requested*: the handler
writes a column of its own whoever holds the row, answers 202, and an outcome that did not know of
it is not written (`intent`). What must be decided now is done *under the row's lease*: the handler
holds the row like a pipeline does, or answers 423 and says when to come back.

Run it: ``python examples/08_services_respect_leases.py`` (needs ``pip install fastapi httpx``). Its
tables are those of ``examples/hosting/tables.py``. It talks to itself within the process, ends by
itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from hosting.tables import Base, Fleet, Instance, Job
from httpx import ASGITransport, AsyncClient, Response
from pydantic import BaseModel, Field
from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import (
    Apply,
    LockWaitTimeout,
    Outcome,
    Pipeline,
    PipelineItem,
    PipelineManager,
    hint_after_commit,
    hold_rows,
    lock_unique_names,
    request_update,
)

PATIENCE_S = 0.2
"""How long a request waits for a row that is leased. **Unit** seconds."""
POLL_S = 0.02
WAIT_S_MAX = 20.0


class Steps:
    """Stands in for slow work: it begins, and ends when the example says so."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def take(self) -> None:
        """Do the work."""
        self.has_begun.set()
        await self.may_end.wait()


class JobPipeline(Pipeline[Job]):
    """Starts submitted jobs, and stops those that are to be stopped."""

    model = Job
    # the services' column: an outcome that does not know its value is not written
    intent = (Job.to_be_stopped,)

    def __init__(self, starting: Steps) -> None:
        super().__init__()
        self.starting = starting

    def ready(self) -> ColumnElement[bool]:
        """Submitted jobs want to run; running ones want something only if they are to be
        stopped.
        """
        return or_(Job.status == "submitted", (Job.status == "running") & Job.to_be_stopped)

    async def process(self, item: PipelineItem[Job]) -> Apply:
        """Bring the job to where it should be."""
        if item.row.to_be_stopped:
            return Apply({"status": "stopped"})
        await self.starting.take()
        return Apply({"status": "running"})

    async def on_stale(self, item: PipelineItem[Job], outcome: Outcome) -> None:
        """Take back what was started and not recorded."""
        print(
            f"{item.row.name}: was started, but is not wanted any more: not recorded, and taken"
            " back"
        )


class InstancePipeline(Pipeline[Instance]):
    """Probes instances."""

    model = Instance

    def __init__(self, probing: Steps) -> None:
        super().__init__()
        self.probing = probing

    def ready(self) -> ColumnElement[bool]:
        """Whatever is up is probed."""
        return Instance.status == "up"

    async def process(self, item: PipelineItem[Instance]) -> Apply:
        """Probe."""
        await self.probing.take()
        return Apply({"probes": item.row.probes + 1})


# The service --------------------------------------------------------------------------------------


class NewSize(BaseModel):
    """What an instance is to be changed to."""

    cpus: Annotated[int, Field(ge=1, le=128)]


async def create_job(request: Request) -> dict[str, str]:
    """Create a job under the next free name; who asks at the same moment gets the next one."""
    async with (
        request.app.state.sessions() as session,
        lock_unique_names(session, "job_names", timeout=5),
    ):
        taken = set(await session.scalars(select(Job.name)))
        name = next(
            name for number in range(len(taken) + 1) if (name := f"job-{number}") not in taken
        )
        session.add(Job(name=name))
        hint_after_commit(session, Job)
        await session.commit()
    return {"name": name}


async def read_job(name: str, request: Request) -> dict[str, str]:
    """Tell how far the job is."""
    async with request.app.state.sessions() as session:
        job = (await session.scalars(select(Job).where(Job.name == name))).one_or_none()
    if job is None:
        raise HTTPException(404)
    return {"status": job.status}


async def delete_job(name: str, request: Request) -> None:
    """Ask for the job to be stopped. It may be worked on just now; that is no reason to wait."""
    async with request.app.state.sessions.begin() as session:
        job_id = await session.scalar(select(Job.id).where(Job.name == name))
        if not await request_update(session, Job, job_id, {"to_be_stopped": True}):
            raise HTTPException(404)


async def resize_instance(instance_id: int, body: NewSize, request: Request) -> dict[str, int]:
    """Change an instance while nobody else does; what is read here stays true until it is
    committed.
    """
    sessions = request.app.state.sessions
    async with hold_rows(
        sessions, Instance, [instance_id], timeout=PATIENCE_S, owner="resize"
    ) as held:
        if not held.rows:
            raise HTTPException(404)
        if body.cpus < held.rows[0].cpus_used:
            raise HTTPException(409, f"{held.rows[0].cpus_used} are used")
        async with sessions.begin() as session:
            await held.guard(session)
            (await session.get_one(Instance, instance_id)).cpus = body.cpus
            hint_after_commit(session, Instance)
    return {"cpus": body.cpus}


async def say_when_to_come_back(request: Request, error: Exception) -> JSONResponse:
    """Answer 423 for a row that is leased, with the time that its lease still lasts where that
    is known.
    """
    assert isinstance(error, LockWaitTimeout)
    headers = (
        {} if error.seconds_left is None else {"Retry-After": str(math.ceil(error.seconds_left))}
    )
    return JSONResponse(
        {"detail": f"held by {error.holder or 'somebody'}"}, status_code=423, headers=headers
    )


def create_app(database_url: str, pipelines: list[Pipeline[Job] | Pipeline[Instance]]) -> FastAPI:
    """Build the application; it starts its pipelines when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine = create_async_engine(database_url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)  # a real host migrates
        app.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
        async with app.state.sessions.begin() as session:
            session.add(Fleet(id=1, name="main", status="packed"))
            session.add(Instance(id=1, fleet_id=1, name="a", cpus_used=4))
        async with PipelineManager(app.state.sessions, pipelines):
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    app.post("/jobs", status_code=202)(create_job)
    app.get("/jobs/{name}")(read_job)
    app.delete("/jobs/{name}", status_code=202)(delete_job)
    app.patch("/instances/{instance_id}")(resize_instance)
    app.add_exception_handler(LockWaitTimeout, say_when_to_come_back)
    return app


# Its client ---------------------------------------------------------------------------------------


async def ask_until(
    hoped_for: Callable[[Response], bool], ask: Callable[[], Awaitable[Response]]
) -> Response:
    """Ask until the answer is the one hoped for, as a patient client does."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            answer = await ask()
            if hoped_for(answer):
                return answer
            await asyncio.sleep(POLL_S)


async def stop_a_job_that_starts(client: AsyncClient, starting: Steps) -> None:
    """Ask for a stop while the job is being started: an outcome that knows nothing of it is
    under way.
    """
    answers = await asyncio.gather(client.post("/jobs"), client.post("/jobs"))
    first, second = sorted(answer.json()["name"] for answer in answers)
    print(f"POST /jobs, twice at once: {first}, {second}")
    await asyncio.wait_for(starting.has_begun.wait(), WAIT_S_MAX)
    answer = await client.delete(f"/jobs/{first}")
    print(f"DELETE /jobs/{first}: {answer.status_code}")
    starting.may_end.set()
    for name in (first, second):
        answer = await ask_until(
            lambda answer: answer.json()["status"] in {"running", "stopped"},
            partial(client.get, f"/jobs/{name}"),
        )
        print(f"GET /jobs/{name}: {answer.json()['status']}")


async def resize_an_instance_that_is_probed(client: AsyncClient, probing: Steps) -> None:
    """Ask for what cannot be decided while somebody else works on the row; come back when it is
    free.
    """
    resize = partial(client.patch, "/instances/1", json={"cpus": 16})
    await asyncio.wait_for(probing.has_begun.wait(), WAIT_S_MAX)
    show_resize(await resize())
    probing.may_end.set()
    # Other clients wait for as long as they were told; this one knows that the probe is over.
    show_resize(await ask_until(lambda answer: answer.status_code != 423, resize))
    show_resize(await client.patch("/instances/1", json={"cpus": 2}))


def show_resize(answer: Response) -> None:
    """Print an answer."""
    retry_after = answer.headers.get("Retry-After")
    print(
        f"PATCH /instances/1: {answer.status_code},"
        f" {answer.json()}{f', Retry-After {retry_after}' if retry_after else ''}"
    )


async def main(folder: Path) -> None:
    """Start the service and be its client."""
    starting, probing = Steps(), Steps()
    app = create_app(
        f"sqlite+aiosqlite:///{folder / 'app.db'}",
        [JobPipeline(starting), InstancePipeline(probing)],
    )
    transport = ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        await stop_a_job_that_starts(client, starting)
        await resize_an_instance_that_is_probed(client, probing)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
