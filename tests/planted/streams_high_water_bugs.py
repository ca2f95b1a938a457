"""Guards of the high-water mark and of positions, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

CANDIDATES = "tests/streams/inputs/test_candidates.py"
WATER = "tests/streams/inputs/test_high_water.py"
POSITIONS = "tests/streams/inputs/test_positions.py"
LATE = "tests/streams/late_commits/test_late_commits.py"
MARKS = "streams/inputs/candidates.py"
POSTGRESQL = "streams/dialects/postgresql.py"

CANDIDATE_BUGS = (
    Bug(
        "the last visible position is the mark",
        MARKS,
        "Candidates.look",
        "if not writers:",
        "if True:",
        (
            f"{CANDIDATES}::test_a_mark_waits_for_those_who_were_there",
            f"{WATER}::test_a_late_row_is_waited_for",
            f"{LATE}::test_whatever_is_late_is_read",
        ),
    ),
    Bug(
        "a mark waits for whoever writes",
        MARKS,
        "still_open",
        "if names and (one.transaction in names or one.was_recovered)",
        "if names",
        (f"{CANDIDATES}::test_those_who_came_later_are_not_waited_for",),
    ),
    Bug(
        "a recovered transaction is not waited for",
        MARKS,
        "still_open",
        " or one.was_recovered",
        "",
        (f"{CANDIDATES}::test_a_prepared_transaction_is_followed_through_a_restart",),
    ),
    Bug(
        "a mark goes back",
        MARKS,
        "Candidates._confirm",
        "max(self.mark, position)",
        "position",
        (f"{CANDIDATES}::test_a_mark_never_goes_back",),
    ),
    Bug(
        "candidates are not bounded",
        MARKS,
        "Candidates.look",
        "del self._waiting[CANDIDATES_MAX - 1 :]",
        "pass",
        (f"{CANDIDATES}::test_candidates_are_bounded_and_the_oldest_stay",),
    ),
    Bug(
        "the oldest candidate makes room",
        MARKS,
        "Candidates.look",
        "self._waiting[CANDIDATES_MAX - 1 :]",
        "self._waiting[: len(self._waiting) - CANDIDATES_MAX + 1]",
        (f"{CANDIDATES}::test_candidates_are_bounded_and_the_oldest_stay",),
    ),
)
LOOK_BUGS = (
    Bug(
        "those who write are listed before the last position is read",
        "streams/inputs/high_water.py",
        "HighWaterLook.look",
        "newest = await connection.scalar(self._newest) or 0",
        "await dialect.open_writers(connection, table)\n"
        "        newest = await connection.scalar(self._newest) or 0",
        (f"{WATER}::test_those_who_write_are_listed_behind_the_last_position",),
    ),
    Bug(
        "rows are read in the transaction of the look",
        "streams/cutting/cutter.py",
        "Cutter._look",
        "if seen.mark > recorded:",
        "if seen.mark > recorded:\n"
        "                from rowlock.streams.queries.step_inputs import ALL_BUCKETS\n"
        "                await source.read(\n"
        "                    connection, [ALL_BUCKETS], after=recorded, upto=seen.mark\n"
        "                )",
        (f"{LATE}::test_look_and_read_are_two_transactions",),
    ),
    Bug(
        "positions that went back are read on",
        "streams/inputs/high_water.py",
        "HighWaterLook.look",
        "if assigned < known:",
        "if False:",
        (f"{WATER}::test_restarted_sequence",),
    ),
    Bug(
        "what the last step recorded is not compared",
        "streams/inputs/high_water.py",
        "HighWaterLook.look",
        "max(recorded, newest, self._candidates.mark)",
        "max(newest, self._candidates.mark)",
        (f"{WATER}::test_restarted_sequence",),
    ),
    Bug(
        "what is visible above the sequence is not compared",
        "streams/inputs/high_water.py",
        "HighWaterLook.look",
        "max(recorded, newest, self._candidates.mark)",
        "max(recorded, self._candidates.mark)",
        (f"{WATER}::test_a_sequence_behind_its_rows_is_told",),
    ),
    Bug(
        "a sequence that was restarted counts as called",
        POSTGRESQL,
        "PostgresqlStreams.last_assigned",
        "found.last_value if found.is_called else found.last_value - 1",
        "found.last_value",
        (f"{WATER}::test_restarted_sequence",),
    ),
)
WRITER_BUGS = (
    Bug(
        "partitions are not looked at",
        POSTGRESQL,
        "",
        "ON i.inhparent = family.oid",
        "ON false AND i.inhparent = family.oid",
        (f"{WATER}::test_partitions_are_looked_at",),
    ),
    Bug(
        "what a partition belongs to is not looked at",
        POSTGRESQL,
        "",
        "ON i.inhrelid = above.oid",
        "ON false AND i.inhrelid = above.oid",
        (f"{WATER}::test_rows_on_their_way_to_a_partition_are_waited_for",),
    ),
    Bug(
        "prepared transactions are no writers",
        POSTGRESQL,
        "",
        "AND granted\n",
        "AND granted AND pid IS NOT NULL\n",
        (f"{WATER}::test_a_prepared_row_is_waited_for",),
    ),
    Bug(
        "whoever writes elsewhere is waited for",
        POSTGRESQL,
        "",
        "AND relation IN (SELECT oid FROM family)",
        "",
        (f"{WATER}::test_who_writes_elsewhere_is_not_waited_for",),
    ),
)
POSITION_BUGS = (
    Bug(
        "a sequence with a cache gives positions",
        POSTGRESQL,
        "_problem_with_sequence",
        "one.seqcache > 1",
        "False",
        (
            f"{POSITIONS}::test_refused_positions",
            f"{LATE}::test_a_sequence_with_a_cache_loses_rows",
        ),
    ),
    Bug(
        "a default that only uses a sequence gives positions",
        POSTGRESQL,
        "_problem_with",
        "not is_plain or ",
        "",
        (f"{POSITIONS}::test_refused_positions",),
    ),
    Bug(
        "a sequence that descends gives positions",
        POSTGRESQL,
        "_problem_with_sequence",
        "one.seqincrement < 1 or one.seqcycle or one.seqmin < 1",
        "False",
        (f"{POSITIONS}::test_refused_positions",),
    ),
    Bug(
        "a view is a stream",
        POSTGRESQL,
        "_problem_with",
        'one.relkind not in ("r", "p")',
        "False",
        (f"{POSITIONS}::test_a_view_is_no_stream",),
    ),
    Bug(
        "a key without AUTOINCREMENT gives positions",
        "streams/dialects/sqlite.py",
        "SqliteStreams.check_position",
        '_KEYWORD.search(_NO_SQL.sub(" ", created.sql))',
        "created.sql",
        (f"{POSITIONS}::test_refused_keys_of_sqlite",),
    ),
    Bug(
        "AUTOINCREMENT in a comment is a keyword",
        "streams/dialects/sqlite.py",
        "SqliteStreams.check_position",
        '_NO_SQL.sub(" ", created.sql)',
        "created.sql",
        (f"{POSITIONS}::test_refused_keys_of_sqlite",),
    ),
    Bug(
        "positions of the client are taken",
        "streams/inputs/positions.py",
        "_problem_with",
        "column.default is not None",
        "False",
        (f"{POSITIONS}::test_refused_models",),
    ),
)
