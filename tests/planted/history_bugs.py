"""Guards of the history, of timelines and of spans, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

HISTORY = "tests/insight/test_history.py"
FAULTS = "tests/insight/test_history_faults.py"
UNKEPT = f"{FAULTS}::test_a_value_that_the_database_cannot_keep_stops_no_history"
TIMELINE = "tests/insight/test_timeline.py"
ENTRIES = "insight/history/entries.py"
QUEUE = "insight/history/queue.py"
WRITER = "insight/history/writer.py"
RECORDER = "insight/history/recorder.py"
STATEMENTS = "insight/history/statements.py"
ASKED = "insight/history/timeline.py"

TRACING = "telemetry/tracing.py"
TRACED = "tests/telemetry/test_tracing.py"

READ_ONLY = "insight/rehearsing/read_only.py"
REHEARSED = "tests/insight/test_rehearsal.py"
NOTHING_WRITTEN = f"{REHEARSED}::test_whatever_it_tries_nothing_is_written"

ASSISTANT = "assistants/server.py"
ASSISTED = "tests/assistants/test_server.py"

ENDS = ("tests/pipelines/test_durations.py::test_an_end_says_what_its_begin_knew",)

HISTORY_BUGS = (
    Bug(
        "nobody hears that a holder has died",
        "pipelines/processing/worker.py",
        "Worker._record_start",
        "if item.prev_lock_expired:",
        "if False:",
        (*ENDS, f"{HISTORY}::test_a_row_of_the_dead_is_told_of_when_its_next_attempt_begins"),
    ),
    Bug(
        "an end does not say how long its row had waited",
        "pipelines/settling/recorder.py",
        "Recorder.written",
        "waited_s=item.waited_s",
        "waited_s=None",
        ENDS,
    ),
    Bug(
        "a claim that was released is told as an attempt",
        "pipelines/context.py",
        "PipelineContext.tell",
        "attempt=item.begun_attempt",
        "attempt=item.attempt",
        ENDS,
    ),
    Bug(
        "the history keeps the values of columns",
        "pipelines/settling/recorder.py",
        "_columns_of",
        'key if isinstance(key, str) else str(getattr(key, "key", key)) for key in values',
        'f"{key}={value}" for key, value in dict(values).items()',
        (f"{HISTORY}::test_each_outcome_has_an_entry",),
    ),
    Bug(
        "an error stands in the history as it is",
        ENTRIES,
        "entry_of",
        "shown(error, ERROR_CHARS_MAX)",
        "error",
        (f"{HISTORY}::test_each_outcome_has_an_entry",),
    ),
    Bug(
        "a history that begins again has no task that writes",
        RECORDER,
        "HistoryRecorder.start",
        "self._writers.clear()",
        "",
        ("tests/insight/test_history_ends.py::test_an_observer_that_is_entered_again_writes",),
    ),
    Bug(
        "a history that begins again forgets what was dropped",
        RECORDER,
        "HistoryRecorder.start",
        "self._dropped = self.dropped",
        "",
        ("tests/insight/test_history_ends.py::test_an_observer_that_is_entered_again_writes",),
    ),
    Bug(
        "texts that the database cannot keep are sent again as they are",
        QUEUE,
        "HistoryBatch.simplify",
        "[simplified(one) for one in self.entries]",
        "self.entries",
        (UNKEPT,),
    ),
    Bug(
        "an entry that is always refused is tried for ever",
        WRITER,
        "HistoryWriter._write_or_leave_out",
        "self.queue.leave_out()",
        "pass",
        (UNKEPT,),
    ),
    Bug(
        "entries that are left out are no gap",
        QUEUE,
        "HistoryQueue.leave_out",
        "self.drop(len(self._batch.noted))",
        "pass",
        (UNKEPT,),
    ),
    Bug(
        "keys that were cut are not told apart",
        ENTRIES,
        "stored_key",
        ' + "#" + digest',
        "",
        (f"{HISTORY}::test_keys_of_any_text_are_told_apart",),
    ),
    Bug(
        "what waits for the history is not bounded",
        QUEUE,
        "HistoryQueue.put",
        "len(self._noted) >= QUEUED_MAX",
        "False",
        (f"{HISTORY}::test_what_finds_no_room_is_counted",),
    ),
    Bug(
        "a gap of the history is not told",
        QUEUE,
        "HistoryQueue.drop",
        "self._untold += count",
        "pass",
        (f"{HISTORY}::test_what_finds_no_room_is_counted",),
    ),
    Bug(
        "a batch of the history is written again behind a lost answer",
        STATEMENTS,
        "write_batch",
        "if was_tried and",
        "if False and",
        (f"{HISTORY}::test_a_commit_whose_answer_is_lost_is_not_written_twice",),
    ),
    Bug(
        "a batch of the history has new times at each try",
        QUEUE,
        "HistoryBatch.stamp",
        "self.entries is None",
        "True",
        (f"{HISTORY}::test_a_commit_whose_answer_is_lost_is_not_written_twice",),
    ),
    Bug(
        "a batch that failed is forgotten",
        WRITER,
        "HistoryWriter._write_all",
        "await self._write_or_leave_out(batch)\n            self.queue.confirm()",
        "self.queue.confirm()\n            await self._write_or_leave_out(batch)",
        (f"{FAULTS}::test_what_is_wrong_harms_no_outcome",),
    ),
    Bug(
        "each failure of the history is logged",
        WRITER,
        "HistoryWriter._failed",
        "self._failures > 1",
        "False",
        (f"{FAULTS}::test_what_is_wrong_harms_no_outcome",),
    ),
    Bug(
        "the history grows with time",
        STATEMENTS,
        "delete_old",
        ", (at, at < database_time_after(-KEPT_FOR))",
        ",",
        (f"{HISTORY}::test_entries_are_kept_for_a_week",),
    ),
    Bug(
        "the history grows with the rows",
        STATEMENTS,
        "delete_old",
        "(number, surplus), ",
        "",
        (f"{HISTORY}::test_so_many_entries_are_kept",),
    ),
    Bug(
        "all replicas delete the history at once",
        STATEMENTS,
        "delete_old",
        "not await INSIGHT.of(connection).try_hold_name(connection, history.name)",
        "False",
        (f"{HISTORY}::test_one_replica_deletes_at_a_time",),
    ),
    Bug(
        "pipelines of one name share a history",
        RECORDER,
        "HistoryRecorder._writer_of",
        "len(writers) > 1",
        "False",
        (f"{HISTORY}::test_pipelines_of_one_name_are_not_mixed_up",),
    ),
    Bug(
        "all databases share one history",
        RECORDER,
        "HistoryRecorder._writer_for",
        "bind_of(sessions(), leased).engine",
        "None",
        (f"{HISTORY}::test_each_database_has_its_own_history",),
    ),
    Bug(
        "an action fails with its entry",
        "insight/history/acts.py",
        "tell_action",
        "except Exception as error:  # noqa: BLE001",
        "except ZeroDivisionError as error:",
        (f"{FAULTS}::test_an_action_without_its_table_is_done",),
    ),
    Bug(
        "a timeline shows no gap",
        ASKED,
        "_entries",
        "columns.kind == EntryKind.GAP.value, ",
        "",
        (f"{TIMELINE}::test_a_timeline",),
    ),
    Bug(
        "a timeline without its table fails",
        ASKED,
        "read_timeline",
        "await ask_part(connection, ask, apart=True)",
        "await ask_part(connection, ask, apart=False)",
        (f"{TIMELINE}::test_without_the_table",),
    ),
    Bug(
        "a timeline shows what an error hides",
        ASKED,
        "Timeline.presented",
        "error=redact(one.error)",
        "error=one.error",
        (f"{TIMELINE}::test_errors_are_redacted",),
    ),
    Bug(
        "a timeline moves the cursor",
        ASKED,
        "TimelineEntry.what",
        'shown(f"{self.action} by {self.actor}: {self.reason}")',
        'f"{self.action} by {self.actor}: {self.reason}"',
        (f"{TIMELINE}::test_texts_of_rows_move_no_cursor",),
    ),
)

TRACING_BUGS = (
    Bug(
        "a span has the text of an error",
        TRACING,
        "SurroundingSpan.__exit__",
        "span.set_status(Status(StatusCode.ERROR))",
        "span.set_status(Status(StatusCode.ERROR, str(error)))",
        (f"{TRACED}::test_a_span_names_an_error_and_no_value",),
    ),
    Bug(
        "an outcome that is raised is an error of its span",
        TRACING,
        "SurroundingSpan.__exit__",
        "not isinstance(error, Outcome)",
        "True",
        (f"{TRACED}::test_an_outcome_that_is_raised_is_no_error",),
    ),
    Bug(
        "an attempt links every fetch",
        TRACING,
        "Tracing._links_of",
        "if one.claimed_at_s == item.claimed_at",
        "if one.claimed_at_s != item.claimed_at",
        (f"{TRACED}::test_a_request_is_followed_to_its_write",),
    ),
    Bug(
        "a row's own span is not linked",
        TRACING,
        "_writer_of",
        "if found is None:",
        "if True:",
        (f"{TRACED}::test_a_request_is_followed_to_its_write",),
    ),
    Bug(
        "attempts that are not sampled are remembered",
        TRACING,
        "Tracing.begin_attempt",
        "if context.trace_flags.sampled:",
        "if True:",
        (f"{TRACED}::test_what_no_sampler_wants_is_not_remembered",),
    ),
    Bug(
        "a hint is linked for ever",
        TRACING,
        "Tracing._fetched",
        "self._hints.pop(event.model, ())",
        "self._hints.get(event.model, ())",
        (f"{TRACED}::test_links_are_bounded",),
    ),
    Bug(
        "a write links all that it has settled",
        TRACING,
        "Tracing._wrote",
        "[:SETTLED_MAX]",
        "",
        (f"{TRACED}::test_links_are_bounded",),
    ),
    Bug(
        "any text is a span",
        "telemetry/trace_column.py",
        "read_traceparent",
        "return (trace_id, span_id, flags) if trace_id and span_id else None",
        "return (trace_id, span_id, flags)",
        (f"{TRACED}::test_hostile_traceparents_are_no_links",),
    ),
)

REHEARSAL_BUGS = (
    Bug(
        "a rehearsal may take back that it only reads",
        READ_ONLY,
        "ReadOnlySessions.__call__",
        'event.listen(session.sync_session, "after_begin", _begin)',
        "pass",
        (f"{NOTHING_WRITTEN}[postgresql-said_otherwise]",),
    ),
    Bug(
        "a rehearsal writes without a transaction",
        "insight/dialects/postgresql.py",
        "PostgresqlInsight.begin_without_writing",
        "_READ_FROM_NOW_ON if raw.autocommit else _BEGIN_READING",
        "_BEGIN_READING",
        (f"{NOTHING_WRITTEN}[postgresql-autocommitted]",),
    ),
    Bug(
        "a rehearsal has the host's own sessions",
        READ_ONLY,
        "refused_to_rehearsals",
        "_IS_REHEARSAL.get() and",
        "False and",
        (f"{REHEARSED}::test_the_hosts_own_sessions_are_refused_to_it_alone",),
    ),
    Bug(
        "a rehearsal refuses the requests beside it",
        READ_ONLY,
        "refused_to_rehearsals",
        "_IS_REHEARSAL.get() and",
        "True and",
        (f"{REHEARSED}::test_the_hosts_own_sessions_are_refused_to_it_alone",),
    ),
    Bug(
        "a pipeline is rehearsed that does not say so",
        "insight/rehearsing/attempt.py",
        "check_rehearsable",
        "not pipeline.rehearsable",
        "False",
        (f"{REHEARSED}::test_what_may_not_be_rehearsed_is_refused",),
    ),
    Bug(
        "a plan shows what is hidden",
        "insight/rehearsing/answer.py",
        "_changes",
        "column in hidden",
        "False",
        (f"{REHEARSED}::test_a_plan_says_what_would_be_written",),
    ),
)

ASSISTANT_BUGS = (
    Bug(
        "an assistant knows the mark of the next answer",
        ASSISTANT,
        "marked",
        "secrets.token_hex(8)",
        '"end of data"',
        (f"{ASSISTED}::test_texts_of_rows_are_marked_as_data",),
    ),
    Bug(
        "an answer to an assistant has no end",
        ASSISTANT,
        "marked",
        "len(text) > ANSWER_CHARS_MAX",
        "False",
        (f"{ASSISTED}::test_an_answer_is_bounded",),
    ),
    Bug(
        "an assistant asks all at once",
        ASSISTANT,
        "Assistant.answer",
        "async with self._places:",
        "if True:",
        (f"{ASSISTED}::test_so_many_questions_are_asked_at_once",),
    ),
    Bug(
        "an output that takes nothing is written to for ever",
        "cli/asking/mcp.py",
        "_end",
        "os._exit(WELL if is_gone else MISUSED)",
        "pass",
        ("tests/cli/test_asking_programs.py::test_an_output_that_takes_nothing_ends_it",),
    ),
)
