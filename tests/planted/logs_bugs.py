"""Guards of the log: without them it kills what it tells of, floods, or tells what it must not."""

from __future__ import annotations

from bug import Bug

LOGS = "tests/ground/test_logs.py"
REDACTION = "tests/ground/test_redaction.py"
REPEATS = "tests/ground/test_repeats.py"

HOSTILE = "tests/pipelines/test_hostile_logging.py"

LOGS_BUGS = (
    Bug(
        "a log call raises what the host's logging does",
        "logs.py",
        "            _broken.tell()\n\n\ndef tell_counts",
        "            raise\n\n\ndef tell_counts",
        (f"{HOSTILE}::test_a_failed_attempt_frees_its_row", f"{HOSTILE}::test_a_lost_lease_ends_its_attempt"),
    ),
    Bug(
        "an error is described with its values",
        "errors.py",
        "text, name = text_of(error), ",
        "text, name = str(error), ",
        (f"{HOSTILE}::test_a_refused_outcome_keeps_its_values",),
    ),
    Bug(
        "only an Exception of the host's logging is contained",
        "logs.py",
        "        except BaseException:  # noqa: BLE001 - a SystemExit out of",
        "        except Exception:  # a SystemExit out of",
        (f"{LOGS}::test_whatever_the_hosts_logging_raises",),
    ),
    Bug(
        "fields of a record have the names that a host's may have",
        "logs.py",
        "{FIELD_PREFIX + name: value",
        "{name: value",
        (f"{LOGS}::test_fields_stand_under_one_prefix",),
    ),
    Bug(
        "a record names this module as its caller",
        "logs.py",
        "_FRAMES_OF_OURS = 3",
        "_FRAMES_OF_OURS = 2",
        (f"{LOGS}::test_a_record_names_its_caller",),
    ),
    Bug(
        "logging that is broken is told at each line",
        "logs.py",
        "        self.is_told = True\n",
        "",
        (f"{LOGS}::test_a_broken_log_is_told_once",),
    ),
    Bug(
        "stderr that is gone breaks what logging did not",
        "logs.py",
        "        except BaseException:  # noqa: BLE001, S110",
        "        except ZeroDivisionError:  # noqa: S110",
        (f"{LOGS}::test_stderr_that_is_gone_harms_nobody",),
    ),
    Bug(
        "a host that wants no errors of logging gets them",
        "logs.py",
        " or not logging.raiseExceptions:",
        ":",
        (f"{LOGS}::test_a_host_that_wants_no_errors_of_logging_gets_none",),
    ),
    Bug(
        "a line that nobody reads is counted and made",
        "logs.py",
        "            if not self._logger.isEnabledFor(level):\n                return\n",
        "",
        (f"{LOGS}::test_a_level_that_is_off_costs_nothing",),
    ),
    Bug(
        "a traceback has the values of the statement",
        "logs.py",
        "None if error is None else without_values(error)",
        "error",
        (f"{LOGS}::test_a_traceback_tells_no_values_whoever_formats_it",),
    ),
    Bug(
        "a count waits for the next line of its kind",
        "logs.py",
        "    if admission.begun is not None and loop is not None:",
        "    if False and loop is not None:",
        (f"{REPEATS}::test_one_traceback_a_minute_and_a_count",),
    ),
    Bug(
        "a count is told in the context of one row",
        "logs.py",
        ", context=Context())",
        ")",
        (f"{REPEATS}::test_a_count_is_not_told_in_the_context_of_a_row",),
    ),
    Bug(
        "a forked child tells the counts of its parent",
        "logs.py",
        "    os.register_at_fork(after_in_child=_repeats.forget)",
        "    pass",
        (f"{REPEATS}::test_a_forked_child_tells_only_its_own",),
    ),
    Bug(
        "a drain keeps the counts for itself",
        "pipelines/manager.py",
        "            tell_counts()\n",
        "",
        (f"{HOSTILE}::test_a_drain_tells_what_was_counted",),
    ),
    Bug(
        "every line is shown",
        "repeats.py",
        "            if window.shown < line.shown_max:",
        "            if True:",
        (f"{REPEATS}::test_one_traceback_a_minute_and_a_count", f"{REPEATS}::test_a_thousand_rows_lost_at_once"),
    ),
    Bug(
        "a loop goes on with the minute of another one",
        "repeats.py",
        "            return True\n        return mine is loop and",
        "            pass\n        return",
        (f"{REPEATS}::test_the_window_of_a_loop_ends_with_it",),
    ),
    Bug(
        "simulation: what one run logged decides what the next one logs",
        "testing/simulation/hostile_host.py",
        "        logs.forget()\n        _WAYS",
        "        _WAYS",
        ("tests/testing/simulation/test_conditions.py::test_what_one_run_counted_is_nothing_to_the_next",),
    ),
    Bug(
        "pipelines share their counts",
        "repeats.py",
        "line.text, pipeline, error_type,",
        "line.text, error_type,",
        (f"{REPEATS}::test_kinds_are_told_apart",),
    ),
    Bug(
        "kinds are never forgotten",
        "repeats.py",
        " or len(self._windows) < KINDS_MAX:",
        " or True:",
        (f"{REPEATS}::test_kinds_are_bounded",),
    ),
    Bug(
        "kinds that make room take their counts with them",
        "repeats.py",
        "        counted = [counted for old in over for counted in self._windows.pop(old).taken()]",
        "        counted = [self._windows.pop(old) for old in over] and []",
        (f"{REPEATS}::test_old_kinds_make_room",),
    ),
    Bug(
        "what was counted is told twice",
        "repeats.py",
        "        self.count, self.last = 0, None\n",
        "",
        (f"{REPEATS}::test_counts_are_told_at_the_end",),
    ),
    Bug(
        "an error that others are chained to tells its values",
        "redaction.py",
        "    cause = _redacted(error.__cause__, depth",
        "    cause = error.__cause__ or _redacted(None, depth",
        (f"{REDACTION}::test_errors_that_are_chained_tell_no_values",),
    ),
    Bug(
        "what was handled meanwhile tells its values",
        "redaction.py",
        "else _redacted(error.__context__, depth=depth + 1)",
        "else error.__context__",
        (f"{REDACTION}::test_errors_that_are_chained_tell_no_values",),
    ),
    Bug(
        "a value at the end of PostgreSQL's first line is told",
        "redaction.py",
        "    elif _sqlstate(error).startswith(_DATA_ERRORS):",
        "    elif False:",
        (f"{REDACTION}::test_values_that_cannot_be_converted_are_not_told",),
    ),
    Bug(
        "the statement and its parameters are told",
        "redaction.py",
        '    first = told.partition("\\n")[0]\n',
        "    first = str(error)\n",
        (f"{REDACTION}::test_a_refused_statement_tells_no_values",),
    ),
    Bug(
        "a value that a type refuses is told",
        "redaction.py",
        "        text = _vague(text)\n",
        "        pass\n",
        (f"{REDACTION}::test_a_value_that_a_type_refuses_is_not_told",),
    ),
    Bug(
        "an error of the host that quotes one of the database is told whole",
        "redaction.py",
        "        return _WITH_STATEMENT.split(str(error), maxsplit=1)[0]",
        "        return str(error)",
        (f"{REDACTION}::test_an_error_that_quotes_a_databases_is_cut",),
    ),
    Bug(
        "chains are copied whole",
        "redaction.py",
        " or depth >= CHAINED_MAX:",
        ":",
        (f"{REDACTION}::test_long_chains_are_cut",),
    ),
)
