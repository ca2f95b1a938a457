"""Questions about rows, answered as data, in any process that can import the host's pipelines.

The rows are the queue, so most answers are one read-only statement away. What only a running
replica knows it writes into a small table, if the host lends one. Nothing here is needed for rows
to be processed.
"""

from __future__ import annotations

from rowlock.errors import AppError
from rowlock.insight.actions import ActionDone
from rowlock.insight.claim_plan import ClaimPlan, PipelineView
from rowlock.insight.explanation import Explanation, ExplanationLine, PipelineExplanation, SeenLease
from rowlock.insight.findings import Finding, Level
from rowlock.insight.insight import Insight, InsightLimits
from rowlock.insight.listing import ListedRow, RowPage, Timeline, TimelineEntry
from rowlock.insight.observer import Observer
from rowlock.insight.questions import ListedState
from rowlock.insight.steering import (
    AlreadyPaused,
    LeaseAlive,
    LeaseChanged,
    NotPausable,
    RowNotFound,
)
from rowlock.insight.tables import InsightTables, insight_tables
from rowlock.insight.verdicts import Verdict
from rowlock.spi import mark_of, replica_mark

__all__ = [
    "ActionDone",
    "AlreadyPaused",
    "AppError",
    "ClaimPlan",
    "Explanation",
    "ExplanationLine",
    "Finding",
    "Insight",
    "InsightLimits",
    "InsightTables",
    "LeaseAlive",
    "LeaseChanged",
    "Level",
    "ListedRow",
    "ListedState",
    "NotPausable",
    "Observer",
    "PipelineExplanation",
    "PipelineView",
    "RowNotFound",
    "RowPage",
    "SeenLease",
    "Timeline",
    "TimelineEntry",
    "Verdict",
    "insight_tables",
    "mark_of",
    "replica_mark",
]
