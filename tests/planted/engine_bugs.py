"""Bugs of the engines of this machine: each would lose what was recorded, blame a row, or leave something running."""

from __future__ import annotations

from typing import Final

from bug import Bug

ENGINES: Final = "tests/dispatch/test_engines.py"
PROCESSES: Final = "tests/dispatch/test_engines_processes.py"
STARTS: Final = "tests/dispatch/test_engines_starts.py"

ENGINE_BUGS: Final[tuple[Bug, ...]] = (
    Bug(
        "a process goes on before its stage is recorded",
        "dispatch/engines/child.py",
        "            if isinstance(event, StageDone):\n                line.wait()\n",
        "            if isinstance(event, StageDone):\n                pass\n",
        (f"{ENGINES}::test_a_handler_goes_on_when_its_stage_is_recorded[process]",),
    ),
    Bug(
        "an async handler in a process goes on before its stage is recorded",
        "dispatch/engines/child.py",
        "            await line.wait_on_loop()\n",
        "            pass\n",
        (f"{PROCESSES}::test_it_beats_while_a_stage_is_recorded[tells_a_stage]",),
    ),
    Bug(
        "the loop of a handler stands still while its stage is recorded",
        "dispatch/engines/child.py",
        "            await line.wait_on_loop()\n",
        "            line.wait()\n",
        (f"{PROCESSES}::test_it_beats_while_a_stage_is_recorded[tells_a_stage]",),
    ),
    Bug(
        "a stage is taken for recorded when it was heard",
        "dispatch/engines/process_line.py",
        "        self._is_waiting = isinstance(event, StageDone)\n",
        "        self._is_waiting = False\n        if isinstance(event, StageDone):\n            writer.write(GO_ON)\n",
        (f"{ENGINES}::test_a_handler_goes_on_when_its_stage_is_recorded[process]",),
    ),
    Bug(
        "a process begins before it is listened to",
        "dispatch/engines/child.py",
        "            line.send(os.getpid())\n            line.wait()\n",
        "            line.send(os.getpid())\n",
        (f"{ENGINES}::test_an_attempt_begins_when_it_is_listened_to[process]",),
    ),
    Bug(
        "a process does not beat while it loads its task",
        "dispatch/engines/child.py",
        "        beats.start()\n        try:\n            line.send(os.getpid())\n            line.wait()\n"
        "            _run(pickle.loads(pickled), line)",
        "        try:\n            line.send(os.getpid())\n            line.wait()\n"
        "            task = pickle.loads(pickled)\n            beats.start()\n            _run(task, line)",
        (f"{ENGINES}::test_a_process_that_loads_its_task_slowly_is_alive",),
    ),
    Bug(
        "a process without a dispatcher waits for it",
        "dispatch/engines/child.py",
        "        if not answer:\n            end(NOBODY_LISTENS)\n",
        "        if not answer:\n            signal.pause()\n",
        (f"{PROCESSES}::test_a_process_without_a_dispatcher_ends_with_what_it_started",),
    ),
    Bug(
        "a process without a dispatcher leaves its subprocesses",
        "dispatch/engines/group.py",
        "    kill(os.getpid())\n",
        "    pass\n",
        (f"{PROCESSES}::test_a_process_without_a_dispatcher_ends_with_what_it_started",),
    ),
    Bug(
        "a cancelled attempt leaves its subprocesses",
        "dispatch/engines/process_line.py",
        "                group.kill(self._pid)\n",
        "                pass\n",
        (f"{PROCESSES}::test_a_subprocess_ends_with_its_attempt",),
    ),
    Bug(
        "a subprocess prints into the answers to anyio",
        "dispatch/engines/group.py",
        "        _to_nowhere(STREAMS, inheritable=True)\n",
        "        pass\n",
        (f"{PROCESSES}::test_what_a_subprocess_prints_and_reads_is_its_own",),
    ),
    Bug(
        "a subprocess complains until it stands still",
        "dispatch/engines/group.py",
        "STREAMS: Final = (0, 1, 2)\n",
        "STREAMS: Final = (0, 1)\n",
        (f"{PROCESSES}::test_what_a_subprocess_prints_and_reads_is_its_own",),
    ),
    Bug(
        "a process that hung up is waited for",
        "dispatch/engines/process_line.py",
        "        await asyncio.wait({self._call}, timeout=END_S_MAX)\n        if not",
        "        await asyncio.wait({self._call})\n        if not",
        (f"{PROCESSES}::test_a_process_that_hangs_up_is_gone",),
    ),
    Bug(
        "a fork is taken for its process",
        "dispatch/engines/group.py",
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
        "            if self._is_over:\n                await",
        "            if False:\n                await",
        (f"{PROCESSES}::test_a_process_is_kept_for_the_next_attempt",),
    ),
    Bug(
        "a machine without processes fails its rows",
        "dispatch/engines/process.py",
        "    needs_something: ClassVar[bool] = True\n",
        "    needs_something: ClassVar[bool] = False\n",
        (f"{STARTS}::test_such_a_row_is_done_when_the_machine_is_well",),
    ),
    Bug(
        "a machine without threads fails its rows",
        "dispatch/engines/thread.py",
        "            thread.submit(_nothing)\n",
        "",
        (f"{ENGINES}::test_a_thread_that_cannot_be_had_is_no_failure_of_the_row",),
    ),
    Bug(
        "what cannot be begun costs a worker",
        "dispatch/engines/local.py",
        "        except BaseException:\n            left()\n",
        "        except BaseException:\n",
        (f"{ENGINES}::test_a_thread_that_cannot_be_had_is_no_failure_of_the_row",),
    ),
    Bug(
        "attempts wait for a thread and show as running",
        "dispatch/engines/local.py",
        "        if sum(self._active.values()) >= self.attempts_max:\n",
        "        if False:\n",
        (f"{ENGINES}::test_threads_have_an_end",),
    ),
    Bug(
        "a process that never starts is waited for",
        "dispatch/engines/process_line.py",
        "            await self._wait_for_either(max(0.0, self._kept_until - monotonic()))\n",
        "            await self._wait_for_either()\n",
        (f"{STARTS}::test_a_process_that_never_starts_is_killed",),
    ),
    Bug(
        "a process is forgotten over its start",
        "dispatch/engines/process_line.py",
        "            await self._wait_for_either(max(0.0, self._kept_until - monotonic()))\n",
        "",
        (f"{STARTS}::test_an_offer_that_is_given_up_at_any_step_leaves_nothing",),
    ),
    Bug(
        "a second cancellation leaves a process",
        "dispatch/engines/process_line.py",
        "        stack.push_async_callback(_to_its_end, line.hang_up)\n",
        "        stack.push_async_callback(line.hang_up)\n",
        (f"{STARTS}::test_to_insist_on_an_end_does_not_leave_a_process",),
    ),
    Bug(
        "a None is taken for the death of its process",
        "dispatch/engines/child.py",
        "    if isinstance(said, Event):\n",
        "    if said is None or isinstance(said, Event):\n",
        (f"{PROCESSES}::test_none_is_no_event",),
    ),
    Bug(
        "subprocesses take no notice of SIGINT",
        "dispatch/engines/child.py",
        "    signal.signal(signal.SIGINT, lambda *_: None)\n",
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n",
        (f"{PROCESSES}::test_a_handler_can_interrupt_its_subprocess",),
    ),
    Bug(
        "a process stays in its last attempt's folder",
        "dispatch/engines/child.py",
        "            os.chdir(folder)\n",
        "            pass\n",
        (f"{PROCESSES}::test_an_attempt_finds_the_folder_and_the_variables_of_the_dispatcher",),
    ),
    Bug(
        "a process stays in a folder that is gone",
        "dispatch/engines/child.py",
        '            os.chdir("/")\n',
        "            pass\n",
        (f"{PROCESSES}::test_a_process_whose_folder_is_gone_goes_elsewhere",),
    ),
    Bug(
        "a process keeps its last attempt's variables",
        "dispatch/engines/child.py",
        "            os.environ.clear()\n",
        "            pass\n",
        (f"{PROCESSES}::test_an_attempt_finds_the_folder_and_the_variables_of_the_dispatcher",),
    ),
    Bug(
        "an offer that is given up waits for its process",
        "dispatch/engines/local.py",
        "            await asyncio.wait({has_all})\n",
        "            await asyncio.wait({has_all})\n        except asyncio.CancelledError:\n"
        "            await _undo(has_all, attempt)\n            left()\n            raise\n",
        (
            f"{STARTS}::test_an_offer_that_is_given_up_lets_go_at_once",
            f"{STARTS}::test_a_drain_over_a_start_frees_the_row",
        ),
    ),
    Bug(
        "a worker is free while its process is given up",
        "dispatch/engines/local.py",
        "            undone.add_done_callback(lambda _: left())\n",
        "            left()\n",
        (f"{STARTS}::test_an_offer_that_is_given_up_lets_go_at_once",),
    ),
    Bug(
        "a process that starts slowly is not told of",
        "dispatch/engines/process_line.py",
        "self._wait_for_either(SLOW_START_S)",
        "self._wait_for_either()",
        (f"{STARTS}::test_a_slow_start_is_told_once",),
    ),
    Bug(
        "an attempt outlives its loop",
        "dispatch/engines/local.py",
        "            for worker in self._on_loops.pop(loop).elements():\n",
        "            for worker in ():\n",
        (f"{STARTS}::test_a_loop_that_ends_takes_its_attempts_along",),
    ),
    Bug(
        "a process does not tell where its handler failed",
        "dispatch/engines/child.py",
        ", detail=detail_of(error)",
        "",
        (f"{PROCESSES}::test_a_failure_says_where_it_comes_from",),
    ),
)
