"""Guards of what is read from a graph, and of what a graph reads; and the tests that miss them."""

from __future__ import annotations

from bug import Bug

READERS = "tests/graph/stock/test_readers.py"
STREAM = "tests/graph/test_stream.py"

GRAPH_READER_BUGS = (
    Bug(
        "a stream that waits for its consumer is a deadlock",
        "graph/scheduling/stream.py",
        "StreamSink.is_open",
        "self._is_held",
        "False",
        (f"{STREAM}::test_slow_consumer_slows_the_graph",),
    ),
    Bug(
        "a value that was taken is forgotten before its node is asked",
        "graph/scheduling/stream.py",
        "StreamSink.is_open",
        "self._is_held",
        "bool(self.values)",
        (f"{STREAM}::test_value_that_was_taken_is_held_until_its_node_is_asked",),
    ),
    Bug(
        "a graph is not told that its consumer has taken a value",
        "graph/scheduling/stream.py",
        "StreamValues.__anext__",
        "sink.wake()",
        "pass",
        (f"{STREAM}::test_calls_that_end_while_the_consumer_works",),
    ),
    Bug(
        "a stream holds for ever what was taken",
        "graph/scheduling/stream.py",
        "StreamSink.event",
        "self.is_taken = self._is_held = False",
        "pass",
        (f"{STREAM}::test_error_is_raised_to_the_consumer",),
    ),
    Bug(
        "a run goes on without its consumer",
        "graph/scheduling/stream.py",
        "_left",
        "if not run.done():",
        "if False:",
        (f"{STREAM}::test_consumer_that_leaves_ends_the_run",),
    ),
    Bug(
        "a stream that was left looks complete",
        "graph/scheduling/stream.py",
        "StreamValues._check_run",
        "raise GraphClosed(self._graph)",
        "raise StopAsyncIteration",
        (
            f"{STREAM}::test_reader_of_a_stream_that_was_left",
            f"{STREAM}::test_last_value_of_a_stream_that_was_left",
        ),
    ),
    Bug(
        "a stream that failed looks complete",
        "graph/scheduling/stream.py",
        "StreamValues._check_run",
        "self._run.result()",
        "pass",
        (f"{STREAM}::test_error_is_raised_to_the_consumer",),
    ),
    Bug(
        "a stream that was left keeps its error",
        "graph/scheduling/stream.py",
        "StreamValues.leave",
        "self._run = None",
        "pass",
        (f"{STREAM}::test_no_value_outlives_the_stream",),
    ),
    Bug(
        "a generator has other context variables for each value",
        "graph/stock/readers.py",
        "Reader.next",
        "self._context.run(next, self._iterator)",
        "next(self._iterator)",
        (
            f"{READERS}::test_context_goes_on_across_a_yield",
            f"{READERS}::test_settings_of_a_generator_hold",
        ),
    ),
    Bug(
        "a generator is closed with other context variables",
        "graph/stock/readers.py",
        "Reader.close",
        "self._context.run(close)",
        "close()",
        (f"{READERS}::test_context_goes_on_across_a_yield",),
    ),
    Bug(
        "values of an asynchronous generator are read in several tasks",
        "graph/lanes/event_loop.py",
        "LoopLanes._keeps_task",
        "node.processor.keeps_task",
        "False",
        (
            f"{READERS}::test_asynchronous_generator_has_one_task",
            f"{READERS}::test_timeout_goes_off_across_a_yield",
        ),
    ),
    Bug(
        "a generator that waits for its reader is cancelled at the end",
        "graph/lanes/event_loop.py",
        "LoopLanes._cancel_calls",
        "node not in self._kept",
        "True",
        (f"{READERS}::test_asynchronous_generator_has_one_task",),
    ),
    Bug(
        "a timeout of a generator is forgotten while it waits for its reader",
        "graph/stock/readers.py",
        "AsyncReader.next",
        "throw is None",
        "True",
        (
            f"{READERS}::test_timeout_goes_off_across_a_yield",
            f"{READERS}::test_task_of_a_generator_that_another_cancels",
        ),
    ),
    Bug(
        "every iterator is taken for a generator",
        "graph/stock/readers.py",
        "AsyncReader.next",
        'getattr(self._iterator, "athrow", None)',
        "self._iterator.athrow",
        (f"{READERS}::test_iterator_that_is_no_generator_hears_of_no_cancellation",),
    ),
    Bug(
        "a task that is kept outlives its run",
        "graph/lanes/event_loop.py",
        "LoopLanes._ended_run",
        "is_wanted.set()",
        "pass",
        (f"{READERS}::test_task_that_is_kept_ends_with_the_run",),
    ),
)
