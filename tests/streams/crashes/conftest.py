"""The nursery of replicas of flows, one for each test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ...failpoints.survivors import Nursery

pytest.register_assert_rewrite(f"{__package__}.judging", f"{__package__}.matrix")
"""So that they say what differs."""


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery("tests.streams.crashes.stories")
    yield made
    made.close()
