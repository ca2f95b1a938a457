"""Law 9: one word per thing. No two public classes share a name, and no word that was replaced
comes back into code or docs.

The lists say what to write instead. A word of `WORDS` is forbidden within every name; a name of
`NAMES` as a whole, since its words are right elsewhere; a phrase of `PHRASES` in texts, over the
end of a line too.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator

import pytest

from .reading import ROOT, Source, committed_files, package, planted, words_of

WORDS = {
    "lifeline": "heartbeat thread",
    "wedge": "stall",
    "wedged": "stalled",
    "taker": "locking pipeline, waiter or holder",
    "takers": "locking pipelines, waiters or holders",
    "turn": "lock, window or iteration",
    "turns": "lock, window or iterations",
    "twin": "clone",
    "twins": "clones",
    "standing": "open transaction, or stalled transaction",
    "undone": "rolled back",
    "prolong": "renew",
    "prolonged": "renewed",
    "dear": "expensive",
    "spared": "deferred, or left out",
    "owes": "due",
    "pinned": "without onupdate",
    "loudly": "with onupdate",
    "robbed": "related lost",
    "hurried": "grace over",
    "patience": "timeout, or liveness",
    "ledger": "state",
    "heir": "survivor, or successor",
    "heirs": "survivors",
    "bury": "reap",
    "buried": "reaped",
    "mortality": "killable replica",
    "crew": "participants",
    "harbour": "engines",
    "chronicle": "trace",
}
"""Words of a village, a ship and a theatre, and those with many meanings; and what the field
says.
"""
NAMES = {
    "abandoned_after": "orphaned_after",
    "sweep_after": "orphaned_after",
    "is_settled": "is_settling, or finished",
    "when_settled": "after_settling",
    "in_line": "claim_slot, or ordered",
    "place_in_line": "order_column",
    "NotificationLine": "NotificationChannel",
    "Line": "LogLine, or the connection that it is",
    "ClaimOrder": "ClaimRequest",
    "ClaimOrders": "ClaimBuilder",
    "TakeOrder": "AcquireRequest",
    "renewal_limit": "renew_timeout",
    "wedge_after": "stall_limit",
    "margin": "lease_margin",
    "extend_each": "renew_each",
    "give_back": "release",
    "given_back": "released",
    "free_held": "release_related_of",
    "free_related": "release_related",
    "unlock": "release",
    "let_go": "release",
    "was_cut": "was_aborted",
    "stood_still": "was_stalled",
    "given_up": "cancel plan",
    "give_up": "plan_cancel, or release",
    "HostLoop": "LoopMonitor",
    "host_loop": "loop_monitor",
    "OwnPool": "SeparatePool",
    "own_pool": "separate_pool",
    "log_apart": "log_in_thread",
    "run_apart": "run_in_thread",
    "own_loop": "run_in_thread",
    "Taken": "Acquired",
    "take": "acquire, or get",
    "Note": "Patch",
    "Notes": "StatusUpdates",
    "notes": "status updates, or patches",
    "write_note": "write_patch",
    "Part": "Range",
    "same_sql": "sql_fingerprint",
    "Said": "Fingerprint",
    "said": "message, or fingerprint",
    "return_token": "reservation_token",
    "is_returning": "is_reserved_by",
    "is_mine_to_take": "is_claimable_by",
    "is_available": "is_lockable",
    "goes_alone": "needs_own_transaction",
    "goes_with_others": "needs_own_transaction",
    "alone": "autocommit",
    "look_again_in": "wake_after",
    "under_tokens": "matches_leases",
    "tokens_given": "lease_parameters",
    "side_by_side": "unnested",
    "without_waiting": "skip_locked",
    "is_still": "is_unchanged",
    "silence": "heartbeat_limit, or liveness",
    "placing": "placement",
    "Placing": "Placement",
    "Means": "DeliveryContext",
    "means": "context",
    "Room": "Capacity",
    "TheNamed": "SingleWorkerBalancer",
    "GO_ON": "ACK",
    "streams_aside": "redirected_streams",
    "hand_over": "settle_later, or finish",
    "hand_in": "submit_nowait",
    "in_hand": "in_progress",
    "is_left": "is_abandoned",
    "Life": "KillableReplica",
    "Ending": "RunResult",
    "Port": "PooledEngine",
    "chances": "randomness",
}
"""Names that are replaced; their words are right in others, such as *line* in `LogLine`."""
PHRASES = {
    "(?:give|gives|gave|given|giving) back": "release",
    "head of the line": "head of the order",
    "places? in line": "place in the order",
    "heads? the line": "heads the order",
    "lock takers?": "holders, or waiters",
    "standing intent": "reservation",
    "lifeline": "heartbeat thread",
    "wedged?": "stall",
    "(?:abandoned|sweep)_after": "orphaned_after",
    "abandoned (?:row|lock)s?": "orphaned",
    "prolong(?:s|ed|ing)?": "renew",
    "chronicle": "trace",
    "harbour": "engines",
    "close a circle": "deadlock",
}
"""What texts say no more, as regular expressions."""
PROSE = {
    "whoever": "the noun that is meant, such as holder, replica or service",
    "nobody": "no, with a noun",
    "somebody": "another, with a noun",
    "(?:any|every)body": "any or every, with a noun",
    "told": "reported, logged, emitted, or a sentence about the thing itself",
    "said": "a sentence about the thing itself",
}
"""Words that pages do without: their subjects are nouns, their verbs the field's. Texts of the
code are not among them.
"""
OF_GRAPHS = frozenset({"Port", "standing"})
"""Names and words that are the field's own for graphs: a node has ports, and a standing graph stays
open; the dashboard shows it. They are replaced everywhere else.
"""
HISTORY = ("docs/changelog",)
"""Where the words of earlier versions are told."""


def shared_names(tree: list[Source]) -> list[str]:
    """Find public classes of one name in several modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in tree:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(
                    source.finding(node, f"there is another public class {node.name}")
                )
    return [place for found in places.values() if len(found) > 1 for place in found]


def replaced_names(tree: list[Source]) -> list[str]:
    """Find names with a word that was replaced; paths of modules and what is bound by others'
    names are not among them.
    """
    found = []
    for source in tree:
        free = OF_GRAPHS if source.room in {"graph", "dashboard"} else frozenset()
        for name, line in names_in(source):
            better = better_than(name, free)
            if better is not None:
                found.append(source.finding(line, f"{name}: say {better}"))
    return found


def better_than(name: str, free: frozenset[str]) -> str | None:
    """Return what to say instead of a name; None if it is right, or is free in its room."""
    if name in NAMES and name not in free:
        return NAMES[name]
    return next((WORDS[word] for word in words_of(name) if word in WORDS.keys() - free), None)


def names_in(source: Source) -> Iterator[tuple[str, int]]:
    """Give each name of a file with its line, but for the paths that it imports from."""
    paths = {
        node.lineno: set((node.module or "").split("."))
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom)
    }
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.NAME and token.string not in paths.get(token.start[0], ()):
            yield token.string, token.start[0]


def replaced_phrases(path: str, text: str) -> list[str]:
    """Find phrases that were replaced, over the end of a line too."""
    found = []
    for phrase, better in PHRASES.items():
        pattern = rf"(?<![\w/.-]){phrase}(?![\w/-])".replace(" ", r"[\s#]+")
        for match in re.finditer(pattern, text, flags=re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path}:{line}: {' '.join(match[0].split())}: say {better}")
    return found


def plain_prose(path: str, text: str) -> list[str]:
    """Find words in the sentences of a page that stand for a noun, or for a verb of the field;
    code is left alone.
    """
    bare = re.sub(
        r"^```.*?^```",
        lambda block: "\n" * block[0].count("\n"),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    bare = re.sub(r"`[^`\n]*`", "", bare)
    return [
        f"{path}:{bare.count(chr(10), 0, found.start()) + 1}: {found[0]}: say {better}"
        for word, better in PROSE.items()
        for found in re.finditer(rf"\b{word}\b", bare, flags=re.IGNORECASE)
    ]


def texts() -> Iterator[tuple[str, str]]:
    """Give the path and the text of each page of the docs, and of each file of the package."""
    for path in committed_files():
        name = path.relative_to(ROOT).as_posix()
        is_page = name == "README.md" or (name.startswith("docs/") and name.endswith(".md"))
        if (is_page or name.startswith("src/rowlock/")) and not name.startswith(HISTORY):
            yield name, path.read_text(encoding="utf-8")


def test_a_public_class_has_its_name_alone() -> None:
    """A reader would look up one thing and read about another, and a search would find both."""
    assert shared_names(package()) == []


def test_names_say_what_the_field_says() -> None:
    """A reader would have to learn a language of this project before the project."""
    assert replaced_names(package()) == []


def test_texts_say_what_the_field_says() -> None:
    """The docs and the log would speak of something else than the code."""
    assert [found for path, text in texts() for found in replaced_phrases(path, text)] == []


def test_pages_are_plain() -> None:
    """A reader would look for the person in a sentence about a lease."""
    found = [
        one for name, text in texts() if name.endswith(".md") for one in plain_prose(name, text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "sentence", ["Nobody waits.", "it is told", "a row for\nsomebody", "Everybody comes back"]
)
def test_planted_prose(sentence: str) -> None:
    """The law above would pass any sentence."""
    assert len(plain_prose("docs/page.md", f"# A page\n\n{sentence}\n")) == 1


def test_planted_namesake() -> None:
    """The law above would pass any two classes."""
    one, other = (
        planted("class Line: pass", "src/rowlock/a.py"),
        planted("class Line: pass", "src/rowlock/b.py"),
    )
    assert shared_names(one + other) == [
        "src/rowlock/a.py:1: there is another public class Line",
        "src/rowlock/b.py:1: there is another public class Line",
    ]


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("def cut_standing(): pass", "cut_standing: say open transaction, or stalled transaction"),
        ("Taker = 1", "Taker: say locking pipeline, waiter or holder"),
        ("row.is_settled = True", "is_settled: say is_settling, or finished"),
        ("call(alone=True)", "alone: say autocommit"),
        ("from rowlock.leases.acquire import Taken", "Taken: say Acquired"),
    ],
)
def test_planted_name(text: str, better: str) -> None:
    """The law above would pass any name."""
    assert replaced_names(planted(text)) == [f"src/rowlock/rows/planted.py:1: {better}"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It gives\n    back", "gives back: say release"),
        ("# at the head of\n# the line", "head of # the line: say head of the order"),
        ("A standing intent", "standing intent: say reservation"),
    ],
)
def test_planted_phrase(text: str, found: str) -> None:
    """The law above would pass any text."""
    assert replaced_phrases("docs/page.md", text) == [f"docs/page.md:1: {found}"]
