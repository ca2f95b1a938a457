"""Debian's promtool: Prometheus itself judges queries and alerts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def promtool() -> str:
    """Return where it is; the test is skipped if it is nowhere, and fails in CI."""
    found = shutil.which("promtool")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs promtool: apt-get install -y prometheus")
        pytest.skip("needs promtool: apt-get install -y prometheus")
    return found


def judged(command: str, file: Path) -> subprocess.CompletedProcess[str]:
    """Run ``promtool COMMAND rules FILE``."""
    words = [promtool(), command, "rules", str(file)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def findings_of(folder: Path, *tests: dict[str, Any], rules: str | None = None) -> str:
    """Have promtool run `tests`, on rules if there are any, and return what it finds; nothing if
    all is as expected.
    """
    rule_files = []
    if rules is not None:
        (folder / "alerts.yaml").write_text(rules, encoding="utf-8")
        rule_files.append("alerts.yaml")
    document = {"rule_files": rule_files, "evaluation_interval": "1m", "tests": list(tests)}
    file = folder / "tests.json"  # every JSON document is one of YAML
    file.write_text(json.dumps(document), encoding="utf-8")
    ended = judged("test", file)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr
