"""Guards of the demo: without them a newcomer would see a success that is none, or be left with
processes and schemas.
"""

from __future__ import annotations

from bug import Bug

COMMAND = "tests/demo/test_command.py"
DEMO = "tests/demo/test_demo.py"
RUN = "tests/demo/test_run.py"
VERDICT = "tests/demo/test_verdict.py"

DEMO_BUGS = (
    Bug(
        "the demo ends well whatever it found",
        "demo/command.py",
        "_conclude",
        "if not broken",
        "if True",
        (f"{COMMAND}::test_wrong_result_is_a_failure",),
    ),
    Bug(
        "the demo follows links",
        "demo/command.py",
        "_is_wanted",
        " and not path.is_symlink()",
        "",
        (f"{COMMAND}::test_small_folder",),
    ),
    Bug(
        "the demo takes files whose names no database stores",
        "demo/command.py",
        "_is_wanted",
        "        str(path).encode()\n",
        "",
        (f"{COMMAND}::test_small_folder",),
    ),
    Bug(
        "the demo reads files of any size",
        "demo/command.py",
        "_is_wanted",
        " and path.stat().st_size <= FILE_BYTES_MAX",
        "",
        (f"{COMMAND}::test_small_folder",),
    ),
    Bug(
        "the demo reads what Python writes meanwhile",
        "demo/command.py",
        "_walk",
        " - {PASSED_OVER}",
        "",
        (f"{COMMAND}::test_small_folder",),
    ),
    Bug(
        "the demo shows a password",
        "demo/database.py",
        "tables_at",
        "{address!r}",
        "{address.render_as_string(hide_password=False)}",
        (f"{COMMAND}::test_password_is_not_shown",),
    ),
    Bug(
        "the demo leaves its schema behind",
        "demo/database.py",
        "_drop",
        'f"DROP SCHEMA {schema} CASCADE"',
        '"SELECT 1"',
        (f"{DEMO}::test_interrupted_demo_leaves_nothing_behind[postgresql]",),
    ),
    Bug(
        "a stopped demo cleans nothing up",
        "demo/command.py",
        "_run",
        "asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal,"
        " signal.SIGINT)",
        "pass",
        (f"{DEMO}::test_interrupted_demo_leaves_nothing_behind[postgresql]",),
    ),
    Bug(
        "the demo leaves replicas behind",
        "demo/run.py",
        "replicas_on",
        "in _alive(replicas)",
        "in ()",
        (f"{RUN}::test_replicas_end_on_every_path",),
    ),
    Bug(
        "the demo goes on without a replica that did not start",
        "demo/run.py",
        "replicas_on",
        "if not answer",
        "if False",
        (f"{RUN}::test_replica_that_cannot_start_shows_its_log",),
    ),
    Bug(
        "the demo kills its last replica",
        "demo/run.py",
        "kill_busiest",
        "len(alive) > 1 and ",
        "",
        (f"{RUN}::test_replica_at_work_is_killed_unless_it_is_the_last",),
    ),
    Bug(
        "the demo kills an idle replica",
        "demo/run.py",
        "kill_busiest",
        " and any(waiting)",
        "",
        (f"{RUN}::test_replica_at_work_is_killed_unless_it_is_the_last",),
    ),
    Bug(
        "the demo compares no results",
        "demo/verdict.py",
        "judge",
        " if results[path] != expected.get(path)",
        " if False",
        (f"{VERDICT}::test_planted_lie",),
    ),
    Bug(
        "the demo overlooks a result that was written twice",
        "demo/verdict.py",
        "judge",
        "if count > 1",
        "if count > 2",
        (f"{VERDICT}::test_planted_lie",),
    ),
    Bug(
        "the demo counts rows that are not finished",
        "demo/verdict.py",
        "judge",
        " and results[path][0] != NEW",
        "",
        (f"{VERDICT}::test_planted_lie",),
    ),
    Bug(
        "the demo believes a result that the database did not note",
        "demo/verdict.py",
        "judge",
        "if count and results",
        "if results",
        (f"{VERDICT}::test_planted_lie",),
    ),
    Bug(
        "the demo does not ask the checker",
        "demo/verdict.py",
        "judge",
        "check(changes, stopped=True)",
        "()",
        (f"{VERDICT}::test_planted_lie",),
    ),
    Bug(
        "the demo forgives a replica that failed",
        "demo/verdict.py",
        "_of_replicas",
        "code > 0",
        "False",
        (f"{VERDICT}::test_replica_that_fails_by_itself_is_no_success",),
    ),
    Bug(
        "a file that cannot be read is tried for ever",
        "demo/host.py",
        "CatalogueFiles.process",
        "except OSError",
        "except ZeroDivisionError",
        (f"{VERDICT}::test_truth_is_free",),
    ),
)
