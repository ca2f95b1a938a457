"""Guards of the registry of dialects."""

from __future__ import annotations

from bug import Bug

REGISTRY = "tests/conformance/test_registry.py"

DIALECT_BUGS = (
    Bug(
        "a part of a dialect may be of any kind",
        "dialects/registry.py",
        "DialectPart._load",
        "not isinstance(made, self._kind)",
        "False",
        (f"{REGISTRY}::test_a_part_of_another_kind_is_refused",),
    ),
    Bug(
        "a part that a dialect lacks is looked up all the same",
        "dialects/registry.py",
        "Dialect.load",
        "part not in self.parts",
        "False",
        (f"{REGISTRY}::test_a_part_that_is_missing_is_named",),
    ),
    Bug(
        "no installed package is asked for a dialect",
        "dialects/registry.py",
        "dialect_named",
        "register(offered.load())",
        "pass",
        (f"{REGISTRY}::test_an_installed_package_offers_a_database",),
    ),
    Bug(
        "texts of an added driver are kept whole",
        "dialects/registry.py",
        "register",
        "    add_database_packages(dialect.drivers)\n",
        "",
        (f"{REGISTRY}::test_errors_of_its_driver_are_a_databases",),
    ),
)
