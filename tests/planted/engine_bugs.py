"""Bugs of the engines of this machine: each would lose what was recorded, blame a row, or leave
something running.
"""

from __future__ import annotations

from typing import Final

from bug import Bug

ENGINES: Final = "tests/dispatch/test_engines.py"
OWN: Final = "tests/dispatch/test_engines_own.py"
PROCESSES: Final = "tests/dispatch/test_engines_processes.py"
STARTS: Final = "tests/dispatch/test_engines_starts.py"

ENGINE_BUGS: Final[tuple[Bug, ...]] = (
    Bug(
        "a process goes on before its stage is recorded",
        "dispatch/engines/child.py",
        "_run",
        "dispatcher.wait()",
        "pass",
        (f"{ENGINES}::test_a_handler_goes_on_when_its_stage_is_recorded[process]",),
    ),
    Bug(
        "an async handler in a process goes on before its stage is recorded",
        "dispatch/engines/child.py",
        "_run_async",
        "await dispatcher.wait_on_loop()",
        "pass",
        (f"{PROCESSES}::test_it_beats_while_a_stage_is_recorded[tells_a_stage]",),
    ),
    Bug(
        "the loop of a handler stands still while its stage is recorded",
        "dispatch/engines/child.py",
        "_run_async",
        "await dispatcher.wait_on_loop",
        "dispatcher.wait",
        (f"{PROCESSES}::test_it_beats_while_a_stage_is_recorded[tells_a_stage]",),
    ),
    Bug(
        "a stage is taken for recorded when it was heard",
        "dispatch/engines/process_line.py",
        "WorkerConnection.next_event",
        "isinstance(event, StageDone)",
        "False\n        if isinstance(event, StageDone):\n            writer.write(ACK)",
        (f"{ENGINES}::test_a_handler_goes_on_when_its_stage_is_recorded[process]",),
    ),
    Bug(
        "a process begins before it is listened to",
        "dispatch/engines/child.py",
        "run_task",
        "            dispatcher.wait()\n",
        "",
        (f"{ENGINES}::test_an_attempt_begins_when_it_is_listened_to[process]",),
    ),
    Bug(
        "a process does not beat while it loads its task",
        "dispatch/engines/child.py",
        "run_task",
        "beats.start()\n        try:\n            dispatcher.send(os.getpid())\n           "
        " dispatcher.wait()\n            # From the process that started this one.\n           "
        " _run(pickle.loads(pickled), dispatcher)",
        "try:\n            dispatcher.send(os.getpid())\n            dispatcher.wait()\n           "
        " task = pickle.loads(pickled)\n            beats.start()\n            _run(task,"
        " dispatcher)",
        (f"{OWN}::test_a_process_that_loads_its_task_slowly_is_alive",),
    ),
    Bug(
        "a process without a dispatcher waits for it",
        "dispatch/engines/child.py",
        "DispatcherConnection.wait",
        "end(NOBODY_LISTENS)",
        "signal.pause()",
        (f"{PROCESSES}::test_a_process_without_a_dispatcher_ends_with_what_it_started",),
    ),
    Bug(
        "a process without a dispatcher leaves its subprocesses",
        "dispatch/engines/group.py",
        "end",
        "kill(os.getpid())",
        "pass",
        (f"{PROCESSES}::test_a_process_without_a_dispatcher_ends_with_what_it_started",),
    ),
    Bug(
        "a cancelled attempt leaves its subprocesses",
        "dispatch/engines/process_line.py",
        "WorkerConnection.hang_up",
        "group.kill(self._pid)",
        "pass",
        (f"{PROCESSES}::test_a_subprocess_ends_with_its_attempt",),
    ),
    Bug(
        "a subprocess prints into the answers to anyio",
        "dispatch/engines/group.py",
        "redirected_streams",
        "_to_nowhere(STREAMS, inheritable=True)",
        "pass",
        (f"{PROCESSES}::test_what_a_subprocess_prints_and_reads_is_its_own",),
    ),
    Bug(
        "a subprocess complains until it stands still",
        "dispatch/engines/group.py",
        "",
        ", 2",
        "",
        (f"{PROCESSES}::test_what_a_subprocess_prints_and_reads_is_its_own",),
    ),
    Bug(
        "a process that hung up is waited for",
        "dispatch/engines/process_line.py",
        "WorkerConnection.ended",
        ", timeout=PROCESS_END_S_MAX",
        "",
        (f"{PROCESSES}::test_a_process_that_hangs_up_is_gone",),
    ),
    Bug(
        "a fork is taken for its process",
        "dispatch/engines/group.py",
        "kept_from_forks",
        "    _OWN.extend(files)\n",
        "",
        (
            f"{PROCESSES}::test_a_process_that_dies_beside_a_fork_of_itself_is_noticed",
            f"{PROCESSES}::test_a_fork_that_leaves_the_handler_says_nothing",
        ),
    ),
    Bug(
        "a process is killed when its work is done",
        "dispatch/engines/process_line.py",
        "WorkerConnection.hang_up",
        "self._is_over",
        "False",
        (f"{PROCESSES}::test_a_process_is_kept_for_the_next_attempt",),
    ),
    Bug(
        "a machine without processes fails its rows",
        "dispatch/engines/process.py",
        "ProcessEngine",
        "needs_something: ClassVar[bool] = True",
        "needs_something: ClassVar[bool] = False",
        (f"{STARTS}::test_such_a_row_is_done_when_the_machine_is_well",),
    ),
    Bug(
        "a machine without threads fails its rows",
        "dispatch/engines/thread.py",
        "ThreadEngine.run",
        "            thread.submit(_nothing)\n",
        "",
        (f"{OWN}::test_a_thread_that_cannot_be_had_is_no_failure_of_the_row",),
    ),
    Bug(
        "what cannot be begun costs a worker",
        "dispatch/engines/local.py",
        "LocalEngine._begun",
        "            left()\n",
        "",
        (f"{OWN}::test_a_thread_that_cannot_be_had_is_no_failure_of_the_row",),
    ),
    Bug(
        "attempts wait for a thread and show as running",
        "dispatch/engines/local.py",
        "LocalEngine.offer",
        "sum(self._active.values()) >= self.attempts_max",
        "False",
        (f"{OWN}::test_threads_have_an_end",),
    ),
    Bug(
        "a process that never starts is waited for",
        "dispatch/engines/process_line.py",
        "WorkerConnection.hang_up",
        "max(0.0, self._kept_until - monotonic())",
        "",
        (f"{STARTS}::test_a_process_that_never_starts_is_killed",),
    ),
    Bug(
        "a process is forgotten over its start",
        "dispatch/engines/process_line.py",
        "WorkerConnection.hang_up",
        "            await self._wait_for_either(max(0.0, self._kept_until - monotonic()))\n",
        "",
        (f"{STARTS}::test_an_offer_that_is_given_up_at_any_step_leaves_nothing",),
    ),
    Bug(
        "a second cancellation leaves a process",
        "dispatch/engines/process_line.py",
        "started",
        'finish(connection.hang_up(), purpose="end a worker process")',
        "connection.hang_up()",
        (f"{STARTS}::test_to_insist_on_an_end_does_not_leave_a_process",),
    ),
    Bug(
        "a None is taken for the death of its process",
        "dispatch/engines/child.py",
        "_event_of",
        "isinstance",
        "message is None or isinstance",
        (f"{PROCESSES}::test_none_is_no_event",),
    ),
    Bug(
        "subprocesses take no notice of SIGINT",
        "dispatch/engines/child.py",
        "run_task",
        "lambda *_: None",
        "signal.SIG_IGN",
        (f"{PROCESSES}::test_a_handler_can_interrupt_its_subprocess",),
    ),
    Bug(
        "a process stays in its last attempt's folder",
        "dispatch/engines/child.py",
        "as_before",
        "os.chdir(folder)",
        "pass",
        (f"{PROCESSES}::test_an_attempt_finds_the_folder_and_the_variables_of_the_dispatcher",),
    ),
    Bug(
        "a process stays in a folder that is gone",
        "dispatch/engines/child.py",
        "as_before",
        'os.chdir("/")',
        "pass",
        (f"{PROCESSES}::test_a_process_whose_folder_is_gone_goes_elsewhere",),
    ),
    Bug(
        "a process keeps its last attempt's variables",
        "dispatch/engines/child.py",
        "as_before",
        "os.environ.clear()",
        "pass",
        (f"{PROCESSES}::test_an_attempt_finds_the_folder_and_the_variables_of_the_dispatcher",),
    ),
    Bug(
        "an offer that is given up waits for its process",
        "dispatch/engines/local.py",
        "LocalEngine._begun",
        "({has_all})",
        "({has_all})\n        except asyncio.CancelledError:\n            await _undo(has_all,"
        " attempt)\n            left()\n            raise",
        (
            f"{STARTS}::test_an_offer_that_is_given_up_lets_go_at_once",
            f"{STARTS}::test_a_drain_over_a_start_frees_the_row",
        ),
    ),
    Bug(
        "a worker is free while its process is given up",
        "dispatch/engines/local.py",
        "LocalEngine._begun",
        "undoing.add_done_callback(lambda _: left())",
        "left()",
        (f"{STARTS}::test_an_offer_that_is_given_up_lets_go_at_once",),
    ),
    Bug(
        "a process that starts slowly is not told of",
        "dispatch/engines/process_line.py",
        "WorkerConnection.open",
        "(SLOW_START_S)",
        "()",
        (f"{STARTS}::test_a_slow_start_is_told_once",),
    ),
    Bug(
        "an attempt outlives its loop",
        "dispatch/engines/local.py",
        "LocalEngine._forget",
        "self._on_loops.pop(loop).elements",
        "",
        (f"{STARTS}::test_a_loop_that_ends_takes_its_attempts_along",),
    ),
    Bug(
        "a process does not tell where its handler failed",
        "dispatch/engines/child.py",
        "run_task",
        ", detail=detail_of(error)",
        "",
        (f"{PROCESSES}::test_a_failure_says_where_it_comes_from",),
    ),
)
