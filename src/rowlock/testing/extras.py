"""What a tool of ours needs beyond the plain install: there, or an error that says how to get it.

Not here: the imports themselves, which stand where they are used, so that ``import
rowlock.testing`` loads none of them.
"""

from __future__ import annotations

from importlib.util import find_spec


def need(module: str, *, what_for: str, otherwise: str = "") -> None:
    """Check that `module` can be imported; `otherwise` is a sentence of advice."""
    if find_spec(module) is None:
        text = f"{what_for} needs {module}, which is not installed: pip install 'rowlock[testing]'."
        raise ModuleNotFoundError(f"{text} {otherwise}".rstrip(), name=module)
