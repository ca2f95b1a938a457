"""What a form has sent, read within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from rowlock.insight.explanation import SeenLease
from rowlock.rows.leased_table import LeasedTable

FORM_BYTES_MAX: Final = 16_000
"""Longest form."""
FIELDS_MAX: Final = 32
"""Most fields of a form."""
KIND: Final = "application/x-www-form-urlencoded"


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form.

    Raises:
        HTTPException: it is none, or too long.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != KIND:
        raise HTTPException(415, f"A form is {KIND}.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise HTTPException(413, f"A form has at most {FORM_BYTES_MAX:,} bytes.")
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error
    fields = dict(pairs)
    if any("\x00" in value for value in fields.values()):
        raise HTTPException(400, "The form cannot be read.")
    return fields


def seen_lease(fields: Mapping[str, str], leased: LeasedTable) -> SeenLease:
    """Return the lease that the page had shown.

    Raises:
        HTTPException: the form does not say, or names what is no lease.
    """
    if not {"seen_owner", "seen_token"} <= fields.keys():
        raise HTTPException(400, "The form does not say which lease it was made for.")
    owner, token = fields["seen_owner"] or None, fields["seen_token"] or None
    try:
        if token is not None:
            leased.as_token(token)
    except ValueError as error:
        raise HTTPException(400, "The form names a lease that is none.") from error
    return SeenLease(owner, token)
