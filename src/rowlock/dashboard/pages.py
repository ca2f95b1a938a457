"""The pages, and the same answers as JSON: each asks one question, and shows its answer as it is;
and what a form does: release, park, put back, make due, pause, resume.

A report of a replica was written by another process, maybe of another version, so nothing in it is
taken for granted.

An action needs the right to look, the right to act, a form of this origin, its token, a reason, and
the lease that was shown. Whatever lacks one of them is refused before anything is written, and the
audit log has it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp

from rowlock.clock import monotonic
from rowlock.dashboard.drawing import GraphDrawing, drawing_of, points_of, rates_between
from rowlock.dashboard.guarding import (
    NOT_ALLOWED,
    PageRefusal,
    ViewerAction,
    is_same_origin,
    is_token_of,
    read_form,
    refusal_of,
    seen_lease,
)
from rowlock.dashboard.visits import LiveResponse, PageVisit
from rowlock.errors import AppError, RowlockError
from rowlock.insight.actions import ActionDone
from rowlock.insight.explanation import Explanation
from rowlock.insight.questions import ListedState
from rowlock.insight.steering import Act, audit_refusal
from rowlock.spi import LeasedTable

if TYPE_CHECKING:
    # A wing may have been left out.
    from rowlock.graph import GraphStatistics
    from rowlock.streams import Streams, StreamStatus


# ---------------------------------------------------------------- flows and graphs


FLOWS_MAX: Final = 50
FLOWS_S_MAX: Final = 2.0  # seconds for questions to flows; the page names those that were left out
NOT_ASKED: Final = "Not asked: the flows before it took all the time that there was."
SHARDS_SHOWN: Final = 64


@dataclass(frozen=True, slots=True)
class ShownFlow:
    """A flow on its page; `status` is None, and `trouble` says why, if it could not be asked."""

    name: str
    status: StreamStatus | None
    trouble: str = ""

    @property
    def shards(self) -> list[Any]:
        shards = () if self.status is None else self.status.shards
        return sorted(shards, key=lambda one: (not one.is_parked, -one.lag))[:SHARDS_SHOWN]


@dataclass(frozen=True, slots=True)
class ShownGraph:
    statistics: GraphStatistics
    drawing: GraphDrawing


async def _streams(visit: PageVisit) -> dict[str, Any]:
    flows = [(each, one) for each in visit.wings.streams for one in each.flows.values()]
    ends = monotonic() + FLOWS_S_MAX
    return {
        "flows": [
            await _shown(visit, streams, flow)
            if monotonic() < ends
            else ShownFlow(flow.name, None, NOT_ASKED)
            for streams, flow in flows[:FLOWS_MAX]
        ]
    }


async def _shown(visit: PageVisit, streams: Streams, flow: Any) -> ShownFlow:
    leased = LeasedTable.of(streams.tables.flow_model)

    async def ask(connection: AsyncConnection) -> StreamStatus:
        # Its own session ends with it; the transaction is that of the question.
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            status: StreamStatus = await flow.status(session)
            return status

    try:
        # Bounded as every question is: a page that is gone leaves nothing that waits for a lock.
        sessions = visit.insight.session_factory
        return ShownFlow(flow.name, await visit.insight.read(leased, ask, sessions=sessions))
    except (SQLAlchemyError, RowlockError, OSError) as error:
        return ShownFlow(flow.name, None, refusal_of(error).sentence)


async def _graphs(visit: PageVisit) -> dict[str, Any]:
    graphs = []
    for graph in visit.wings.graphs:
        from rowlock.graph.statistics import picture_of  # noqa: PLC0415 - a wing

        statistics = graph.statistics()
        drawing = drawing_of(picture_of(graph.graph), statistics.operators)
        graphs.append(ShownGraph(statistics, drawing))
    return {"graphs": graphs}


# ---------------------------------------------------------------- pages


Answer: TypeAlias = Response | ASGIApp
Handler: TypeAlias = Callable[[PageVisit], Awaitable[Answer]]

ENTRIES_SHOWN = 30
ROW_ACTIONS = ("unpark", "park", "make_due", "release")
STATUS_WITHIN = timedelta(seconds=2)
"""For how long pipelines are asked; then the page shows what there is by then."""
PIPELINE_ACTIONS = ("pause", "resume")


async def _pipelines(visit: PageVisit) -> dict[str, Any]:
    status = await visit.insight.status(within=STATUS_WITHIN)
    lines = {
        one.pipeline: points_of(rates_between(visit.observer.samples(one.pipeline)))
        for one in status.pipelines
        if visit.observer is not None
    }
    return {"status": status, "lines": lines}


async def _replicas(visit: PageVisit) -> dict[str, Any]:
    return {"replicas": await visit.insight.replicas()}


_LIVE: Final[dict[str, Callable[[PageVisit], Awaitable[dict[str, Any]]]]] = {
    "pipelines": _pipelines,
    "replicas": _replicas,
    "streams": _streams,
    "graphs": _graphs,
}


def _live_page(topic: str) -> Handler:
    async def page(visit: PageVisit) -> Response:
        part = await visit.recent_part(topic, partial(_LIVE[topic], visit))
        return visit.page(f"{topic}.html", live=visit.addresses.live(topic), part=part)

    return page


pipelines_page, replicas_page, streams_page, graphs_page = map(_live_page, _LIVE)


async def checks_page(visit: PageVisit) -> Response:
    """Show what is to be mended; asked when the page is opened, and not again."""
    findings = await visit.recent.get("checks", visit.insight.findings)
    return visit.page("checks.html", findings=findings)


async def rows_page(visit: PageVisit) -> Response:
    asked = visit.request.query_params
    name, state = visit.request.path_params["name"], asked.get("state", ListedState.DUE.value)
    after = asked.get("after")
    live = visit.addresses.live("rows", pipeline=name, state=state) if after is None else None
    part = await rows_part(visit, name, state, after=after)
    model = visit.insight.pipeline(name).leased.name
    # The field for a key is a form; what is typed into it is not wiped.
    return visit.page(
        "rows.html", live=live, has_form=True, part=part, name=name, state=state, model=model
    )


async def rows_part(visit: PageVisit, name: str, state: str, *, after: str | None = None) -> str:
    async def values() -> dict[str, Any]:
        page = await visit.insight.rows(name, state, after=after)
        status = await visit.recent.get(("counts", name), lambda: visit.insight.status_of(name))
        return {"page": page, "counts": status.counts, "after": after}

    return await visit.recent_part("rows", values, name, state, after)


async def row_page(visit: PageVisit) -> Response:
    return await explained(visit, *row_asked(visit))


def row_asked(visit: PageVisit) -> tuple[str, str]:
    key = visit.request.path_params.get("row_id") or visit.request.query_params.get("id", "")
    return visit.request.path_params["model"], key


async def explained(
    visit: PageVisit, model: str, row_id: str, *, trouble: str | None = None, status: int = 200
) -> Response:
    """Return the page of a row; `trouble` is why an action was refused."""
    explanation = await visit.insight.explain(model, row_id)
    names: tuple[str, ...] = ()
    if explanation.is_there and explanation.lease is not None:
        mapped = visit.insight.model(model)
        names = ROW_ACTIONS if LeasedTable.of(mapped).has_schedule else ("release",)
    may = await visit.may(*(ViewerAction(name, model, row_id) for name in names))
    return visit.page(
        "row.html",
        status=status if explanation.is_there else 404,
        live=visit.addresses.live("row", model=model, id=row_id),
        has_form=True,
        part=visit.part("row", **await _row(visit, explanation, model)),
        explanation=explanation,
        model=model,
        trouble=trouble,
        acts=[name for name, is_allowed in may.items() if is_allowed],
    )


async def _row(visit: PageVisit, explanation: Explanation, model: str) -> dict[str, Any]:
    tables, timeline = visit.insight.tables, None
    if tables is not None and tables.history is not None:
        timeline = await visit.insight.timeline(model, explanation.row_id, limit=ENTRIES_SHOWN)
    return {"explanation": explanation, "timeline": timeline}


async def pipeline_page(
    visit: PageVisit, name: str | None = None, *, trouble: str | None = None, status: int = 200
) -> Response:
    """Return the page of a pipeline; `trouble` is why an action was refused."""
    named: str = name or visit.request.path_params["name"]
    pipeline = visit.insight.pipeline(named)
    line = await visit.recent.get(("counts", named), lambda: visit.insight.status_of(named))
    plan = await visit.recent.get(("plan", named), lambda: visit.insight.explain_claim(named))
    may = await visit.may(*(ViewerAction(each, pipeline=named) for each in PIPELINE_ACTIONS))
    wanted = "pause" if line.pause is None else "resume"
    return visit.page(
        "pipeline.html",
        status=status,
        has_form=True,
        line=line,
        plan=plan,
        settings=[
            (name, setting_text(getattr(pipeline.settings, name)))
            for name in sorted(type(pipeline.settings).model_fields)
        ],
        model=pipeline.leased.name,
        trouble=trouble,
        act=wanted if may[wanted] else None,
    )


def setting_text(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():,g} s"
    if isinstance(value, tuple):
        return ", ".join(map(setting_text, value))
    return str(value)


async def live_stream(visit: PageVisit) -> Answer:
    topic, asked = visit.request.path_params["topic"], visit.request.query_params
    if topic not in {*_LIVE, "rows", "row"}:
        raise HTTPException(404, "There is no such page.")

    async def row() -> dict[str, Any]:
        model = asked.get("model", "")
        return await _row(visit, await visit.insight.explain(model, asked.get("id", "")), model)

    async def make() -> str:
        if topic == "rows":
            return await rows_part(visit, asked.get("pipeline", ""), asked.get("state", ""))
        if topic == "row":
            return await visit.recent_part("row", row, asked.get("model"), asked.get("id"))
        return await visit.recent_part(topic, partial(_LIVE[topic], visit))

    return LiveResponse(visit.streams, f"{topic}:{asked}", make)


# ---------------------------------------------------------------- JSON


ERROR_SCHEMA = "rowlock.error/1"


def json_response(document: dict[str, Any], status: int = 200) -> Response:
    text = json.dumps(document, ensure_ascii=False, indent=2)
    return Response(text, status, media_type="application/json")


def refused_as_json(refusal: PageRefusal) -> Response:
    document = {"schema": ERROR_SCHEMA, "error": "refused", "message": refusal.sentence}
    return json_response(document, refusal.status)


def _document_of(key: str, ask: Callable[[PageVisit], Awaitable[Any]]) -> Handler:
    async def document(visit: PageVisit) -> Response:
        answer = await visit.recent.get(key, lambda: ask(visit))
        return json_response(answer.to_dict())

    return document


status_document = _document_of("status", lambda visit: visit.insight.status(within=STATUS_WITHIN))
replicas_document = _document_of("live replicas", lambda visit: visit.insight.replicas())
checks_document = _document_of("checks", lambda visit: visit.insight.findings())


async def rows_document(visit: PageVisit) -> Response:
    asked = visit.request.query_params
    page = await visit.insight.rows(
        visit.request.path_params["name"],
        asked.get("state", ListedState.DUE.value),
        after=asked.get("after"),
    )
    return json_response(page.to_dict())


async def row_document(visit: PageVisit) -> Response:
    explanation = await visit.insight.explain(*row_asked(visit))
    return json_response(explanation.to_dict(), 200 if explanation.is_there else 404)


async def timeline_document(visit: PageVisit) -> Response:
    asked = visit.request.query_params
    timeline = await visit.insight.timeline(visit.request.path_params["model"], asked.get("id", ""))
    return json_response(timeline.to_dict(), 200 if timeline.is_known else 404)


# ---------------------------------------------------------------- what a form does


LASTS: Final = {
    "": None,
    "30m": timedelta(minutes=30),
    "2h": timedelta(hours=2),
    "1d": timedelta(days=1),
}
NOTHING_TO_DO: Final = "nothing"  # in the address, in place of the action: it was so already
NO_ORIGIN: Final = "This form was not sent by a page of this dashboard."
NOT_SHOWN: Final = "This form is not the one that was shown to you; open the page again."
NO_REASON: Final = "Say why, in 1 to 200 characters."


async def act(visit: PageVisit) -> Response:
    action = action_asked(visit)
    try:
        fields = await _signed(visit, action)
        acted = _act_on_row if action.pipeline is None else _act_on_pipeline
        done = await acted(visit, action, fields)
    except HTTPException as refused:
        object_ = (action.model or "", action.row_id or "", action.pipeline or "")
        audit_refusal(Act(action.name, visit.viewer.name, "", *object_), refused.detail)
        raise
    # Whatever it is, of the host's database or its code: a page shows it.
    except Exception as error:  # noqa: BLE001
        return await _refused(visit, action, error)
    finally:
        visit.recent.forget()
    told = action.name if done.is_changed else NOTHING_TO_DO
    return RedirectResponse(_page_of(visit, action, done=told), 303)


def action_asked(visit: PageVisit) -> ViewerAction:
    name, asked = visit.request.path_params["action"], visit.request.query_params
    if name in ROW_ACTIONS and {"model", "id"} <= asked.keys():
        return ViewerAction(name, asked["model"], asked["id"])
    if name in PIPELINE_ACTIONS and "pipeline" in asked:
        return ViewerAction(name, pipeline=asked["pipeline"])
    raise HTTPException(404, "There is no such action.")


async def _signed(visit: PageVisit, action: ViewerAction) -> dict[str, str]:
    """Return the fields of a form that is all right, with who sent it as ``by``."""
    viewer = await visit.gatekeeper.viewer(visit.request, action)
    if viewer is None:
        raise HTTPException(403, NOT_ALLOWED)
    if not is_same_origin(visit.request):
        raise HTTPException(403, NO_ORIGIN)
    fields = dict(await read_form(visit.request))
    if not is_token_of(visit.request, fields.get("token")):
        raise HTTPException(403, NOT_SHOWN)
    fields |= {"by": viewer.name, "reason": fields.get("reason", "").strip()}
    if not fields["reason"]:
        raise HTTPException(400, NO_REASON)
    return fields


async def _act_on_row(
    visit: PageVisit, action: ViewerAction, fields: Mapping[str, str]
) -> ActionDone:
    model, row_id, insight = action.model or "", action.row_id or "", visit.insight
    leased = LeasedTable.of(insight.model(model))
    options: dict[str, Any] = {"seen": seen_lease(fields, leased)}
    if action.name == "release":
        options["force"] = fields.get("force") == "yes"
    # One of `ROW_ACTIONS`.
    do: Callable[..., Awaitable[ActionDone]] = getattr(insight, action.name)
    return await do(model, row_id, by=fields["by"], reason=fields["reason"], **options)


async def _act_on_pipeline(
    visit: PageVisit, action: ViewerAction, fields: Mapping[str, str]
) -> ActionDone:
    name, by, reason = action.pipeline or "", fields["by"], fields["reason"]
    if action.name == "resume":
        return await visit.insight.resume(name, by=by, reason=reason)
    lasts = fields.get("for", "")
    if lasts not in LASTS:
        raise HTTPException(400, "The form names a time that it does not offer.")
    return await visit.insight.pause(name, by=by, reason=reason, until=LASTS[lasts])


async def _refused(visit: PageVisit, action: ViewerAction, error: Exception) -> Response:
    """Return the page of the row or pipeline as it is now, with the reason above it."""
    refusal = refusal_of(error)
    # Without the database there is no such page, and for a name that is none neither.
    if refusal.status != 409 or isinstance(error, AppError):  # noqa: PLR2004
        raise error
    told: Any = {"trouble": refusal.sentence, "status": refusal.status}
    if action.pipeline is None:
        return await explained(visit, action.model or "", action.row_id or "", **told)
    return await pipeline_page(visit, action.pipeline, **told)


def _page_of(visit: PageVisit, action: ViewerAction, *, done: str) -> str:
    to = visit.addresses
    if action.pipeline is not None:
        page = to.pipeline(action.pipeline)
    else:
        page = to.row(action.model or "", action.row_id or "")
    return f"{page}{'&' if '?' in page else '?'}done={done}"
