"""Every error has, under the slug that is its name, a paragraph in ``docs/reference/errors.md``.

A heading is the slug itself (``## lease-lost``) or carries it (``## LeaseLost { #lease-lost }``).
Other headings group them.
"""

from __future__ import annotations

import ast
import re

import pytest

from .reading import ROOT, Source, definitions, last_name, package, planted

ERRORS = "src/rowlock/errors.py"
TREE_FILES = frozenset({ERRORS, "src/rowlock/stream_errors.py", "src/rowlock/insight/steering.py"})
PAGE = "docs/reference/errors.md"
HEADING = re.compile(
    r"^#{2,} +(?:.*\{ *#(?P<carried>[\w-]+) *\}|`?(?P<itself>[a-z]+(?:-[a-z]+)*)`?) *$",
    re.MULTILINE,
)
REFUSALS = "Refusal"


def parents_of(tree: list[Source]) -> dict[str, list[str]]:
    """Return the classes of the error tree with the names of what they derive from. What stands
    beside them derives from none.
    """
    nodes = (
        node for source in tree for node, _ in definitions(source) if source.path in TREE_FILES
    )
    return {
        node.name: [last_name(base) for base in node.bases]
        for node in nodes
        if isinstance(node, ast.ClassDef) and node.bases
    }


def slugs(tree: list[Source]) -> dict[str, str]:
    """Return the slug of each error class, which is its name."""
    return {name: re.sub(r"\B(?=[A-Z])", "-", name).lower() for name in parents_of(tree)}


def misnamed(tree: list[Source]) -> list[str]:
    """Find faults that are called like refusals, and refusals like faults."""
    found, parents = [], parents_of(tree)
    for name in parents:
        refuses = name == REFUSALS or is_below(name, REFUSALS, parents)
        if refuses == name.endswith("Error"):
            found.append(f"{name}: faults end in Error, refusals do not")
    return found


def is_below(name: str, ancestor: str, parents: dict[str, list[str]]) -> bool:
    """Whether a class derives from another, directly or not."""
    return any(
        parent == ancestor or is_below(parent, ancestor, parents)
        for parent in parents.get(name, ())
    )


def strayed(tree: list[Source]) -> list[str]:
    """Find error classes outside of the tree's file. `testing/` may have its own: they are a
    test's, not a host's. And an outcome that a host may raise is no error.
    """
    known = parents_of(tree)
    return [
        source.finding(node, f"{node.name} belongs in {ERRORS}")
        for source in tree
        if source.path not in TREE_FILES and source.room != "testing"
        for node, _ in definitions(source)
        if isinstance(node, ast.ClassDef)
        and any(is_error(last_name(base), known) for base in node.bases)
        and not any(last_name(one) == "raisable" for one in node.decorator_list)
    ]


def is_error(name: str, known: dict[str, list[str]]) -> bool:
    return name.endswith(("Error", "Exception", "Exit")) or name in known


def unmatched(tree: list[Source], page: str) -> list[str]:
    """Find slugs without a paragraph and paragraphs without an error."""
    explained = {found["carried"] or found["itself"] for found in HEADING.finditer(page)}
    raised = set(slugs(tree).values())
    missing = [f"{slug} has no paragraph in {PAGE}" for slug in sorted(raised - explained)]
    return missing + [
        f"{slug} is explained in {PAGE} and never raised" for slug in sorted(explained - raised)
    ]


def test_every_error_is_explained() -> None:
    """An error's link would lead nowhere."""
    assert len(slugs(package())) > 1
    assert unmatched(package(), (ROOT / PAGE).read_text(encoding="utf-8")) == []


def test_errors_are_named_by_kind() -> None:
    """A host could not tell from a name whether somebody has to be woken up."""
    assert misnamed(package()) == []


def test_errors_live_in_one_file() -> None:
    """An error without a paragraph would reach a host."""
    assert strayed(package()) == []


TREE = "class RowlockError(Exception): pass\nclass Refusal(RowlockError): pass\n"
PARAGRAPHS = (
    "# Errors\n\n## Faults and refusals\n\n### rowlock-error\n\nText.\n\n### Refusal { #refusal }\n"
)


def test_planted_unexplained_error() -> None:
    """The law above would pass an error that nobody explains."""
    tree = planted(TREE + "class LeaseLost(Refusal): pass\n", ERRORS)
    assert unmatched(tree, PARAGRAPHS) == [f"lease-lost has no paragraph in {PAGE}"]


def test_planted_explanation_of_nothing() -> None:
    """The law above would pass a paragraph about an error that is gone."""
    assert len(unmatched(planted(TREE, ERRORS), PARAGRAPHS + "\n## lease-lost\n")) == 1


@pytest.mark.parametrize(
    "text", ["class BrokenModel(RowlockError): pass", "class LeaseError(Refusal): pass"]
)
def test_planted_misnamed_error(text: str) -> None:
    """The law above would pass any name."""
    assert len(misnamed(planted(TREE + text, ERRORS))) == 1


@pytest.mark.parametrize(
    "text", ["class QueueFull(Refusal): pass", "class QueueError(ValueError): pass"]
)
def test_planted_stray_error(text: str) -> None:
    """The law above would pass an error anywhere."""
    tree = [*planted(TREE, ERRORS), *planted(text)]
    assert len(strayed(tree)) == 1
