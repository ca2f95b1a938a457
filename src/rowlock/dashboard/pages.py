"""The pages: each asks one question, and shows its answer as it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from rowlock.dashboard.drawing.sparkline import points_of, rates_between
from rowlock.dashboard.guarding.authorizing import ViewerAction
from rowlock.dashboard.live import LiveResponse
from rowlock.dashboard.reported import queue_text, queues_of
from rowlock.dashboard.visits import PageVisit
from rowlock.dashboard.wings import graphs_part, streams_part
from rowlock.insight.checking.finding import Findings
from rowlock.insight.explanation import Explanation
from rowlock.insight.insight import Insight
from rowlock.insight.listing.row_page import ListedState
from rowlock.insight.naming import mapped_model, pipeline_named
from rowlock.pipelines.settings import PipelineSettings
from rowlock.rows.leased_table import LeasedTable

Answer: TypeAlias = Response | ASGIApp
Handler: TypeAlias = Callable[[PageVisit], Awaitable[Answer]]

ENTRIES_SHOWN = 30
"""How many things that happened to a row are shown, the newest."""
ROW_ACTIONS = ("unpark", "park", "make_due", "release")
STATUS_WITHIN = timedelta(seconds=2)
"""For how long pipelines are asked; then the page shows what there is by then."""
LIVE_TOPICS = frozenset({"pipelines", "replicas", "rows", "row", "streams", "graphs"})
PIPELINE_ACTIONS = ("pause", "resume")


async def pipelines_page(visit: PageVisit) -> Response:
    """Show whether anything waits too long."""
    part = await pipelines_part(visit)
    return visit.page("pipelines.html", live=visit.addresses.live("pipelines"), part=part)


async def pipelines_part(visit: PageVisit) -> str:
    """Return the pipelines, each with its numbers."""

    async def make() -> str:
        status = await visit.insight.status(within=STATUS_WITHIN)
        lines = {
            one.pipeline: points_of(rates_between(visit.observer.samples(one.pipeline)))
            for one in status.pipelines
            if visit.observer is not None
        }
        queues = queues_of(status)
        return visit.part("parts/pipelines.html", status=status, lines=lines, queues=queues)

    return await visit.recent.get(("pipelines", visit.addresses.base), make)


async def replicas_page(visit: PageVisit) -> Response:
    """Show which replicas live."""
    part = await replicas_part(visit)
    return visit.page("replicas.html", live=visit.addresses.live("replicas"), part=part)


async def replicas_part(visit: PageVisit) -> str:
    """Return the replicas."""

    async def make() -> str:
        replicas = await visit.insight.replicas()
        return visit.part("parts/replicas.html", replicas=replicas, queue_text=queue_text)

    return await visit.recent.get(("replicas", visit.addresses.base), make)


async def checks_page(visit: PageVisit) -> Response:
    """Show what is to be mended in the database; asked when the page is opened, and not again."""
    findings = await visit.recent.get("checks", lambda: findings_of(visit.insight))
    return visit.page("checks.html", findings=findings)


async def findings_of(insight: Insight) -> Findings:
    """Return all that a check finds."""
    return Findings(await insight.check(), len(insight.pipelines))


async def rows_page(visit: PageVisit) -> Response:
    """Show the rows of one state."""
    asked = visit.request.query_params
    name, state = visit.request.path_params["name"], asked.get("state", ListedState.DUE.value)
    after = asked.get("after")
    live = visit.addresses.live("rows", pipeline=name, state=state) if after is None else None
    part = await rows_part(visit, name, state, after=after)
    model = pipeline_named(name, visit.insight.pipelines.values()).leased.name
    # The field for a key is a form; what is typed into it is not wiped.
    return visit.page(
        "rows.html", live=live, has_form=True, part=part, name=name, state=state, model=model
    )


async def rows_part(visit: PageVisit, name: str, state: str, *, after: str | None = None) -> str:
    """Return a page of rows."""

    async def make() -> str:
        page = await visit.insight.rows(name, state, after=after)
        status = await visit.recent.get(("counts", name), lambda: visit.insight.status_of(name))
        return visit.part("parts/rows.html", page=page, counts=status.counts, after=after)

    return await visit.recent.get(("rows", visit.addresses.base, name, state, after), make)


async def row_page(visit: PageVisit) -> Response:
    """Show why a row waits, and what the viewer may do."""
    return await explained(visit, *row_asked(visit))


def row_asked(visit: PageVisit) -> tuple[str, str]:
    """Return the model and the key that the address names."""
    key = visit.request.path_params.get("row_id") or visit.request.query_params.get("id", "")
    return visit.request.path_params["model"], key


async def explained(
    visit: PageVisit, model: str, row_id: str, *, trouble: str | None = None, status: int = 200
) -> Response:
    """Return the page of a row; `trouble` is why an action was refused."""
    explanation = await visit.insight.explain(model, row_id)
    wanted = [ViewerAction(name, model, row_id) for name in acts_on(visit, model, explanation)]
    may = await visit.may(*wanted)
    return visit.page(
        "row.html",
        status=status if explanation.is_there else 404,
        live=visit.addresses.live("row", model=model, id=row_id),
        has_form=True,
        part=await row_part_of(visit, explanation, model),
        explanation=explanation,
        model=model,
        trouble=trouble,
        acts=[name for name, is_allowed in may.items() if is_allowed],
    )


def acts_on(visit: PageVisit, model: str, explanation: Explanation) -> tuple[str, ...]:
    """Return what can be done to a row."""
    if not explanation.is_there or explanation.lease is None:
        return ()
    mapped = mapped_model(model, visit.insight.pipelines.values())
    return ROW_ACTIONS if LeasedTable.of(mapped).has_schedule else ("release",)


async def row_part_of(visit: PageVisit, explanation: Explanation, model: str) -> str:
    """Return the explanation, and what happened to the row where the host keeps that."""
    tables = visit.insight.tables
    timeline = None
    if tables is not None and tables.history is not None:
        timeline = await visit.insight.timeline(model, explanation.row_id, limit=ENTRIES_SHOWN)
    return visit.part("parts/row.html", explanation=explanation, timeline=timeline)


async def row_part(visit: PageVisit, model: str, row_id: str) -> str:
    """Return the explanation as it is now."""

    async def make() -> str:
        return await row_part_of(visit, await visit.insight.explain(model, row_id), model)

    return await visit.recent.get(("row", visit.addresses.base, model, row_id), make)


async def pipeline_page(visit: PageVisit) -> Response:
    """Show the settings of a pipeline, and whether it is paused."""
    return await pipeline_shown(visit, visit.request.path_params["name"])


async def pipeline_shown(
    visit: PageVisit, name: str, *, trouble: str | None = None, status: int = 200
) -> Response:
    """Return the page of a pipeline; `trouble` is why an action was refused."""
    pipeline = pipeline_named(name, visit.insight.pipelines.values())
    line = await visit.recent.get(("counts", name), lambda: visit.insight.status_of(name))
    plan = await visit.recent.get(("plan", name), lambda: visit.insight.explain_claim(name))
    may = await visit.may(*(ViewerAction(each, pipeline=name) for each in PIPELINE_ACTIONS))
    wanted = "pause" if line.pause is None else "resume"
    return visit.page(
        "pipeline.html",
        status=status,
        has_form=True,
        line=line,
        plan=plan,
        settings=settings_of(pipeline.settings),
        model=pipeline.leased.name,
        trouble=trouble,
        act=wanted if may[wanted] else None,
    )


def settings_of(settings: PipelineSettings) -> list[tuple[str, str]]:
    """Return settings as texts."""
    names = sorted(type(settings).model_fields)
    return [(name, setting_text(getattr(settings, name))) for name in names]


def setting_text(value: object) -> str:
    """Return one setting as a text."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():,g} s"
    if isinstance(value, tuple):
        return ", ".join(map(setting_text, value))
    return str(value)


async def live_stream(visit: PageVisit) -> Answer:
    """Keep one page up to date."""
    topic, asked = visit.request.path_params["topic"], visit.request.query_params
    if topic not in LIVE_TOPICS:
        raise HTTPException(404, "There is no such page.")

    async def make() -> str:
        match topic:
            case "pipelines":
                return await pipelines_part(visit)
            case "replicas":
                return await replicas_part(visit)
            case "streams":
                return await streams_part(visit)
            case "graphs":
                return await graphs_part(visit)
            case "rows":
                return await rows_part(visit, asked.get("pipeline", ""), asked.get("state", ""))
            case _:
                return await row_part(visit, asked.get("model", ""), asked.get("id", ""))

    return LiveResponse(visit.streams, f"{topic}:{asked}", make)
