"""Whether keys are equal as objects when the values of their rows are: rows that are read again are
found by them.

The one idea: a type of the host's may read keys as objects of which each is equal to itself alone.
No row that is read again would be one that is held: its outcomes would be changed, and its related
rows lost, at every attempt. Such a key is read a second time when the first rows are leased, and
what cannot be found is refused before anything is.

Not here: keys that the database itself does not find (``leases/spoilt_keys.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import ModelError
from rowlock.rows.leased_table import LeasedTable

KEY_CLASSES_MAX = 100
"""Most classes of keys that are remembered for a table. Objects of further ones are read again
each time.
"""

_NOT_BY_VALUE: tuple[object, ...] = (None, object.__eq__, object.__hash__)


async def check_keys(connection: AsyncConnection, leased: LeasedTable, keys: Iterable[Any]) -> None:
    """Refuse keys that are not equal to what is read of their rows again; joins the caller's
    transaction.

    Raises:
        ModelError: one of them is not, or has no hash.
    """
    sound = leased.sound_key_classes
    for class_, key in {type(key): key for key in keys}.items():
        if class_ in sound:
            continue
        compares_values = {class_.__eq__, class_.__hash__}.isdisjoint(_NOT_BY_VALUE)
        if not (compares_values or await _is_found_again(connection, leased, key)):
            raise ModelError(
                f"{leased.name}.{leased.key_name} is read as objects of {class_.__name__}, and two"
                " that are read of one row are not equal: give that class __eq__ and __hash__, or"
                " read the key as a plain value",
                model=leased.name,
                column=leased.key_name,
            )
        if len(sound) < KEY_CLASSES_MAX:
            sound.add(class_)


async def _is_found_again(connection: AsyncConnection, leased: LeasedTable, key: object) -> bool:
    """Whether the key of its row, read again, is found where `key` is: as members of an
    enumeration are, of which there is one.
    """
    if type(key).__hash__ is None:
        return False
    again = await connection.scalars(select(leased.key).where(leased.key == key))
    return not {key}.isdisjoint(again.all())
