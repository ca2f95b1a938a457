"""Addresses of the dashboard's pages. Pure.

The one idea: a key is text that somebody else has chosen. A browser takes ``..`` out of a path,
escaped or not, and frameworks decode slashes; so only plain keys stand in the path, and all others
behind the question mark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True, slots=True)
class PageAddresses:
    """Addresses below the path at which the dashboard is mounted.

    Attributes:
        base: that path, without a slash at its end.
    """

    base: str

    def pipelines(self) -> str:
        """Of the first page."""
        return f"{self.base}/"

    def page(self, name: str) -> str:
        """Of a page without arguments."""
        return f"{self.base}/{name}"

    def static(self, name: str) -> str:
        """Of a file that never changes in one version."""
        return f"{self.base}/static/{name}"

    def pipeline(self, name: str) -> str:
        """Of a pipeline's settings."""
        return f"{self.base}/pipelines/{quote(name, safe='')}"

    def rows(self, pipeline: str, state: str, after: str | None = None) -> str:
        """Of the rows of a pipeline."""
        asked = {"state": state} | ({} if after is None else {"after": after})
        return f"{self.pipeline(pipeline)}/rows?{urlencode(asked)}"

    def row(self, model: str, row_id: str) -> str:
        """Of one row."""
        path = f"{self.base}/rows/{quote(model, safe='')}"
        if _PLAIN.fullmatch(row_id):
            return f"{path}/{row_id}"
        return f"{path}?{urlencode({'id': row_id})}"

    def model(self, model: str) -> str:
        """To which a form sends the key of a row."""
        return f"{self.base}/rows/{quote(model, safe='')}"

    def act_on_row(self, action: str, model: str, row_id: str) -> str:
        """To which an action on a row is sent."""
        return f"{self.base}/act/{action}?{urlencode({'model': model, 'id': row_id})}"

    def act_on_pipeline(self, action: str, pipeline: str) -> str:
        """To which an action on a pipeline is sent."""
        return f"{self.base}/act/{action}?{urlencode({'pipeline': pipeline})}"

    def live(self, topic: str, **asked: str) -> str:
        """Of the stream that keeps a page up to date."""
        return f"{self.base}/live/{topic}" + (f"?{urlencode(asked)}" if asked else "")
