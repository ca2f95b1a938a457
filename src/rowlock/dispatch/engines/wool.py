"""Attempts on workers of wool: in other processes, and on other machines.

The host runs the workers, in wool's own `WorkerPool` or apart from this process, and has them
refuse what they have no room for. The engine is only their client: wool's discovery names them, and
it is open while the pipelines are.

    discovery = wool.LocalDiscovery()
    worker = partial(wool.LocalWorker, backpressure=TaskCountBackpressure(1))
    engine = WoolEngine(discovery)

    async with wool.WorkerPool(spawn=4, worker=worker, discovery=discovery), engine,
    PipelineManager(sessions, [renders]):
        ...

The pipeline's balancer has chosen a worker already, so wool is given one that names this worker and
no other. And each attempt speaks with its worker in one empty context: wool ties what it knows to
context variables and lets no two tasks share it, and a pipeline's tasks come from wherever the host
started it.

Not here: what the worker does (``wool_worker.py``).

Source: wool, ``LoadBalancerLike`` and ``WorkerProxy``.
"""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextvars import Context
from functools import partial
from math import inf
from typing import Any, Self, TypeVar

import grpc
import wool

from rowlock.clock import monotonic, sleep
from rowlock.dispatch.attempt import Stream, is_last
from rowlock.dispatch.engine import AttemptEvent, Events, Failed, Heartbeat, Task, WorkerView
from rowlock.dispatch.engines.wool_worker import pickled, run_task
from rowlock.errors import ConfigurationError, WorkerBusy, WorkerGone, describe
from rowlock.logs import get_logger

logger = get_logger(__name__)

OFFER_S_MAX = 15.0
"""How long a worker may take to accept or refuse, in seconds; for the first task it imports what
the task needs.
"""

CLOSE_S_MAX = 3.0
"""How long a worker may take to have room again after its last event, in seconds."""

T = TypeVar("T")


async def run_as_task(context: Context, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Return `work` as a task that is done. Cancelled, it waits until `work` has been."""
    call = asyncio.create_task(work, name="rowlock: a call of wool", context=context.copy())
    try:
        await asyncio.wait({call})
    except asyncio.CancelledError:
        call.cancel()
        await asyncio.wait({call})
        if not call.cancelled():
            call.exception()
        raise
    return call


class WoolConnection:
    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._context = Context()
        self._stream: Any = None
        self._is_over = False

    async def open(self, proxy: wool.WorkerProxy, body: bytes, *, beat_s: float) -> None:
        """Offer a pickled task, and wait until the worker has all that an attempt needs."""
        try:
            await self._call(self._dispatch(proxy, body, beat_s))
            async with asyncio.timeout(OFFER_S_MAX):
                await self.read()
        except WorkerGone:
            raise
        except wool.NoWorkersAvailable:
            raise WorkerGone(self._worker, "it has left") from None
        except wool.RpcError as error:
            if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise WorkerBusy(self._worker) from None
            raise WorkerGone(self._worker, describe(error)) from error
        except Exception as error:
            # wool raises here what the worker did when it loaded the task, such as an ImportError.
            raise WorkerGone(self._worker, describe(error)) from error

    async def read(self) -> AttemptEvent | None:
        try:
            body = await self._call(_next(self._stream))
        except (grpc.RpcError, wool.RpcError, wool.UnexpectedResponse) as error:
            # Clients see it, and gRPC's own text has addresses.
            code = getattr(error, "code", None)
            named = getattr(code() if callable(code) else code, "name", type(error).__name__)
            raise WorkerGone(self._worker, f"the connection broke: {named}") from error
        if body is None:
            self._is_over = True
            return None
        event: AttemptEvent = pickle.loads(body)  # noqa: S301 - from a worker that the host trusts
        return event

    async def read_to_end(self) -> None:
        """Wait `CLOSE_S_MAX` at most until the worker is done after its last event."""
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                while await self.read() is not None:
                    pass
        # The work is done, whatever happens to the worker now.
        except Exception as error:  # noqa: BLE001
            extra = {"worker": self._worker, "why": repr(error)}
            logger.warning("A worker has not ended an attempt that is done", extra)

    async def close(self) -> bool:
        """Hang up, which cancels a handler that runs; return whether one did."""
        if self._stream is None:
            return False
        await self._call(self._stream.aclose())
        return not self._is_over

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        call = await run_as_task(self._context, work)
        # By whom, if not by us? So wool passes on that a worker was stopped.
        if call.cancelled():
            raise WorkerGone(self._worker, "it was stopped")
        return call.result()

    async def _dispatch(self, proxy: wool.WorkerProxy, body: bytes, beat_s: float) -> None:
        task = wool.Task(
            id=uuid.uuid4(),
            callable=run_task,
            args=(body, beat_s),
            kwargs={},
            proxy=proxy,
            tag=self._worker,
        )
        self._stream = await proxy.dispatch(task, timeout=OFFER_S_MAX)


async def _next(stream: Any) -> bytes | None:
    body: bytes | None = await anext(stream, None)
    return body


DISCOVER_AGAIN_S = 5.0
"""After so long a discovery that failed is asked again, in seconds."""
HANGING_UP_S_MAX = 1.0
"""For so long after a cancellation a worker that refuses is asked again: it may not have heard
of it yet. In seconds.
"""
ASK_AGAIN_S = 0.02
FORGOTTEN_S = 10.0
"""An engine that is asked for workers for so long, and is not open, says so in the log, in
seconds.
"""


class WoolEngine:
    """Runs a handler, ``def`` or ``async def``, on workers of wool; each in a thread, and in a
    folder of that machine.

    Handler, row and events are pickled by cloudpickle. Workers need rowlock and the modules of the
    host's that are sent.

    Args:
        discovery: names the workers; it must have been entered when the engine is. A
            filter is the discovery's own.
        credentials: those that the workers ask for; None for workers that ask for none.

    Raises:
        ConfigurationError: it is entered while it is open.
    """

    def __init__(self, discovery: wool.DiscoveryLike, *, credentials: Any = None) -> None:
        self._discovery = discovery
        self._credentials = credentials
        self._proxy: wool.WorkerProxy | None = None
        self._active: dict[str, int] = {}
        self._hung_up_at: dict[str, float] = {}
        self._is_opening = self._has_warned = False
        self._asked_at = inf

    async def __aenter__(self) -> Self:
        if self._proxy is not None or self._is_opening:
            raise ConfigurationError(
                "a WoolEngine is open once at a time; pipelines may share it while it is"
            )
        self._is_opening = True
        try:
            await self._open()
        finally:
            self._is_opening = False
        return self

    async def _open(self) -> None:
        proxy = wool.WorkerProxy(
            discovery=LastingSubscriber(self._discovery),
            loadbalancer=SingleWorkerBalancer(),
            credentials=self._credentials,
            quorum=None,
        )
        (await run_as_task(Context(), proxy.start())).result()
        self._proxy = proxy

    async def __aexit__(self, *_: object) -> None:
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            (await run_as_task(Context(), proxy.stop())).result()

    def workers(self) -> Mapping[str, WorkerView]:
        """Return the workers that are known, by id. One that died stays known to wool, and is
        found to be gone when it is asked.
        """
        if self._proxy is None:
            self._warn_if_forgotten()
        known = () if self._proxy is None else self._proxy.workers
        return {
            str(each.uid): WorkerView(self._active.get(str(each.uid), 0), frozenset(each.tags))
            for each in known
        }

    def _warn_if_forgotten(self) -> None:
        # A pipeline asks once when it is built, which is before anything is open.
        self._asked_at = min(self._asked_at, monotonic())
        if not self._has_warned and monotonic() - self._asked_at > FORGOTTEN_S:
            self._has_warned = True
            text = "A WoolEngine is asked for workers and is not open; enter it with `async with`"
            logger.warning(text)

    async def offer(self, worker: str, task: Task[Any]) -> Events:
        """Offer `task` to `worker`.

        Raises:
            WorkerBusy: it refused.
            WorkerGone: it has left, cannot be reached, does not answer, or cannot load what it is
                sent.
        """
        if self._proxy is None:
            raise WorkerGone(worker, "the engine is not open")
        asks_until = self._hung_up_at.get(worker, -inf) + HANGING_UP_S_MAX
        while True:
            attempt = self._attempt(self._proxy, worker, task)
            try:
                # A generator that was begun is closed properly, whatever happens next.
                await anext(attempt)
            except WorkerBusy:
                if monotonic() >= asks_until:
                    raise
                await sleep(ASK_AGAIN_S)
            else:
                self._active[worker] = self._active.get(worker, 0) + 1
                return Stream(attempt, beat_s=None, on_end=partial(self._left, worker))

    async def _attempt(
        self, proxy: wool.WorkerProxy, worker: str, task: Task[Any]
    ) -> AsyncGenerator[AttemptEvent, None]:
        try:
            body = pickled(task)
        # Whatever the host's objects raise when they are pickled.
        except Exception as error:  # noqa: BLE001
            yield Heartbeat()
            yield Failed("internal", f"the task cannot be sent to a worker: {describe(error)}")
            return
        connection = WoolConnection(worker)
        try:
            await connection.open(proxy, body, beat_s=task.heartbeat_s)
            yield Heartbeat()
            while (event := await connection.read()) is not None:
                if is_last(event):
                    # Only then has the worker room again: it would refuse the row that is brought
                    # forward.
                    await connection.read_to_end()
                yield event
        finally:
            if await connection.close():
                now = monotonic()
                self._hung_up_at = {
                    each: at for each, at in self._hung_up_at.items() if now < at + HANGING_UP_S_MAX
                }
                self._hung_up_at[worker] = now

    def _left(self, worker: str) -> None:
        self._active[worker] -= 1
        if not self._active[worker]:
            del self._active[worker]


class SingleWorkerBalancer:
    """Offers a task to the worker that its tag names, and to no other."""

    async def delegate(
        self, task: wool.Task, *, context: wool.LoadBalancerContextView
    ) -> AsyncGenerator[uuid.UUID, uuid.UUID | None]:
        """What goes wrong is thrown in here, and passes through to the caller of the offer."""
        yield uuid.UUID(task.tag)


class LastingSubscriber:
    """Goes on after errors of the discovery, at the first of which wool would give up.

    It stays where it is made: wool sends its client along with each task, and a worker has no use
    for this part of it.
    """

    def __init__(self, discovery: wool.DiscoveryLike | None) -> None:
        self._discovery = discovery

    def __aiter__(self) -> AsyncIterator[wool.DiscoveryEvent]:
        return self._events()

    def __reduce__(self) -> tuple[type[LastingSubscriber], tuple[None]]:
        return LastingSubscriber, (None,)

    async def _events(self) -> AsyncGenerator[wool.DiscoveryEvent, None]:
        while self._discovery is not None:
            try:
                # Made here and not before: it works only in the context in which it was made.
                async for event in self._discovery.subscriber:
                    yield event
            except Exception as error:  # noqa: BLE001 - a discovery of the host's may raise anything
                why = describe(error)
                extra = {"why": why}
                logger.error("The discovery of workers failed, and is asked again soon", extra)
            await sleep(DISCOVER_AGAIN_S)
