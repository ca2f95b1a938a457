"""Tokens that count deaths, made by the statement that claims: ``rows/lock_tokens.py`` in SQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Text, case, cast, func

from rowlock.rows.lock_tokens import COUNT_AT, COUNTED, DEATHS_MAX, VARIANT_DIGIT_AT


def digits_after(dead: ColumnElement[Any], digits: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the `digits` of a fresh token with one death more than the token that is `dead`."""
    old = func.replace(cast(dead, Text), "-", "")
    counted = func.get_byte(func.decode(func.substr(old, COUNT_AT, 2), "hex"), 0)
    before = case((func.substr(old, VARIANT_DIGIT_AT, 1) == COUNTED, counted), else_=0)
    deaths = _two_digits(func.least(before + 1, DEATHS_MAX))
    return func.overlay(func.overlay(digits, COUNTED, VARIANT_DIGIT_AT), deaths, COUNT_AT)


def digits_before(digits: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the `digits` of a token that counts deaths with one death fewer."""
    counted = func.get_byte(func.decode(func.substr(digits, COUNT_AT, 2), "hex"), 0)
    return func.overlay(digits, _two_digits(func.greatest(counted - 1, 0)), COUNT_AT)


def _two_digits(number: ColumnElement[int]) -> ColumnElement[Any]:
    return func.lpad(func.to_hex(number), 2, "0")
