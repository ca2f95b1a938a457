"""The pipeline of every example passes the tests that each pipeline should pass, on both
databases.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from httpx import AsyncClient, MockTransport, Request, Response
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import Pipeline
from rowlock.testing import PipelineContract, TemporaryDatabase

from .example_modules import EXAMPLES, example, part
from .test_examples import EXPECTED

pytestmark = pytest.mark.either_database

TESTED_BY_ITSELF = 5
NO_PIPELINE = 10
STREAMS = {13, 14, 15, 16}
"""Their pipelines are made by the library; ``test_example_recounts.py`` tests the examples."""
WATCHED = {18, 19, 21, 22}
"""Hosts of the pipelines of 17 and 20."""
FLEET = 1
LONG_LEASES = {"lock_timeout": timedelta(minutes=10), "heartbeat_trigger": timedelta(minutes=5)}
"""For leases that are short in an example: no heart beats here, and a busy machine is slow."""


class ExampleContract(PipelineContract[Any]):
    """`PipelineContract` for a pipeline of an example: its number, and columns of its rows."""

    number: int
    model: str
    ready: dict[str, Any]
    unready: dict[str, Any]

    @pytest.fixture
    async def session_factory(
        self, database: TemporaryDatabase, tmp_path: Path
    ) -> async_sessionmaker[AsyncSession]:
        """Give the example its tables, and the fleet to which instances belong."""
        self.folder, self.sessions = tmp_path, database.session_factory
        model = self.find(self.model)
        await database.create_tables(model.metadata)
        if self.model == "Instance":
            async with self.sessions.begin() as session:
                session.add(self.find("Fleet")(id=FLEET, name="f", status="packed"))
        return self.sessions

    def find(self, name: str) -> Any:
        return getattr(example(self.number), name)

    def ready_row(self) -> Any:
        return self.find(self.model)(
            **{name: self.value(value) for name, value in self.ready.items()}
        )

    def unready_row(self) -> Any:
        values = self.ready | self.unready
        return self.find(self.model)(**{name: self.value(value) for name, value in values.items()})

    def value(self, value: Any) -> Any:
        """Return a new value where each row needs one of its own."""
        return uuid.uuid4().hex if value is str else value


class TestFirstRow(ExampleContract):
    number, model = 0, "Volume"
    ready, unready = {"status": "submitted"}, {"status": "active"}

    def build(self) -> Pipeline[Any]:
        return self.find("VolumePipeline")()


class TestVolumes(ExampleContract):
    number, model = 1, "Volume"
    ready, unready = {"name": "a", "size_gb": 1}, {"status": "active"}

    def build(self) -> Pipeline[Any]:
        return self.find("VolumePipeline")()


class TestCertificates(ExampleContract):
    """Example 2, whose rows always want work: only a parked one wants none."""

    number, model = 2, "Certificate"
    ready, unready = {"domain": str}, {"parked_at": datetime(2026, 1, 1, tzinfo=UTC)}

    def build(self) -> Pipeline[Any]:
        """Return a new pipeline, and an authority that knows every domain."""
        authority = self.find("Authority")()
        authority.registered = _Everything()
        return self.find("CertificatePipeline")(authority)


class _Everything(set[str]):
    def __contains__(self, _: object) -> bool:
        return True


class TestVolumesInsideFastapi(ExampleContract):
    number, model = 3, "Volume"
    ready, unready = {"size_gb": 1}, {"status": "active"}

    def build(self) -> Pipeline[Any]:
        return self.find("VolumePipeline")()


class TestVolumesOfTwoReplicas(ExampleContract):
    number, model = 4, "Volume"
    ready, unready = {}, {"status": "active"}

    def build(self) -> Pipeline[Any]:
        async def nothing(sessions: Any, volume_id: uuid.UUID) -> None:
            return

        return self.find("VolumePipeline")(
            self.sessions, self.find("Cloud")(self.folder), meanwhile=nothing
        )


class TestInstancesOfFleets(ExampleContract):
    """Example 6, the pipeline whose rows are locked."""

    number, model = 6, "Instance"
    ready, unready = {"fleet_id": FLEET, "name": "b"}, {"status": "down"}

    def build(self) -> Pipeline[Any]:
        return self.find("InstancePipeline")()


class TestFleets(ExampleContract):
    number, model = 6, "Fleet"
    ready, unready = {"name": str}, {"status": "packed"}

    def build(self) -> Pipeline[Any]:
        return self.find("FleetPipeline")()

    def related_rows(self, row: Any) -> Sequence[Any]:
        return [self.find("Instance")(fleet_id=row.id, name=name) for name in "abc"]


class TestJobsThatShare(ExampleContract):
    number, model = 7, "Job"
    ready, unready = {"name": str}, {"status": "placed"}

    def build(self) -> Pipeline[Any]:
        return self.find("JobPipeline")()

    async def prepare(self, session: AsyncSession) -> None:
        session.add(self.find("Fleet")(id=FLEET, name="f", status="packed"))

    def related_rows(self, row: Any) -> Sequence[Any]:
        return [self.find("Instance")(fleet_id=FLEET, name="a")]


class TestJobsThatAreStopped(ExampleContract):
    """Example 8, the pipeline that services ask to stop."""

    number, model = 8, "Job"
    ready, unready = {"name": str}, {"status": "running"}

    def build(self) -> Pipeline[Any]:
        """Return a new pipeline whose work ends at once."""
        return self.find("JobPipeline")(_done(self.find("Steps")()))


class TestInstancesThatAreHeld(ExampleContract):
    """Example 8, the pipeline whose rows services hold."""

    number, model = 8, "Instance"
    ready, unready = {"fleet_id": FLEET, "name": "b"}, {"status": "down"}

    def build(self) -> Pipeline[Any]:
        """Return a new pipeline whose work ends at once."""
        return self.find("InstancePipeline")(_done(self.find("Steps")()))


class TestRenders(ExampleContract):
    """Example 9: what is dispatched is a pipeline like any other."""

    number, model = 9, "Render"
    ready, unready = (
        {"dedup_key": str, "x": 0.0, "y": 0.0, "zoom": 1.0, "width": 16},
        {"status": "completed"},
    )

    def find(self, name: str) -> Any:
        """Return a table of the service that the example talks to."""
        return getattr(part("rendering.tables"), name)

    def build(self) -> Pipeline[Any]:
        built: Pipeline[Any] = part("rendering.service").pipeline_of(self.folder)
        built.settings = built.settings.model_copy(update=LONG_LEASES)
        return built


class TestBackup(ExampleContract):
    """Example 11, whose items run a graph each."""

    number, model = 11, "Archive"
    ready, unready = {"path": str}, {"status": "stored"}

    def build(self) -> Pipeline[Any]:
        """Return a new pipeline, and a bucket that takes everything."""
        bucket = _client(lambda request: Response(404 if request.method == "HEAD" else 201))
        network = self.find("Network")()
        built: Pipeline[Any] = self.find("Backup")("only", bucket, network, stops_at=9)
        built.settings = built.settings.model_copy(update=LONG_LEASES)
        return built

    def value(self, value: Any) -> Any:
        """Return the path of a new archive with one member, where a path is wanted."""
        if value is not str:
            return value
        path = self.folder / f"{uuid.uuid4().hex}.zip"
        with ZipFile(path, "w") as archive:
            archive.writestr("only.txt", "text")
        return str(path)


class TestIngest(ExampleContract):
    """Example 12, whose rows pass through one graph."""

    number, model = 12, "Document"
    ready, unready = {"url": "http://site.test/1"}, {"status": "indexed"}

    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(EXAMPLES)

    def find(self, name: str) -> Any:
        return getattr(part("ingesting.tables"), name)

    def build(self) -> Pipeline[Any]:
        """Return a new pipeline, and a site where each page is there."""
        site = _client(lambda request: Response(200, content=b"<p>text</p>"))
        journal = str(self.folder / "journal")
        built: Pipeline[Any] = part("ingesting.pipeline").Ingest(
            "only", site, self.sessions, journal=journal
        )
        built.settings = built.settings.model_copy(update=LONG_LEASES)
        return built


class TestWatched(ExampleContract):
    """Example 17, whose pipeline its neighbours have, too."""

    number, model = 17, "Volume"
    ready, unready = {"status": "submitted"}, {"status": "active"}

    def find(self, name: str) -> Any:
        return getattr(part("watching.volumes"), name)

    def build(self) -> Pipeline[Any]:
        built: Pipeline[Any] = self.find("VolumePipeline")()
        return built


class TestShown(ExampleContract):
    number, model = 20, "Volume"
    ready, unready = {"cloud": "cloud-6"}, {"status": "active"}

    def build(self) -> Pipeline[Any]:
        built: Pipeline[Any] = self.find("VolumePipeline")()
        return built


def _client(answer: Callable[[Request], Response]) -> AsyncClient:
    return AsyncClient(base_url="http://server.test", transport=MockTransport(answer))


def _done(steps: Any) -> Any:
    steps.may_end.set()
    return steps


def test_every_example_is_tested() -> None:
    """A new example would be copied before its pipeline was tested."""
    numbers = {int(name.split("_")[0]) for name in EXPECTED}
    tested = {kind.number for kind in ExampleContract.__subclasses__()}
    assert numbers == tested | STREAMS | WATCHED | {TESTED_BY_ITSELF, NO_PIPELINE}
    assert len(list(EXAMPLES.glob("*.py"))) == len(numbers)
