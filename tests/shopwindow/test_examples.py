"""Every example runs as it lies there, ends by itself and prints what happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import ROOT
from .programs import STRICT, Run, missing_lines

EXAMPLES = ROOT / "examples"
EXPECTED = {
    "00_first_row.py": ["volume 1 is submitted", "volume 1 is active, with disk-1"],
    "01_provision_a_volume.py": [
        "3 volumes submitted",
        "archive  active, unlocked, disk-...-500gb",
        "home     active, unlocked, disk-...-20gb",
        "scratch  active, unlocked, disk-...-100gb",
        "claimed 3, applied 3, stale 0",
    ],
    "02_reconcile_on_schedule.py": [
        "example.org: attempt 1 failed, try later",
        "example.org: attempt 2 failed, try later",
        "example.org: renewed in attempt 3",
        "example.org: due again in 30 days",
        "example.test: example.test is not registered",
        "released: example.test",
        "example.test: renewed in attempt 1",
        "example.org: renewed at once, since a service asked",
    ],
    "03_inside_fastapi.py": [
        "POST /volumes: 202, submitted",
        "GET /volumes/...: active, disk-...",
        "GET /health: 200, ['VolumePipeline']",
        "after the shutdown: stopped",
    ],
    "04_two_replicas_and_a_crash.py": [
        "first replica: disk created, and now the power fails",
        "first replica: ended with exit code 9",
        "the row: submitted, still leased",
        "the previous holder died; disks that may be its own: 1",
        "second replica: volume active, disks 1",
        "a result came too late: its disk was deleted",
        "the row: cancelled, disks 1",
    ],
    "05_test_your_pipeline.py": ["... 10 passed, 1 skipped in ..."],
    "06_fleet_locks_its_instances.py": [
        "instances: a 4/8, b 4/8, c 4/8, d 4/8",
        "fleet: ... of 4 instances are free, so it takes none",
        "the fleet's row: scattered, owner FleetPipeline, not leased",
        "fleet: has all 4 instances, after ... refusals",
        "the fleet's row: packed, owner None, not leased",
        "every instance is free and is probed again",
        "instances: a 8/8, b 8/8, c 0/8, d 0/8",
    ],
    "07_jobs_share_an_instance.py": [
        "job ...: placed, the instance's owner is JobPipeline:...",
        "5 jobs placed, 3 have no room",
        "instance a: 10 of 10 cpus used, owner None",
        "placed at once: 1 at most; refused and come back: ... times",
    ],
    "08_services_respect_leases.py": [
        "POST /jobs, twice at once: job-0, job-1",
        "DELETE /jobs/job-0: 202",
        "job-0: was started, but is not wanted any more: not recorded, and taken back",
        "GET /jobs/job-0: stopped",
        "GET /jobs/job-1: running",
        "PATCH /instances/1: 423, {'detail': 'held by InstancePipeline'}, Retry-After ...",
        "PATCH /instances/1: 200, {'cpus': 16}",
        "PATCH /instances/1: 409, {'detail': '4 are used'}",
    ],
    "09_dispatch_renders.py": [
        "6 pictures for 3 clients: 6 accepted, ... times shed",
        "POST /renders: 429, Retry-After 2, ... are active and 4 is the ceiling; try again in 2 s",
        "of the accepted: {'completed': 6}",
        "GET /renders/...: completed, stages ['raw', 'encoded'], error None",
        "GET /pictures/...: 200, image/png",
        "asked for again while it is in hand: the same picture",
        "POST /renders: 503, Retry-After 6",
        "GET /renders/...: 200",
        "the server has ended",
        "another server has done the rest: {'completed': 3}",
    ],
    "10_duplicate_files.py": [
        "walk -> digest_of (in)",
        "digest_of × 4 -> collect (in)",
        "at most 16 files inside at once",
        "operator ... lanes ... busy ... slowest",
        "digest_of ...",
        "bottleneck: ...",
        "... files, ... contents more than once",
        "a plain loop finds the same",
    ],
    "11_archive_in_one_item.py": [
        "... files in the archive",
        "first replica: has the archive",
        "first replica: ran until its lease was lost (...), ... members, ... sent",
        "the row: uploaded, digests None",
        "second replica: has the archive",
        "second replica: ran to its end, ... members, ... sent",
        "upload ...",
        "the row: stored, ... digests",
        "in the bucket: ... objects, sent ... times",
        "unpacked and compared: equal",
    ],
    "12_ingest_documents.py": 2
    * [
        "... documents on ...SQL...",
        "replica one: killed after ... documents",
        "submit -> download (in) ...",
        "download × 16 -> ...",
        "chunks_of ...",
        "embedded ...",
        "store × 4 -> ...",
        "operator ... lanes ... busy ... slowest",
        "bottleneck: ...",
        "indexed once each: ... of ...; parked: 1",
        "answered 404 at first: ...",
        "vectors: ... stored, 0 missing",
        "as computed again: equal",
        "embedded again: ... chunks of ... documents",
        "of documents that were stored by then: 0",
    ],
    "13_balances.py": [
        line
        for database in ("SQLite", "PostgreSQL")
        for line in (
            database,
            "killed: a server with ... shards",
            "when its leases had ended: the other server has all 8",
            "requests without an answer: ...; told to ask again: ...",
            "60 payments of 20 clients; wrong balances were read: 0",
            "SELECT account, sum(cents) ... EXCEPT: 0 rows; 8250 cents in all",
        )
    ],
    "14_meter_usage.py": [
        "180 batches, sent 521 times to 2 processes",
        "billing: killed with 10 lines written and not committed",
        "billing: exit code -9",
        "added: 180; there already: 341",
        "30 invoice lines, for 30 months of accounts",
        "units: 26097 measured, 26097 billed",
        "on no line: 0, too many: 0",
    ],
    "15_ledger.py": [
        "replicas: 1, shards: 2, two each",
        "replicas: 4, shards: 8, two each",
        "replicas: 2, shards: 4, two each",
        "... transfers, 40 accounts",
        "snapshots: ..., with another sum than zero: 0",
        "balances that are not those of SQL: 0",
        "overdrawn: 7, letters to their owners: 7",
    ],
    "16_count_words.py": [
        "killed: a process with ... shards",
        "frozen: a process with ... shards",
        "when their leases had ended: the third process has all 8",
        "all lines were counted, in ... steps",
        "... words, ... times",
        "not counted: 0, counted too often: 0",
    ],
    **{
        f"{number}_metrics_in_{host}.py": [
            "metrics: ... of rowlock, 1 volume applied",
            'healthz: 200, {"live": true, "why": []}',
            'readyz: 200, {"ready": true, "why": []}',
        ]
        for number, host in ((17, "fastapi"), (18, "litestar"), (19, "asyncio"))
    },
    "20_dashboard.py": [
        "nobody: GET /rowlock/ 403",
        "bob: GET /rowlock/ 200",
        "bob sees volume 7: PARKED ...: cloud-7 refused",
        "bob: POST /rowlock/act/unpark 403",
        "alice: POST /rowlock/act/unpark 303",
        "alice sees volume 7: NOT READY: ...",
        "GET /rowlock/api/status: rowlock.status/1",
    ],
    "21_dashboard_in_litestar.py": [
        "nobody: GET /ops/rowlock/ 403",
        "bob: GET /ops/rowlock/ 200",
        "bob: POST /ops/rowlock/act/pause 403",
        "alice: POST /ops/rowlock/act/pause 303",
        "paused by alice ...: the provider is down",
    ],
    "22_dashboard_in_asyncio.py": [
        "nobody: GET / 403",
        "bob: GET / 200",
        "bob: POST /act/pause 403",
        "alice: POST /act/pause 303",
        "paused by alice ...: the provider is down",
    ],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_example_tells_its_story(name: str, tmp_path: Path, run: Run) -> None:
    """Somebody would copy code that does not work."""
    ended = run(*STRICT, str(EXAMPLES / name), folder=tmp_path)
    assert ended.exit_code == 0, str(ended)
    assert missing_lines(ended.output, EXPECTED[name]) == [], str(ended)
    assert "Traceback" not in ended.errors, str(ended)
    assert list(tmp_path.glob("*.db")) == [], "an example leaves nothing behind"


def test_every_example_is_run() -> None:
    """An example that nobody runs would rot."""
    assert sorted(EXPECTED) == sorted(path.name for path in EXAMPLES.glob("*.py"))
