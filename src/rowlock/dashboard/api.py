"""The same answers as JSON: the documents of the command line, by GET."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from rowlock.dashboard.guarding.refusals import PageRefusal
from rowlock.dashboard.pages import STATUS_WITHIN, findings_of, row_asked
from rowlock.dashboard.visits import PageVisit
from rowlock.insight.listing.row_page import ListedState

ERROR_SCHEMA = "rowlock.error/1"


def json_response(document: dict[str, Any], status: int = 200) -> Response:
    """Return a document."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    return Response(text, status, media_type="application/json")


def refused_as_json(refusal: PageRefusal) -> Response:
    """Return why there is no document."""
    document = {"schema": ERROR_SCHEMA, "error": "refused", "message": refusal.sentence}
    return json_response(document, refusal.status)


async def status_document(visit: PageVisit) -> Response:
    """Return what waits for each pipeline."""
    status = await visit.recent.get("status", lambda: visit.insight.status(within=STATUS_WITHIN))
    return json_response(status.to_dict())


async def replicas_document(visit: PageVisit) -> Response:
    """Return which replicas live."""
    replicas = await visit.recent.get("live replicas", visit.insight.replicas)
    return json_response(replicas.to_dict())


async def checks_document(visit: PageVisit) -> Response:
    """Return what is to be mended."""
    findings = await visit.recent.get("checks", lambda: findings_of(visit.insight))
    return json_response(findings.to_dict())


async def rows_document(visit: PageVisit) -> Response:
    """Return a page of rows."""
    asked = visit.request.query_params
    page = await visit.insight.rows(
        visit.request.path_params["name"],
        asked.get("state", ListedState.DUE.value),
        after=asked.get("after"),
    )
    return json_response(page.to_dict())


async def row_document(visit: PageVisit) -> Response:
    """Return why a row waits."""
    explanation = await visit.insight.explain(*row_asked(visit))
    return json_response(explanation.to_dict(), 200 if explanation.is_there else 404)


async def timeline_document(visit: PageVisit) -> Response:
    """Return what happened to a row."""
    asked = visit.request.query_params
    timeline = await visit.insight.timeline(visit.request.path_params["model"], asked.get("id", ""))
    return json_response(timeline.to_dict(), 200 if timeline.is_known else 404)
