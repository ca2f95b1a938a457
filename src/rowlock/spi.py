"""What wings and windows of the library use of its heart, beside the front door.

Nothing above the front door imports from below it but through the door or this module, so that the
heart can be changed where no name here stands. Not for hosts: it may change with any release.
"""

from __future__ import annotations

from rowlock.database.batcher import Batcher, Retries
from rowlock.database.faults import is_of_a_database, is_of_the_schema, is_outage, is_transient
from rowlock.database.transaction import bind_of, check_session_factory, in_transaction
from rowlock.dialects import DialectPart
from rowlock.dialects.contract import ROWS, RowDialect
from rowlock.execution import kept_statement
from rowlock.hints import Wake
from rowlock.leases.apply import Fenced, Patch, fence, is_unchanged, show, write_patches
from rowlock.leases.table_looks import (
    IndexSeen,
    Query,
    claim_query,
    heartbeat_problems,
    indexes_of,
    place_of,
    plan_of,
    planned,
    serving_index,
    unserved,
)
from rowlock.pipelines.attempt import Gate, Seams, ready_condition
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.fetcher import claim_parts
from rowlock.pipelines.lock_graph import LockGraph
from rowlock.pipelines.run import PipelineRun
from rowlock.pipelines.settings import DURATION_MAX, WORKERS_MAX, Duration
from rowlock.rows.assignments import ColumnValues
from rowlock.rows.columns import columns_of, for_type_checkers
from rowlock.rows.database_time import database_instant, database_time_after, due_at_once
from rowlock.rows.eligibility import (
    OWNER_SEPARATOR,
    RESERVED_BEYOND,
    EligibleParts,
    LockingPipeline,
    is_awaiting,
    is_free,
    oldest_first,
    order_column,
)
from rowlock.rows.indexes import (
    INDEX_INFO,
    KEY,
    PARKED,
    DueColumn,
    DueIndex,
    DueOrder,
    ParkedIndex,
    claim_index_parts,
    conjuncts_of,
    due_indexes,
    index_condition,
    index_name,
    partial_index_options,
    sql_of,
)
from rowlock.rows.leased_table import (
    LOCK_COLUMNS,
    SCHEDULE_COLUMNS,
    LeasedTable,
    ModelT,
    attributes_of,
    innermost,
    instance_of,
    keeps_time,
    mapper_of,
    single_table,
    with_zone,
)
from rowlock.rows.lock_tokens import mark_of, replica_mark
from rowlock.rows.updates import Values, check_kept, column_of, column_values, compared_column
