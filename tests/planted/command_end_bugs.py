"""Guards of how a command ends, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

STRANGE = "tests/cli/test_strange_apps.py"
GOES_ON = f"{STRANGE}::test_code_that_goes_on_keeps_no_answer_back"
NO_ANSWER = f"{STRANGE}::test_what_ends_no_question_is_no_answer"
ANSWERING = "cli/answering.py"

COMMAND_END_BUGS = (
    Bug(
        "a command waits for code that ignores its end",
        ANSWERING,
        "_close.exit_if_kept",
        "if is_closed.is_set() and not _begun_since(before):",
        "if not never.is_set():",
        (GOES_ON,),
    ),
    Bug(
        "a command waits for a thread of the app",
        ANSWERING,
        "_begun_since",
        "one not in before",
        "one is before",
        (GOES_ON,),
    ),
    Bug(
        "an exit of the app's code is the exit of a command",
        ANSWERING,
        "answered",
        "except (Exception, SystemExit) as error:",
        "except Exception as error:",
        (NO_ANSWER,),
    ),
    Bug(
        "too many rows pass for a database that is away",
        ANSWERING,
        "_asked",
        "within_s > ANSWER_WITHIN_S",
        "within_s > 1000",
        (NO_ANSWER,),
    ),
    Bug(
        "a command without an output fails at its answer",
        "__main__.py",
        "main",
        "if stdout is None:",
        "if stdout is words:",
        (f"{STRANGE}::test_an_output_that_takes_nothing_is_told_in_a_line",),
    ),
)
