"""One request: who asks, of what, and how the answer is made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from rowlock.dashboard.addresses import PageAddresses
from rowlock.dashboard.guarding.authorizing import Gatekeeper, Viewer, ViewerAction
from rowlock.dashboard.guarding.origins import fresh_token, keep_token, token_of
from rowlock.dashboard.live import LiveStreams
from rowlock.dashboard.recent import RecentAnswers
from rowlock.dashboard.rendering import render
from rowlock.dashboard.shown_wings import ShownWings
from rowlock.insight.insight import Insight
from rowlock.insight.observing.observer import Observer


@dataclass(frozen=True, slots=True)
class PageVisit:
    """What a page is made of.

    Attributes:
        request: as the framework gives it.
        viewer: who asks.
        insight: answers.
        observer: of this process, if the host has given one.
        recent: answers that others have asked for just now.
        streams: the open ones.
        gatekeeper: asked which actions are shown.
        addresses: of other pages.
        wings: what else the host has handed in.
    """

    request: Request
    viewer: Viewer
    insight: Insight
    observer: Observer | None
    recent: RecentAnswers
    streams: LiveStreams
    gatekeeper: Gatekeeper
    addresses: PageAddresses
    wings: ShownWings

    def part(self, template: str, **values: Any) -> str:
        """Return a part of a page, the same for everybody who may look."""
        # What a template gives is escaped already; nothing else is ever called markup.
        return Markup(render(template, to=self.addresses, **values))  # noqa: S704

    def page(
        self,
        template: str,
        *,
        status: int = 200,
        live: str | None = None,
        has_form: bool = False,
        **values: Any,
    ) -> Response:
        """Return a page.

        Args:
            template: its file.
            status: of the answer.
            live: the address of the stream that keeps it up to date.
            has_form: whether something may be typed into it: then it never reloads by itself.
            values: of the template.
        """
        token = token_of(self.request) or fresh_token()
        is_full = live is not None and self.streams.is_full
        response = HTMLResponse(
            render(
                template,
                to=self.addresses,
                viewer=self.viewer,
                wings=self.wings,
                token=token,
                live=None if is_full else live,
                reloads=live is not None and not has_form,
                is_full=is_full,
                done=self.request.query_params.get("done"),
                **values,
            ),
            status,
        )
        if has_form and token_of(self.request) is None:
            keep_token(response, self.request, token=token, path=self.addresses.base)
        return response

    async def may(self, *actions: ViewerAction) -> Mapping[str, bool]:
        """Return which actions the viewer may do, by name."""
        # At once: a host that answers late is waited for no longer than for one.
        asked = (self.gatekeeper.viewer(self.request, action) for action in actions)
        viewers = await asyncio.gather(*asked)
        return {one.name: who is not None for one, who in zip(actions, viewers, strict=True)}
