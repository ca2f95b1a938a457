"""The dashboard: pages about the pipelines of a host, as an ASGI app that any framework mounts.

    app.mount("/rowlock", Dashboard(manager, authorize=staff))

Needs the extra ``dashboard``: ``pip install "rowlock[dashboard]"``.
"""

from __future__ import annotations

from rowlock.dashboard.dashboard import Dashboard
from rowlock.dashboard.guarding import Viewer, ViewerAction, anybody_may_look

__all__ = ["Dashboard", "Viewer", "ViewerAction", "anybody_may_look"]
