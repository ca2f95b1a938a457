"""Guards of the pure parts of streams; and the tests that miss them."""

from __future__ import annotations

from bug import Bug

HASHING = "tests/streams/computing/test_hashing.py"

STREAMS_HASHING_BUGS = (
    Bug(
        "a key is hashed by Python's own hash()",
        "streams/computing/hashing.py",
        "bucket_of",
        "first[0] << 8 | first[1]",
        "hash(key_text(key)) % BUCKETS",
        (f"{HASHING}::test_another_process",),
    ),
    Bug(
        "a bucket is not the top of the hash",
        "streams/computing/hashing.py",
        "bucket_of",
        "first[0] << 8 | first[1]",
        "first[1] << 8 | first[0]",
        (f"{HASHING}::test_bucket_is_the_top_of_the_hash",),
    ),
    Bug(
        "a bool is a key",
        "streams/computing/hashing.py",
        "_text_of",
        'raise TypeError("a bool cannot be a key: make it a text")',
        "return str(key)",
        (f"{HASHING}::test_other_types",),
    ),
    Bug(
        "a key is known by the name of an enumeration",
        "streams/computing/hashing.py",
        "_text_of",
        "str.__str__(key)",
        "format(key) if str(key) == key else str(key)",
        (f"{HASHING}::test_one_text",),
    ),
    Bug(
        "a time as a key depends on its zone",
        "streams/computing/hashing.py",
        "_time_text",
        ".astimezone(UTC)",
        "",
        (f"{HASHING}::test_one_text",),
    ),
    Bug(
        "a key of any length is taken",
        "streams/computing/hashing.py",
        "key_text",
        "if len(text) > KEY_CHARS_MAX:",
        "if False:",
        (f"{HASHING}::test_keys_that_cannot_be_stored",),
    ),
    Bug(
        "a key is taken that no database stores",
        "streams/computing/hashing.py",
        "key_text",
        "not is_storable(text)",
        "False",
        (f"{HASHING}::test_keys_that_cannot_be_stored",),
    ),
)
