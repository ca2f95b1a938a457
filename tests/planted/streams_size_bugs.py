"""Guards of what bounds steps, slices and pages by bytes, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

SLICES = "tests/streams/sizes/test_slices.py"
BYTES = "tests/streams/sizes/test_step_bytes.py"

SLICE_BUGS = (
    Bug(
        "slices are not bounded by rows",
        "streams/computing/encoding.py",
        "slices",
        "at - begin == rows_max or ",
        "",
        (f"{SLICES}::test_slices_are_bounded",),
    ),
    Bug(
        "slices are not bounded by bytes",
        "streams/computing/encoding.py",
        "slices",
        " or size + own > bytes_max",
        "",
        (f"{SLICES}::test_slices_are_bounded",),
    ),
    Bug(
        "rows are written at once",
        "streams/sliced_writes.py",
        "sliced",
        "rows_max=dialect.rows_max",
        "rows_max=1 << 40",
        (
            f"{SLICES}::test_an_append_is_written_in_slices",
            f"{SLICES}::test_states_are_written_and_read_in_slices",
            f"{SLICES}::test_results_are_written_in_slices",
        ),
    ),
    Bug(
        "events are encoded in one turn",
        "streams/inputs/event_log.py",
        "EventLog._rows",
        "await sleep(0)",
        "pass",
        (f"{SLICES}::test_events_are_encoded_in_turns",),
    ),
    Bug(
        "texts are parsed in one call",
        "streams/computing/encoding.py",
        "Codec.parse",
        "bytes_max=PARSED_BYTES_MAX",
        "bytes_max=1 << 40",
        (f"{SLICES}::test_texts_are_parsed_some_at_a_time",),
    ),
    Bug(
        "all shards are claimed in one statement",
        "streams/shards/pipeline.py",
        "ShardFetcher.fetch_once",
        "min(limit - claimed, CLAIMED_AT_ONCE)",
        "limit - claimed",
        (f"{SLICES}::test_shards_are_claimed_some_at_a_time",),
    ),
    Bug(
        "all shards are opened in one transaction",
        "streams/shards/rounds.py",
        "FlowRounds._open_all_but_last",
        "while len(closed) > OPENED_AT_ONCE:",
        "while False:",
        (f"{SLICES}::test_shards_are_opened_some_in_a_transaction",),
    ),
    Bug(
        "a page of a snapshot is bounded by keys alone",
        "streams/state/store.py",
        "read_snapshot",
        "page.upto <= most.bytes",
        "page.upto >= 0",
        (f"{SLICES}::test_a_page_of_a_snapshot_is_bounded_by_bytes",),
    ),
    Bug(
        "a state that is too large for a page ends a snapshot",
        "streams/state/store.py",
        "read_snapshot",
        ", page.upto == page.size",
        "",
        (
            f"{SLICES}::test_a_page_of_a_snapshot_is_bounded_by_bytes",
            f"{SLICES}::test_a_snapshot_of_large_states_is_whole",
        ),
    ),
)
STEP_BYTES_BUGS = (
    Bug(
        "steps are bounded by rows alone",
        "streams/cutting/plan.py",
        "_reach",
        "sum(map(sum, sizes)) > bounds.step_bytes_max",
        "False",
        (
            f"{BYTES}::test_bytes_of_a_step",
            f"{BYTES}::test_sources_share_the_bytes_of_a_step",
            f"{BYTES}::test_steps_of_large_events",
        ),
    ),
    Bug(
        "a row that is larger than a step waits for ever",
        "streams/cutting/plan.py",
        "_within",
        "max(1, bisect_right(own, limit))",
        "bisect_right(own, limit)",
        (
            f"{BYTES}::test_bytes_of_a_step",
            f"{BYTES}::test_steps_of_any_sizes_come_to_an_end",
        ),
    ),
    Bug(
        "lagging shards do large steps at once",
        "streams/shards/steering.py",
        "together",
        " or size > BYTES_TOGETHER_MAX",
        "",
        (f"{BYTES}::test_lagging_shards_do_fewer_large_steps_at_once",),
    ),
    Bug(
        "the bytes of a cut are not recorded",
        "streams/cutting/cutter.py",
        "Cutter._record",
        '"bytes": cut.bytes',
        '"bytes": 0',
        (f"{BYTES}::test_steps_of_large_events",),
    ),
    Bug(
        "rows are weighed by characters",
        "dialects/sqlite/bulk.py",
        "SqliteBulk.text_bytes",
        "cast(text, LargeBinary)",
        "text",
        (f"{BYTES}::test_what_counts_of_a_row",),
    ),
)
