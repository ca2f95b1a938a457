"""A service that takes payments and answers with the balance that they lead to. Each of its
processes is a replica of the flow, too; whichever has the shard of an account adds its payments.

It is started as ``uvicorn --factory paying.service:create_app``, with ``PAYING_DATABASE`` (a URL)
in the environment.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from loopback.database import Sessions, opened
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from rowlock import NotProcessedYet, PipelineManager

from .streams import balances, streams
from .tables import Balance, Payment

PATIENCE_S = 2.0
"""So long a client waits for its balance, before it is told to ask again."""


class NewPayment(BaseModel):
    """What a client sends."""

    number: Annotated[str, Field(min_length=1, max_length=50)]
    account: Annotated[str, Field(min_length=1, max_length=50)]
    cents: int


class AccountState(BaseModel, from_attributes=True):
    """What a client gets."""

    account: str
    cents: int


def open_sessions(request: Request) -> Sessions:
    """Give a handler the way to the database."""
    sessions: Sessions = request.app.state.sessions
    return sessions


Database = Annotated[Sessions, Depends(open_sessions)]


async def added(sessions: Sessions, body: NewPayment) -> Payment:
    """Add a payment, or find the one that an earlier attempt of the client has added."""
    payment = Payment(**body.model_dump())
    try:
        async with sessions.begin() as session:
            session.add(payment)
            balances.hint_after_commit(session)
    except IntegrityError:
        async with sessions() as session:
            same = select(Payment).where(Payment.number == body.number)
            return (await session.scalars(same)).one()
    return payment


async def pay(body: NewPayment, sessions: Database) -> AccountState:
    """Take a payment, and answer with a balance that contains it."""
    payment = await added(sessions, body)
    if (payment.account, payment.cents) != (body.account, body.cents):
        raise HTTPException(409, "this number is another payment's")
    await balances.wait_for(sessions, payment, timeout=PATIENCE_S)
    return await read_account(payment.account, sessions)


async def read_account(account: str, sessions: Database) -> AccountState:
    """Tell what is in an account."""
    async with sessions() as session:
        balance = await session.get(Balance, account)
    if balance is None:
        raise HTTPException(404)
    return AccountState.model_validate(balance)


async def ask_again(request: Request, error: NotProcessedYet) -> JSONResponse:
    """Tell a client that its payment is taken and its balance not known yet, and why."""
    return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "0"})


def create_app() -> FastAPI:
    """Build the application; it is a replica of the flow from its start to its end."""
    # That the shards of a killed process are worked on by another one is a warning.
    logging.getLogger("rowlock").setLevel(logging.CRITICAL)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            opened(os.environ["PAYING_DATABASE"]) as app.state.sessions,
            PipelineManager(app.state.sessions, streams.pipelines()),
        ):
            yield

    app = FastAPI(lifespan=lifespan)
    app.post("/payments")(pay)
    app.get("/accounts/{account}")(read_account)
    app.exception_handler(NotProcessedYet)(ask_again)
    return app
