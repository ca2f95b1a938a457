"""Guards of the time that a page has, of the spans that a history names, and of a command that has
no document, with the tests that must notice.
"""

from __future__ import annotations

from bug import Bug

PAGE_TIME = "tests/dashboard/test_page_time.py"
ALL_END = f"{PAGE_TIME}::test_all_questions_end_with_the_time_of_their_page"
QUESTIONER = "insight/asking/questioner.py"
TRACE_IDS = "insight/history/trace_ids.py"
SPANS = (
    "tests/insight/test_history_ends.py::test_one_history_that_ends_leaves_the_spans_of_others",
)

PAGE_TIME_BUGS = (
    Bug(
        "a page waits for a transaction that cannot be ended",
        "dashboard/guarding/page_time.py",
        "made_within",
        "await asyncio.wait({task}, timeout=seconds)",
        "await asyncio.wait({task})",
        (f"{PAGE_TIME}::test_a_page_is_not_kept_by_a_transaction_that_cannot_be_ended",),
    ),
    Bug(
        "a question outlasts its page",
        QUESTIONER,
        "Questioner.read_by_session",
        "timeout=question_time(self.limits.timeout)",
        "timeout=self.limits.timeout",
        (ALL_END,),
    ),
    Bug(
        "a statement outlasts its page",
        QUESTIONER,
        "Questioner.read_by_session.work",
        "time_left(statement_timeout or self.limits.statement_timeout)",
        "statement_timeout or self.limits.statement_timeout",
        (f"{ALL_END}[postgresql]",),
    ),
    Bug(
        "each part of what hangs has the time of the whole",
        QUESTIONER,
        "part_timeout",
        "PART_SHARE if is_transient(refused) else 1",
        "1",
        (f"{PAGE_TIME}::test_parts_of_what_hangs_fit_into_a_page",),
    ),
    Bug(
        "an action outlasts its page",
        "insight/steering/actions.py",
        "Actions._transact",
        "time_left(ACTION_TIMEOUT)",
        "ACTION_TIMEOUT",
        (ALL_END,),
    ),
    Bug(
        "the first history that ends forgets the spans of all",
        TRACE_IDS,
        "TraceIds.remove_reader",
        "self._readers.discard(reader)",
        "self._readers.clear()",
        SPANS,
    ),
    Bug(
        "spans that nobody reads any more are kept",
        TRACE_IDS,
        "TraceIds.remove_reader",
        "if not self.is_wanted:",
        "if False:",
        SPANS,
    ),
    Bug(
        "a dashboard is served to who wants a document",
        "cli/windows/dashboard.py",
        "run",
        "if options.json:",
        "if False:",
        ("tests/cli/test_dashboard_command.py::test_no_document_is_promised",),
    ),
)
