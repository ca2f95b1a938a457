"""Logging from the thread in which leases are renewed, which must never wait.

The one idea: an event loop that stands still may do so in a handler of the log, a pipe that nobody reads, say. Whoever logs next
waits for that handler's lock; so each of these rare lines has a thread of its own that may wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


def log_in_thread(log: Callable[[], None]) -> None:
    """Call `log` in a thread that ends with it."""
    threading.Thread(target=log, name="rowlock log", daemon=True).start()
