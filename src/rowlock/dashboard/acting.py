"""What a form does: release, park, put back, make due, pause, resume.

The one idea: an action needs the right to look, the right to act, a form of this origin, its token,
a reason, and the lease that was shown. Whatever lacks one of them is refused before anything is
written, and the audit log has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from rowlock.dashboard.guarding import (
    NOT_ALLOWED,
    Viewer,
    ViewerAction,
    is_same_origin,
    is_token_of,
    read_form,
    refusal_of,
    seen_lease,
)
from rowlock.dashboard.pages import PIPELINE_ACTIONS, ROW_ACTIONS, explained, pipeline_shown
from rowlock.dashboard.visits import PageVisit
from rowlock.errors import AppError
from rowlock.insight.actions import ActionDone
from rowlock.insight.naming import mapped_model
from rowlock.insight.steering import Act, audit_refusal
from rowlock.spi import LeasedTable

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
        _audit(visit.viewer, action, refused.detail)
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
    leased = LeasedTable.of(mapped_model(model, insight.pipelines.values()))
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
    return await pipeline_shown(visit, action.pipeline, **told)


def _page_of(visit: PageVisit, action: ViewerAction, *, done: str) -> str:
    to = visit.addresses
    if action.pipeline is not None:
        page = to.pipeline(action.pipeline)
    else:
        page = to.row(action.model or "", action.row_id or "")
    return f"{page}{'&' if '?' in page else '?'}done={done}"


def _audit(viewer: Viewer, action: ViewerAction, why: str) -> None:
    object_ = (action.model or "", action.row_id or "", action.pipeline or "")
    audit_refusal(Act(action.name, viewer.name, "", *object_), why)
