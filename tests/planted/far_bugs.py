"""Guards of questions to a database that is far away, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

FAR = "tests/insight/test_far_away.py"
STATUS = "tests/insight/test_status.py"
COMMAND = "tests/cli/test_no_database.py"
REFUSED = "tests/insight/test_refused.py"
KEYS = "tests/insight/test_keys.py"
APPS = "tests/cli/test_explain.py"
PLAIN = "tests/insight/test_plain_times.py::test_plain_times_are_counted_from"
TOLD = "tests/leases/test_transaction.py::test_the_error_of_a_cancelled_callers_transaction_is_told"
SIDE = "insight/asking/concurrent_questions.py"

FAR_BUGS = (
    Bug(
        "answers stand in the order in which they came",
        SIDE,
        "asked_concurrently",
        "[answers[number] for number in range(len(asks))]",
        "list(answers.values())",
        (f"{FAR}::test_answers_stand_in_the_order_of_their_questions",),
    ),
    Bug(
        "all pipelines are asked at once",
        SIDE,
        "asked_concurrently",
        "in asks[:at_once]:",
        "in asks:",
        (f"{FAR}::test_answers_stand_in_the_order_of_their_questions",),
    ),
    Bug(
        "questions go on beside one that has failed",
        SIDE,
        "asked_concurrently",
        "for task in tasks:\n            task.cancel()\n"
        "        await asyncio.gather(*tasks, return_exceptions=True)",
        "pass",
        (f"{FAR}::test_the_error_of_one_is_the_error_of_all",),
    ),
    Bug(
        "a status asks on after its time",
        "insight/insight.py",
        "Insight.status",
        "ends is None or monotonic() < ends",
        "True",
        (f"{FAR}::test_what_there_was_no_time_for_is_said",),
    ),
    Bug(
        "a pipeline that was not asked seems to have nothing",
        "insight/counting/running.py",
        "status_of",
        "unknown=(why,)",
        "unknown=()",
        (f"{FAR}::test_what_there_was_no_time_for_is_said",),
    ),
    Bug(
        "each count goes to the database by itself",
        "insight/counting/asking.py",
        "waiting_asked",
        "asked.failure is not None",
        "True",
        (f"{FAR}::test_a_status_is_one_statement_for_each_pipeline",),
    ),
    Bug(
        "one count that is refused is an error of the whole status",
        "insight/questions.py",
        "whole_else_apart",
        "not is_of_a_statement(error)",
        "True",
        (f"{STATUS}::test_a_count_that_takes_too_long_is_an_answer",),
    ),
    Bug(
        "the command for a slow database has no answer but an error",
        "cli/status.py",
        "status_in_time",
        "within=STATUS_WITHIN",
        "",
        (f"{COMMAND}::test_a_database_that_is_slow_is_asked_as_long_as_there_is_time",),
    ),
    Bug(
        "a column that is to be hidden is looked for at the first question",
        "insight/insight.py",
        "Insight.__init__",
        "        self._check_columns()\n",
        "",
        (f"{REFUSED}::test_columns_that_no_model_has_are_refused_at_once",),
    ),
    Bug(
        "a key of another type is for the database to refuse",
        "insight/naming.py",
        "read_key",
        "not may_be_key(kind, given)",
        "False",
        (f"{KEYS}::test_what_is_shown_of_a_key_names_its_row",),
    ),
    Bug(
        "keys that are true or false have no order",
        "insight/questions.py",
        "place_of",
        "literal(question.key, key.type)",
        "question.key",
        (f"{KEYS}::test_what_is_shown_of_a_key_names_its_row",),
    ),
    Bug(
        "a TypeError within an app is told as one of its arguments",
        "insight/apps.py",
        "_check_arguments",
        "signature.bind()",
        "found()",
        (f"{APPS}::test_without_an_app_one_line_says_what_to_write",),
    ),
    Bug(
        "an app that hangs as it is opened is watched for ever",
        "cli/answering.py",
        "opened",
        "asyncio.timeout(ANSWER_WITHIN_S)",
        "asyncio.timeout(None)",
        ("tests/cli/test_strange_apps.py::test_an_app_that_hangs_is_given_up",),
    ),
    Bug(
        "the look at indexes gives up where a literal is refused",
        "leases/indexes/index_look.py",
        "_is_served",
        "except DBAPIError as error:",
        "except ZeroDivisionError as error:",
        ("tests/migrations/test_index_look.py::test_values_without_a_text_are_bound",),
    ),
    Bug(
        "a time without its zone costs the whole status",
        "insight/counting/counts.py",
        "counts_read",
        'with_zone(answers.get("oldest"), place)',
        'answers.get("oldest")',
        (f"{PLAIN}[sqlite]",),
    ),
    Bug(
        "a time without its zone costs the census",
        "insight/counting/exact.py",
        "exact_counts",
        "with_zone(first, leased.column(order_column(leased).key))",
        "first",
        (f"{PLAIN}[sqlite]",),
    ),
    Bug(
        "a claim that is refused seems to have no index",
        "insight/checking/pipeline_view.py",
        "PipelineView._index",
        "if self.plan.refused:",
        "if False:",
        ("tests/insight/test_check_trouble.py::test_a_claim_that_is_refused",),
    ),
    Bug(
        "a question whose asker went away leaves a traceback",
        "shielding.py",
        "finish",
        "logger.warning if writes else logger.debug",
        "logger.warning",
        (f"{TOLD}[sqlite-False]",),
    ),
    Bug(
        "all questions count as writing",
        "database/transaction.py",
        "in_transaction",
        ", writes=writes)",
        ")",
        (f"{TOLD}[sqlite-False]",),
    ),
)
