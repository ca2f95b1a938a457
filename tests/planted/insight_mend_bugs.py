"""Guards of what an explanation, a check and a status say of hosts that are out of the ordinary."""

from __future__ import annotations

from bug import Bug

STATUS = "tests/insight/test_status.py"
OBSERVER = "tests/insight/test_observer.py"
LOG_LINES = "tests/telemetry/test_logs.py"
KEYS = "tests/insight/test_keys.py::test_what_is_shown_of_a_key_names_its_row"
APPS = "tests/cli/test_strange_apps.py"
LITERALS = "tests/insight/test_values_without_literals.py"

INSIGHT_MEND_BUGS = (
    Bug(
        "a plan is asked for with literals alone",
        "insight/checking/claim_plan.py",
        "claim_queries",
        "yield query",
        "return",
        (f"{LITERALS}::test_a_literal_of_another_type_refuses_no_claim",),
    ),
    Bug(
        "a value without a literal costs the answer",
        "insight/checking/claim_plan.py",
        "claim_queries",
        "suppress(Exception)",
        "suppress()",
        (f"{LITERALS}::test_a_value_without_a_literal_is_bound",),
    ),
    Bug(
        "a manager that was not started seems to run",
        "insight/counting/replicas.py",
        "ReplicaState.runs",
        ' and report.get("state", RUNS) == RUNS',
        "",
        (f"{STATUS}::test_what_is_registered_and_not_started_is_run_by_nobody",),
    ),
    Bug(
        "what a report has no room for seems to run nowhere",
        "insight/counting/running.py",
        "_may_run_unseen",
        "any(one.leaves_out for one in replicas.live)",
        "False",
        (f"{STATUS}::test_what_a_report_has_no_room_for_is_not_said_to_run_nowhere",),
    ),
    Bug(
        "a report leaves out pipelines before what is said of them",
        "insight/observing/report.py",
        "report_of",
        "any(set(one) - STATE_ALONE for one in told_of)",
        "False",
        (f"{OBSERVER}::test_each_of_many_pipelines_is_said_to_run",),
    ),
    Bug(
        "a replica drains as soon as one of its managers stops",
        "insight/observing/observer.py",
        "Observer._row",
        'bool(states) and states <= {"stopping", "stopped"}',
        'bool(states & {"stopping", "stopped"})',
        (f"{OBSERVER}::test_one_of_several_managers_may_stop",),
    ),
    Bug(
        "a line that cannot be written raises where it is logged",
        "telemetry/logs.py",
        "_told",
        "suppress(Exception)",
        "suppress()",
        (f"{LOG_LINES}::test_a_line_that_cannot_be_written_is_the_handlers[arguments]",),
    ),
    Bug(
        "a message that has no text raises where it is logged",
        "telemetry/logs.py",
        "_text_of",
        "except Exception",
        "except ArithmeticError",
        (f"{LOG_LINES}::test_a_line_that_cannot_be_written_is_the_handlers[message]",),
    ),
    Bug(
        "a key is handed to the database as it was typed",
        "insight/naming.py",
        "read_key",
        "key_of_text(kind, given)",
        "given",
        (KEYS,),
    ),
    Bug(
        "a time is compared with a zone that its column does not have",
        "insight/asking/key_text.py",
        "_zoned",
        "else utc.replace(tzinfo=None)",
        "else utc",
        (KEYS,),
    ),
    Bug(
        "what a type of the host's takes is not tried",
        "insight/asking/key_text.py",
        "_bindable",
        "_binds_itself(kind)",
        "False",
        (KEYS,),
    ),
    Bug(
        "rows are counted without the condition of the host",
        "insight/counting/waiting.py",
        "waiting_of",
        "asked.failure is None",
        "True",
        (f"{STATUS}::test_a_condition_that_is_refused_needs_a_person",),
    ),
    Bug(
        "a condition that the database refuses is a count that took too long",
        "insight/counting/counts.py",
        "counts_of",
        "not due.may_pass",
        "False",
        (f"{STATUS}::test_a_condition_that_is_refused_needs_a_person",),
    ),
    Bug(
        "what one user may not read is a trouble of the claims",
        "insight/counting/running.py",
        "status_of",
        "len(reports) > failing and told.counts.refused",
        "False",
        (f"{STATUS}::test_what_one_user_may_not_count_is_no_trouble_of_the_claims",),
    ),
    Bug(
        "a count that took too long is a condition that is refused",
        "insight/questions.py",
        "ask_part",
        "may_pass=is_transient(error)",
        "may_pass=False",
        (f"{STATUS}::test_a_count_that_takes_too_long_is_an_answer",),
    ),
    Bug(
        "the opening of an app is waited for without a bound",
        "cli/answering.py",
        "_asked",
        "asyncio.timeout(within_s)",
        "asyncio.timeout(None)",
        (f"{APPS}::test_an_app_that_hangs_is_given_up",),
    ),
    Bug(
        "an app that fails at its end keeps the answer back",
        "cli/answering.py",
        "_asked",
        "if answer is None",
        "if True",
        (f"{APPS}::test_an_app_that_fails_at_its_end_keeps_no_answer_back",),
    ),
    Bug(
        "the exit of an app's function is that of the command",
        "insight/apps.py",
        "_resolved",
        "except SystemExit",
        "except MemoryError",
        (f"{APPS}::test_an_app_that_exits_is_no_answer[strange:exits]",),
    ),
    Bug(
        "the exit of an app's module is that of the command",
        "insight/apps.py",
        "imported",
        "(Exception, SystemExit)",
        "Exception",
        (f"{APPS}::test_an_app_that_exits_is_no_answer[leaving:app]",),
    ),
    Bug(
        "an answer is printed in UTF-8 alone",
        "cli/paper.py",
        "write",
        '"backslashreplace"',
        '"strict"',
        (f"{APPS}::test_an_output_of_another_encoding_gets_the_answer",),
    ),
    Bug(
        "an output that takes nothing is an error with a traceback",
        "cli/answering.py",
        "_printed",
        "except OSError",
        "except MemoryError",
        (f"{APPS}::test_an_output_that_takes_nothing_is_told_in_a_line",),
    ),
)
