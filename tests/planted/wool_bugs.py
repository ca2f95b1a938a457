"""Bugs of the engine over wool: each would lose an attempt, hold a worker, or take one thing
that went wrong for another.
"""

from __future__ import annotations

from typing import Final

from bug import Bug

ENGINE: Final = "tests/dispatch/test_wool_engine.py"
WORKERS: Final = "tests/dispatch/test_wool_workers.py"

WOOL_BUGS: Final[tuple[Bug, ...]] = (
    Bug(
        "an engine of wool cries wolf whenever a pipeline is built",
        "dispatch/engines/wool.py",
        "WoolEngine._warn_if_forgotten",
        " and monotonic() - self._asked_at > FORGOTTEN_S",
        "",
        ("tests/dispatch/test_wool_engine.py::test_one_that_was_never_opened_says_so_once",),
    ),
    Bug(
        "wool asks another worker",
        "dispatch/engines/wool.py",
        "SingleWorkerBalancer.delegate",
        "yield uuid.UUID(task.tag)",
        "try:\n            yield uuid.UUID(task.tag)\n        except wool.TransientRpcError:\n     "
        "       yield next(each for each in context.workers if str(each) != task.tag)",
        (f"{ENGINE}::test_nobody_else_is_asked",),
    ),
    Bug(
        "a worker of wool has no room after a cancellation",
        "dispatch/engines/wool.py",
        "WoolEngine.offer",
        "if monotonic() >= asks_until:\n                    ",
        "",
        (f"{ENGINE}::test_after_a_cancellation_there_is_room_at_once",),
    ),
    Bug(
        "wool hears of no worker after an error",
        "dispatch/engines/wool.py",
        "LastingSubscriber._events",
        "Exception",
        "KeyError",
        (f"{WORKERS}::test_a_discovery_that_fails_is_asked_again",),
    ),
    Bug(
        "attempts on wool are not counted",
        "dispatch/engines/wool.py",
        "WoolEngine.offer",
        "self._active.get(worker, 0) + 1",
        "0",
        (f"{ENGINE}::test_two_of_five_are_accepted",),
    ),
    Bug(
        "wool is called in the pipeline's context",
        "dispatch/engines/wool_line.py",
        "run_as_task",
        ", context=context",
        "",
        (f"{ENGINE}::test_it_works_from_any_context",),
    ),
    Bug(
        "a stopped worker of wool cancels the pipeline",
        "dispatch/engines/wool_line.py",
        "WoolConnection._call",
        "call.cancelled()",
        "False",
        (f"{WORKERS}::test_a_worker_that_is_stopped_is_gone",),
    ),
    Bug(
        "a dead worker of wool fails the row",
        "dispatch/engines/wool_line.py",
        "WoolConnection.read",
        "grpc.RpcError, ",
        "",
        (f"{WORKERS}::test_a_worker_that_is_killed_is_noticed",),
    ),
    Bug(
        "a frozen worker of wool holds an offer",
        "dispatch/engines/wool_line.py",
        "WoolConnection._dispatch",
        "OFFER_S_MAX",
        "None",
        (f"{WORKERS}::test_a_worker_that_stands_still_is_gone",),
    ),
    Bug(
        "a silent handler on wool does not beat",
        "dispatch/engines/wool_worker.py",
        "HandlerThread.next_event",
        "(within_s):",
        "(None):",
        (f"{ENGINE}::test_it_beats_while_the_handler_says_nothing",),
    ),
    Bug(
        "a handler on wool is not cancelled",
        "dispatch/engines/wool_worker.py",
        "HandlerThread.close",
        "loop.call_soon_threadsafe(handler.cancel)",
        "pass",
        (f"{ENGINE}::test_to_close_is_to_cancel_over_there",),
    ),
    Bug(
        "a handler on wool writes into the dispatcher's folder",
        "dispatch/engines/wool_worker.py",
        "HandlerThread._work",
        ", workdir=folder",
        "",
        (f"{ENGINE}::test_each_attempt_has_a_folder_there",),
    ),
    Bug(
        "a handler on wool goes on before its stage is recorded",
        "dispatch/engines/wool_worker.py",
        "HandlerThread.next_event",
        "return event",
        "self._acknowledge()\n            return event",
        (f"{ENGINE}::test_a_handler_goes_on_when_its_stage_is_recorded",),
    ),
    Bug(
        "a worker of wool without a disk fails its rows",
        "dispatch/engines/wool_line.py",
        "WoolConnection.open",
        "await self.read()",
        "pass",
        (f"{ENGINE}::test_a_worker_without_a_folder_is_gone",),
    ),
    Bug(
        "a worker of wool takes the want of a folder for a failure",
        "dispatch/engines/wool_worker.py",
        "HandlerThread._run",
        "self._emit(Heartbeat()).result()",
        "pass",
        (f"{ENGINE}::test_a_worker_without_a_folder_is_gone",),
    ),
    Bug(
        "wool is sent whatever comes",
        "dispatch/engines/wool_worker.py",
        "pickled",
        "len(body) > PICKLE_BYTES_MAX",
        "False",
        (f"{ENGINE}::test_what_cannot_be_sent_is_a_failure",),
    ),
)
