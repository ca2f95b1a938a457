"""Guards that were put in where strangers found faults, and the tests that miss them."""

from __future__ import annotations

from bug import Bug

CONSUMERS = "tests/streams/outputs/test_consumers.py"
EXPIRY = "tests/streams/coordinator/test_expiry.py"
BROKEN = "tests/streams/walk/test_broken_rows.py"
COMPUTE = "tests/streams/computing/test_compute.py"
COMPUTE_BATCHES = "tests/streams/computing/test_compute_batches.py"
WRITTEN = "tests/migrations/test_written_streams.py"
BEGUN_ANEW = "tests/streams/walk/test_begun_anew.py"
STALLS = "tests/streams/coordinator/test_stalls.py"
STATUS = "tests/streams/queries/test_status.py"
COMMANDS = "tests/streams/walk/test_commands.py"
CREATION = "tests/streams/walk/test_creation.py"
MISTAKES = "tests/shopwindow/test_stream_mistakes_page.py"
VERIFICATION = "tests/streams/queries/test_verification.py"
POISON = "tests/streams/walk/test_poison.py"

CURSOR_BUGS = (
    Bug(
        "a consumer has no cursor before its first acknowledgement",
        "streams/outputs/cursors.py",
        "begin_cursor",
        "await _add(connection, output, consumer, step=begins)",
        "pass",
        (f"{CONSUMERS}::test_what_is_not_acknowledged_yet_is_not_discarded",),
    ),
    Bug(
        "a consumer begins while what it is to read is discarded",
        "streams/outputs/cursors.py",
        "begin_cursor",
        "await lock_discarding(connection, output)",
        "pass",
        (f"{CONSUMERS}::test_of_a_discard_and_a_new_consumer_one_is_first",),
    ),
    Bug(
        "what is discarded while it is read is passed over",
        "streams/outputs/consumers.py",
        "Consumer._read",
        "await check_kept(connection, self._output, after)",
        "pass",
        (f"{CONSUMERS}::test_a_reader_is_told_what_was_discarded_on_its_way",),
    ),
    Bug(
        "steps without results count as discarded",
        "streams/outputs/discarding.py",
        "discard",
        "step=last",
        "step=before - 1",
        (f"{CONSUMERS}::test_steps_without_results_are_not_missed",),
    ),
    Bug(
        "a consumer that has read all keeps old steps",
        "streams/coordinating/needs.py",
        "first_needed_step",
        "outputs.step > cursors.step,",
        "",
        (f"{EXPIRY}::test_a_consumer_that_is_behind_counts",),
    ),
)

STALL_BUGS = (
    Bug(
        "shards that a replay has parked lack a replica",
        "streams/coordinating/stalls.py",
        "_without_holder",
        "parked_of(now.shards)",
        "parked_of([one for one in now.shards if one.step < now.next_step])",
        (f"{POISON}::test_what_parks_all_shards_is_told",),
    ),
    Bug(
        "a parked shard is told when the next row comes",
        "streams/queries/status.py",
        "flow_text",
        "NOTHING if parked is None else parked.text",
        "NOTHING",
        (f"{POISON}::test_what_parks_all_shards_is_told",),
    ),
    Bug(
        "a shard that a replay has parked waits for nothing",
        "streams/queries/status.py",
        "shard_text",
        "if parked := parked_of([shard]):",
        "if (parked := parked_of([shard])) and shard.step < look.next_step:",
        (f"{POISON}::test_what_parks_all_shards_is_told",),
    ),
)

ROW_BUGS = (
    Bug(
        "a row is added with a position of its own",
        "streams/columns.py",
        "_bucket_in",
        "_check_position_is_free(table, given)",
        "pass",
        (f"{VERIFICATION}::test_a_row_that_came_below_the_cut_is_refused_or_found",),
    ),
    Bug(
        "the first of several rows is added with a position of its own",
        "streams/columns.py",
        "_check_position_is_free",
        ', f"{name}_m0"',
        "",
        (f"{VERIFICATION}::test_a_row_that_came_below_the_cut_is_refused_or_found",),
    ),
)

DECLARATION_BUGS = (
    Bug(
        "another number of shards is declared in vain",
        "streams/shards/pipeline.py",
        "FlowPipeline._compare_number",
        "declared == wanted",
        "True",
        (f"{COMMANDS}::test_another_number_in_the_declaration_is_told",),
    ),
    Bug(
        "a bool is a number of shards",
        "streams/shards/layout.py",
        "check_number",
        " or isinstance(shards, bool)",
        "",
        (f"{CREATION}::test_what_is_declared_wrongly_is_told_at_once",),
    ),
    Bug(
        "a name has two lines",
        "streams/stage.py",
        "_is_short_text",
        'category(char) == "Cc"',
        "False",
        (f"{CREATION}::test_what_is_declared_wrongly_is_told_at_once",),
    ),
    Bug(
        "a fold has no room for the keys of its source",
        "streams/state/fold_model.py",
        "FoldModel.check_room",
        "room < chars_max",
        "False",
        (f"{MISTAKES}::test_it_is_said_at_declaration",),
    ),
)

BROKEN_ROW_BUGS = (
    Bug(
        "a row without a key stops all shards of a replica",
        "streams/inputs/row_reader.py",
        "RowReader._keyed",
        "broken[text] = ValueError(msg)",
        "raise ValueError(msg) from error",
        (f"{BROKEN}::test_a_row_without_a_key_stops_its_own_shard",),
    ),
    Bug(
        "a row without a key is handed to a handler",
        "streams/computing/batch.py",
        "grouped",
        "groups.leave_out(batch.broken)",
        "pass",
        (
            f"{BROKEN}::test_a_row_without_a_key_stops_its_own_shard",
            f"{BROKEN}::test_a_row_without_a_key_is_set_aside",
        ),
    ),
    Bug(
        "a row without a digest is not set aside",
        "streams/computing/compute.py",
        "compute",
        "batch.broken.update(without)",
        "pass",
        (f"{COMPUTE}::test_a_row_that_has_no_digest_fails_its_own_shard",),
    ),
    Bug(
        "a row without a digest is none in the digest of others",
        "streams/computing/rows.py",
        "_digested_apart",
        "raw.append(NO_DIGEST)",
        'raw.append("2")',
        (f"{COMPUTE}::test_a_row_that_has_no_digest_fails_its_own_shard",),
    ),
    Bug(
        "a batch handler gets a row without a key",
        "streams/computing/compute.py",
        "_Run.batch",
        "self.events.broken.items()",
        "()",
        (f"{COMPUTE_BATCHES}::test_a_row_that_no_handler_can_get_fails_the_batch",),
    ),
)

MIGRATION_BUGS = (
    Bug(
        "statements are kept where migrations are written from",
        "database/bulk_dialect.py",
        "kept_statement",
        "vars(table)",
        "table.info",
        (f"{WRITTEN}::test_what_is_written_for_streams_runs",),
    ),
    Bug(
        "the key of a stream is written into migrations",
        "streams/columns.py",
        "_note_key",
        "vars(table)[_KEY]",
        "table.info[_KEY] = vars(table)[_KEY]",
        (f"{WRITTEN}::test_what_is_written_for_streams_runs",),
    ),
    Bug(
        "an identity is found anew where there are none",
        "migrations/autogenerate.py",
        "_rewrite",
        "up.ops if has_identities else list(_without_identities(up.ops))",
        "up.ops",
        (f"{WRITTEN}::test_what_is_written_for_streams_runs",),
    ),
)

ABSENCE_BUGS = (
    Bug(
        "a flow whose row was deleted is new",
        "streams/queries/absence.py",
        "absence_of",
        "if not count:",
        "if True:",
        (f"{STATUS}::test_a_flow_whose_row_was_deleted",),
    ),
    Bug(
        "a flow whose row was deleted is begun anew",
        "streams/creation.py",
        "ensure_flow",
        "if absence.state == LOST:",
        "if False:",
        (f"{STATUS}::test_a_flow_whose_row_was_deleted",),
    ),
    Bug(
        "what fails for all shards is told of one",
        "streams/coordinating/stalls.py",
        "_failing",
        ' + f"; and {more} more have failed" * (more > 0)',
        "",
        (f"{STATUS}::test_a_column_that_was_dropped",),
    ),
)

BUSY_BUGS = (
    Bug(
        "a call that takes long is not seen",
        "streams/shards/steps/slow_calls.py",
        "SlowCalls._look",
        "call if call == self._seen else None",
        "None",
        (f"{STATUS}::test_a_handler_that_takes_long_is_named",),
    ),
    Bug(
        "a call that took long is shown for good",
        "streams/shards/steps/slow_calls.py",
        "SlowCalls.in_thread",
        "self._show(None)",
        "pass",
        (f"{STATUS}::test_a_handler_that_takes_long_is_named",),
    ),
    Bug(
        "another shard is shown with a call that takes long",
        "streams/coordinating/flow_looks.py",
        "FlowLooker._shards",
        "busy.get((row.replica, row.lo))",
        "next(iter(busy.values()), None)",
        (f"{STATUS}::test_a_handler_that_takes_long_is_named",),
    ),
    Bug(
        "all calls that take long are named",
        "streams/coordinating/stalls.py",
        "_busy",
        "calls[:NAMES_MAX]",
        "calls",
        (f"{STALLS}::test_calls_that_take_long",),
    ),
)

REPLAY_BUGS = (
    Bug(
        "results are written in a replay",
        "streams/shards/steps/stage_computing.py",
        "StageComputing._hand_out",
        "if not did.is_replay:",
        "if True:",
        (f"{BEGUN_ANEW}::test_a_replay_hands_out_nothing",),
    ),
    Bug(
        "the record of a step is not written",
        "streams/shards/steps/stage_computing.py",
        "finish",
        "did.parts.append(part)",
        "pass",
        (f"{VERIFICATION}::test_a_row_that_was_deleted_is_found",),
    ),
    Bug(
        "a hint is cleared behind the read that it is for",
        "streams/outputs/consumers.py",
        "Consumer.steps",
        "found = await self._read(after)",
        "found = await self._read(after)\n                self._woken.clear()",
        (f"{CONSUMERS}::test_a_hint_within_a_read_is_not_forgotten",),
    ),
)
