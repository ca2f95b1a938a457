"""How one attempt speaks with its worker of wool: offers the task, reads the events, hangs up.

The one idea: in a context of its own. wool ties what it knows to context variables and lets no two
tasks share it, and a pipeline's tasks come from wherever the host started it; so each call is a
task in one empty context, one after the other.

Not here: which worker is asked, and what becomes of the events.
"""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

import grpc
import wool

from rowlock.containment import contained_task
from rowlock.dispatch.engines.wool_worker import run_task
from rowlock.dispatch.task import AttemptEvent
from rowlock.errors import WorkerBusy, WorkerGone, describe
from rowlock.logs import get_logger

logger = get_logger(__name__)

OFFER_S_MAX = 15.0
"""How long a worker may take to accept or refuse, in seconds; for the first task it imports what
the task needs.
"""

CLOSE_S_MAX = 3.0
"""How long is waited for a worker that has told its last event to have room again, in seconds."""

T = TypeVar("T")


async def run_as_task(context: Context, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run `work` as a task in `context`, and return it when it is done. Cancelled, it waits
    until `work` has been.
    """
    call = contained_task(work, name="rowlock: a call of wool", context=context)
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
    """The connection of one attempt with `worker`."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._context = Context()
        self._stream: Any = None
        self._is_over = False

    async def open(self, proxy: wool.WorkerProxy, body: bytes, *, beat_s: float) -> None:
        """Offer a pickled task, and wait until the worker has all that an attempt needs.

        Raises:
            WorkerBusy: the worker refused.
            WorkerGone: anything else kept it from accepting.
        """
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
        """Return the next event, or None after the end.

        Raises:
            WorkerGone: the worker died or was stopped.
        """
        try:
            body = await self._call(_next(self._stream))
        except (grpc.RpcError, wool.RpcError, wool.UnexpectedResponse) as error:
            raise WorkerGone(self._worker, _why(error)) from error
        if body is None:
            self._is_over = True
            return None
        event: AttemptEvent = pickle.loads(body)  # noqa: S301 - from a worker that the host trusts
        return event

    async def read_to_end(self) -> None:
        """Wait until the worker has done with an attempt whose last event was read, for
        `CLOSE_S_MAX` at most.
        """
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                while await self.read() is not None:
                    pass
        # The work is done, whatever happens to the worker now.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "A worker has not ended an attempt that is done",
                extra={"worker": self._worker, "why": repr(error)},
            )

    async def close(self) -> bool:
        """Hang up, which cancels the handler over there if it still runs. Returns whether it
        did, as far as is known.
        """
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


def _why(error: Exception) -> str:
    """Clients see it, and gRPC's own text has addresses."""
    code = error.code() if isinstance(error, grpc.RpcError) else getattr(error, "code", None)
    return f"the connection broke: {getattr(code, 'name', None) or type(error).__name__}"
