"""What an explanation says of flows and graphs: how far they are and what they wait for, beside the
row that stands for them.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from sqlalchemy import MetaData, String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import PipelineManager
from rowlock.__main__ import command_parser
from rowlock.insight import Insight, PipelineExplanation, Verdict, insight_tables
from rowlock.insight.explanation import lines_of, with_replicas
from rowlock.insight.replicas import LiveReplicas, ReplicaState
from rowlock.insight.verdicts import PipelinePause, finding_of
from rowlock.streams import EventColumns, StepContext, Streams
from rowlock.streams.tables import StreamTables
from rowlock.testing import TemporaryDatabase

from ..shopwindow.test_verdicts_page import ROW


class Base(DeclarativeBase):
    """Classes of this host alone."""


class Payment(EventColumns, Base):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(40))
    cents: Mapped[int]


STREAMS = Streams(Base)
BALANCES = STREAMS.flow("balances", Payment, shards=2)
COUNTS = STREAMS.flow("counts", Payment, shards=1)


@BALANCES.by_key(state=int)
def add(step: StepContext, account: str, cents: int | None, payments: list[Payment]) -> int:
    return (cents or 0) + sum(payment.cents for payment in payments)


@COUNTS.by_key(state=int)
def count(step: StepContext, account: str, seen: int | None, payments: list[Payment]) -> int:
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
    # Tables of ours have few rows, and no host can give them an index.
    assert not any("none serves the claim" in text for text in texts)
    assert any("  index     none is needed: the table is small" in text for text in texts)


async def test_what_is_to_be_done_about_a_flow_can_be_typed(database: TemporaryDatabase) -> None:
    """A person at night would get a command that the shell takes apart, or a call that no Python
    has: the pipelines of a flow are no classes of the host.
    """
    metadata = MetaData()
    tables = insight_tables(metadata, replicas=False)
    await database.create_tables(Base.metadata)
    await database.create_tables(metadata)
    manager = PipelineManager(
        database.session_factory, STREAMS.pipelines(), gates=[tables.pause_gate]
    )
    insight = Insight.of(manager)
    who = {"by": "alice", "reason": "provider down"}
    await insight.pause("Flow balances", **who)
    view = await insight.explain_pipeline("Flow balances")
    words = shlex.split(view.do)[1:]
    options = command_parser(words).parse_args(words)
    await insight.resume(options.pipeline, **who)
    paused = replace(ROW, pipeline="Flow balances", pause=PipelinePause("alice", None, ""))
    words = shlex.split(finding_of(Verdict.PAUSED, paused).do)[1:]
    assert command_parser(words).parse_args(words).pipeline == "Flow balances"
    assert "register streams.pipelines() with" in finding_of(Verdict.NOBODY_RUNS, paused).do
    page = replace(await insight.rows("Flow balances", "due"), next="cursor")
    words = shlex.split(page.text().splitlines()[-1])[2:]
    assert command_parser(words).parse_args(words).pipeline == "Flow balances"


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
