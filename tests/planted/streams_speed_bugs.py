"""Guards of what makes streams fast: columns instead of rows, statements that are built once, what
is read ahead. And the tests that miss them.
"""

from __future__ import annotations

from bug import Bug

GATHERED = "tests/conformance/test_gathered_query.py"
HASHING = "tests/streams/computing/test_hashing.py"

COLUMN_BUGS = (
    Bug(
        "columns are taken in whatever order they come",
        "streams/inputs/row_reader.py",
        "in_order",
        "list(first) == sorted(first)",
        "True",
        ("tests/streams/inputs/test_row_reader.py::test_columns_are_put_in_order",),
    ),
    Bug(
        "columns that were too large are gathered again",
        "streams/inputs/gathered_query.py",
        "GatheredQuery.columns",
        "self._gathering[dialect] = None",
        "pass",
        (f"{GATHERED}::test_what_is_too_large_is_read_row_by_row",),
    ),
    Bug(
        "columns of any type become an array on PostgreSQL",
        "dialects/postgresql/bulk.py",
        "PostgresqlBulk.gather",
        "not all(fits_array(column.type) for column in columns)",
        "False",
        (f"{GATHERED}::test_types_without_such_a_value",),
    ),
    Bug(
        "columns of any type become JSON on SQLite",
        "dialects/sqlite/bulk.py",
        "SqliteBulk.gather",
        "not all(type(column.type) in _AS_THEY_ARE for column in columns)",
        "False",
        (f"{GATHERED}::test_columns_have_what_the_rows_have",),
    ),
    Bug(
        "an array of no rows is none",
        "dialects/postgresql/bulk.py",
        "PostgresqlBulk.gathered",
        "value or []",
        "value",
        (f"{GATHERED}::test_no_rows_are_empty_columns",),
    ),
    Bug(
        "many keys may have characters that no database can store",
        "streams/computing/hashing.py",
        "key_texts",
        ' and "\\0" not in joined',
        "",
        (f"{HASHING}::test_many_keys_are_judged_as_one_is",),
    ),
    Bug(
        "many keys may be no Unicode",
        "streams/computing/hashing.py",
        "key_texts",
        "joined.isascii() and ",
        "",
        (f"{HASHING}::test_many_keys_are_judged_as_one_is",),
    ),
    Bug(
        "many keys may be of any length",
        "streams/computing/hashing.py",
        "key_texts",
        " and max(map(len, texts)) <= KEY_CHARS_MAX",
        "",
        (f"{HASHING}::test_many_keys_are_judged_as_one_is",),
    ),
    Bug(
        "an enumeration among many keys stays one",
        "streams/computing/hashing.py",
        "key_texts",
        "set(map(type, keys)) != {str}",
        "False",
        (f"{HASHING}::test_many_keys_are_judged_as_one_is",),
    ),
)
STATEMENT_BUGS = (
    Bug(
        "statements are built each time",
        "database/bulk_dialect.py",
        "kept_statement",
        "if key not in kept:",
        "if True:",
        ("tests/conformance/test_bulk.py::test_a_statement_is_built_once",),
    ),
    Bug(
        "an INSERT has the columns of whoever came first",
        "dialects/postgresql/bulk.py",
        "PostgresqlBulk.insert",
        "(self, *names)",
        "(self,)",
        ("tests/conformance/test_bulk.py::test_other_columns_are_another_statement",),
    ),
)
