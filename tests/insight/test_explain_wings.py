"""What an explanation says of flows and graphs: how far they are and what they wait for, beside the
row that stands for them.
"""

from __future__ import annotations

from sqlalchemy import String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import PipelineManager
from rowlock.insight import Insight, PipelineExplanation, Verdict
from rowlock.insight.counting.replicas import LiveReplicas, ReplicaState
from rowlock.insight.counting.running import with_replicas
from rowlock.insight.lines import lines_of
from rowlock.streams import EventColumns, StepContext, Streams
from rowlock.streams.tables import StreamTables
from rowlock.testing import TemporaryDatabase

from ..shopwindow.test_verdicts_page import ROW


class Base(DeclarativeBase):
    """Classes of this host alone."""


class Payment(EventColumns, Base):
    """A fact."""

    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(40))
    cents: Mapped[int]


STREAMS = Streams(Base)
BALANCES = STREAMS.flow("balances", Payment, shards=2)
COUNTS = STREAMS.flow("counts", Payment, shards=1)


@BALANCES.by_key(state=int)
def add(step: StepContext, account: str, cents: int | None, payments: list[Payment]) -> int:
    """Add payments to the balance of their account."""
    return (cents or 0) + sum(payment.cents for payment in payments)


@COUNTS.by_key(state=int)
def count(step: StepContext, account: str, seen: int | None, payments: list[Payment]) -> int:
    """Count the payments of an account."""
    return (seen or 0) + len(payments)


def block_of(answer: tuple[PipelineExplanation, ...], flow: str) -> PipelineExplanation:
    """Return what an explanation says for the pipeline of a flow."""
    [found] = [one for one in answer if flow in one.pipeline]
    return found


async def test_a_row_of_a_flow_says_how_far_it_is(database: TemporaryDatabase) -> None:
    """A shard that no replica holds would look as if the flow did not want it, and its flow would
    have to be looked up by another command.
    """
    await database.create_tables(Base.metadata)
    async with PipelineManager(database.session_factory, STREAMS.pipelines()):
        async with database.session_factory.begin() as session:
            session.add(payment := Payment(account="a", cents=5))
            BALANCES.hint_after_commit(session)
        await BALANCES.wait_for(database.session_factory, payment, timeout=60)
    async with database.session_factory.begin() as session:
        session.add(Payment(account="a", cents=5))
    tables = StreamTables.of(Base)
    of_flow = tables.shards.c.flow_id == tables.flows.c.id
    found = select(tables.flows.c.id, tables.shards.c.id).where(of_flow)
    async with database.engine.connect() as connection:
        rows = await connection.execute(found.where(tables.flows.c.name == "balances"))
        flow, shard = rows.first() or ("", "")
    # A process that runs none of them, as that of a command.
    insight = Insight(database.session_factory, STREAMS.pipelines())
    for model, key in ((tables.flow_model, flow), (tables.shard_model, shard)):
        answer = (await insight.explain(model, key)).pipelines
        own, other = block_of(answer, "balances"), block_of(answer, "counts")
        [line] = [line for line in own.lines if line.name == "flow"]
        assert line.answer == "balances"
        assert ", 1 row behind" in line.detail.replace("rows", "row")
        assert not [line for line in other.lines if line.name == "flow"]
        assert other.verdict is Verdict.NOT_READY
        assert own.verdict is not Verdict.NOT_READY
    texts = [(await insight.explain_pipeline(name)).text() for name in insight.pipelines]
    assert any("flow balances: running, " in text for text in texts)


def test_a_row_of_a_graph_says_what_is_inside() -> None:
    """A person would not see that a row waits for an operator that holds the others up."""
    report = {"VolumePipeline": {"graph": {"held": 1_200, "bottleneck": "render"}}}
    replica = ReplicaState(
        "3fa2c1d0", "web-7", "host", 1, 1.0, 60.0, draining=False, report={"pipelines": report}
    )
    facts = with_replicas(ROW, LiveReplicas(ROW.at, (replica,)))
    line = lines_of(facts)[-1]
    assert (line.name, line.answer) == ("graph", "1,200")
    assert line.detail == "values inside, slowest at render"
