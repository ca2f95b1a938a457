"""What is true of shards after every COMMIT, and what became of their ranges."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from rowlock.streams.computing.hashing import BUCKETS, BucketRange, merged

SHARDS: Final = (
    "SELECT flow_id, lo, hi, step, version, next_step, replica FROM rowlock_stream_shards AS shards"
    " JOIN rowlock_stream_flows AS flows ON flows.id = flow_id"
)
EXPIRED: Final = (
    "SELECT (SELECT count(*) FROM kept_rowlock_stream_steps)"
    " > (SELECT count(*) FROM rowlock_stream_steps)"
)


@dataclass
class Layouts:
    """The shards of each flow, as they were after the last COMMIT."""

    _flows: dict[int, dict[BucketRange, tuple[int, Any]]] = field(default_factory=dict)

    def look(self, file: sqlite3.Connection) -> set[str]:
        """Check the shards of all flows; return what has become of them since the last time.

        Each bucket is in one shard; no shard goes back, is ahead of the cuts, or has states of
        steps that it has not done.
        """
        shards: dict[int, dict[BucketRange, tuple[int, Any]]] = defaultdict(dict)
        for flow, lo, hi, step, version, next_step, replica in file.execute(SHARDS):
            assert version <= step <= next_step, f"{lo}..{hi}: {version}, {step}, {next_step}"
            shards[flow][BucketRange(lo, hi)] = (step, replica)
        reached: set[str] = set()
        for flow, found in shards.items():
            assert merged(found) == [(0, BUCKETS)], f"buckets are missing: {sorted(found)}"
            width = sum(each.width for each in found)
            assert width == BUCKETS, f"buckets are twice: {sorted(found)}"
            before = self._flows.get(flow, {})
            for each, (step, replica) in before.items():
                now = [one for other, one in found.items() if each.lo in other or other.lo in each]
                least = min(step for step, _ in now)
                assert least >= step, f"the shard {each} went back from {step} to {least}"
                if replica is not None and {one for _, one in now} - {replica, None}:
                    reached.add("shard at another replica")
            if before and len(before) != len(found):
                reached.add("split" if len(found) > len(before) else "join")
        self._flows = dict(shards)
        return reached


def noted_in(file: sqlite3.Connection) -> dict[str, bool]:
    return {"rows expired": bool(file.execute(EXPIRED).fetchone()[0])}
