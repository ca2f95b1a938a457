"""One suite for both databases: what `rowlock.leases.dialects` promises, for every kind of model that is accepted.

A third database is a third parameter of the fixture `database`.
"""

from __future__ import annotations

import ast
import inspect
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, get_protocol_members  # type: ignore[attr-defined]
