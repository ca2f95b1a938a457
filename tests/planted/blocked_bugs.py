"""The guards that keep leases while the host's event loop stands still, and the tests that must notice when one is missing."""

from __future__ import annotations

from bug import Bug

BLOCKED = "tests/pipelines/test_blocked_loop.py"
LIFELINE = "tests/pipelines/test_lifeline.py"
POOL = "tests/leases/test_own_pool.py"
STANDING = "tests/leases/test_standing.py"
HOST = "tests/pipelines/test_host_loop.py"

BLOCKED_BUGS = (
    Bug(
        "leases are renewed on the host's loop",
        "pipelines/heartbeater.py",
        "            await self.context.lifeline.run(self._beat_apart)\n",
        "            await self._beat_apart()\n",
        (f"{BLOCKED}::test_a_blocked_loop_costs_no_lease[sqlite]",),
    ),
    Bug(
        "heartbeats take a connection of the host's",
        "pipelines/heartbeater.py",
        "self.context.session_factory if lifeline is None else lifeline.sessions",
        "self.context.session_factory",
        (f"{BLOCKED}::test_a_full_pool_costs_no_lease[sqlite]",),
    ),
    Bug(
        "a wedged loop keeps its leases for ever",
        "pipelines/heartbeater.py",
        "            if not self._is_wedged():\n",
        "            if True:\n",
        (f"{BLOCKED}::test_a_loop_that_never_comes_back_lets_go[sqlite]",),
    ),
    Bug(
        "a transaction that stands still is left standing",
        "pipelines/heartbeater.py",
        "                await cut_standing(lifeline.sessions, thread=lifeline.host.thread, older_than_s=limit_s)\n",
        "                pass\n",
        (f"{BLOCKED}::test_a_loop_blocked_within_a_transaction_costs_no_lease[sqlite-also]",),
    ),
    Bug(
        "what a beat finds is told in its own thread",
        "pipelines/host_loop.py",
        "        if threading.get_ident() == self.thread:\n",
        "        if True:\n",
        (f"{HOST}::test_what_is_to_be_done_is_done_on_the_loop",),
    ),
    Bug(
        "a loop that has ended kills who asks it",
        "pipelines/host_loop.py",
        "        with suppress(RuntimeError):\n            self._loop.call_soon_threadsafe(act)\n",
        "        self._loop.call_soon_threadsafe(act)\n",
        (f"{HOST}::test_a_loop_that_has_ended_does_nothing_more",),
    ),
    Bug(
        "the log is full of one block",
        "pipelines/host_loop.py",
        " and not self._is_told:",
        ":",
        (f"{HOST}::test_a_loop_that_stands_still_is_told_of_once",),
    ),
    Bug(
        "a SystemExit ends the thread for heartbeats",
        "pipelines/lifeline.py",
        "        while not self._stopping:\n",
        "        if not self._stopping:\n",
        (f"{LIFELINE}::test_a_heartbeat_that_dies_is_replaced",),
    ),
    Bug(
        "a SystemExit of the thread ends the host's loop",
        "pipelines/lifeline.py",
        "            except (SystemExit, KeyboardInterrupt) as error:\n",
        "            except ZeroDivisionError as error:\n",
        (f"{LIFELINE}::test_a_heartbeat_that_dies_is_replaced",),
    ),
    Bug(
        "the thread outlives its manager",
        "pipelines/manager.py",
        "            await self._lifeline.stop()\n",
        "            pass\n",
        (f"{LIFELINE}::test_a_manager_has_one_thread_and_ends_it",),
    ),
    Bug(
        "a host that dies hangs for the thread",
        "pipelines/lifeline.py",
        "daemon=True",
        "daemon=False",
        (f"{LIFELINE}::test_the_interpreter_ends_though_nobody_drained",),
    ),
    Bug(
        "connections for heartbeats are the host's",
        "leases/own_pool.py",
        "        twin.pool = engine.pool.recreate()\n",
        "",
        (f"{POOL}::test_a_connection_beside_the_hosts_pool[sqlite]",),
    ),
    Bug(
        "options of the engine are forgotten",
        "leases/own_pool.py",
        "            twin._proxied = self._twin(proxied)  # type: ignore[attr-defined]\n            return twin\n",
        "            return self._twin(proxied)\n",
        (f"{POOL}::test_options_of_an_engine_go_with_it[sqlite]",),
    ),
    Bug(
        "a renewal waits for a locked file past its limit",
        "leases/own_pool.py",
        '            event.listen(twin.pool, "connect", self._wait_less)\n',
        "            pass\n",
        (f"{POOL}::test_a_locked_file_is_not_waited_for_longer",),
    ),
    Bug(
        "connections for heartbeats stay open",
        "leases/own_pool.py",
        "            await AsyncEngine(engine).dispose()\n",
        "            pass\n",
        (f"{POOL}::test_closed_it_leaves_no_connection",),
    ),
    Bug(
        "a transaction within its time is cut",
        "leases/standing.py",
        " or monotonic() - self._began_at < older_than_s:\n",
        ":\n",
        (f"{STANDING}::test_a_young_one_is_left_alone",),
    ),
    Bug(
        "a connection is closed that serves somebody else by now",
        "leases/standing.py",
        "        _standing.discard(self)\n        with self._ending:\n            self._connection = self._pooled = None\n",
        "",
        (f"{STANDING}::test_one_that_has_ended_is_left_alone",),
    ),
    Bug(
        "a connection that was closed goes back into the pool",
        "leases/standing.py",
        "        pooled.invalidate(soft=True)\n",
        "",
        (f"{STANDING}::test_its_connection_serves_nobody_else",),
    ),
    Bug(
        "a COMMIT on a closed connection passes for one",
        "leases/standing.py",
        "    if transaction.was_cut:\n",
        "    if transaction.was_cut and error is not None:\n",
        (f"{STANDING}::test_its_connection_serves_nobody_else",),
    ),
    Bug(
        "a timeout of a blocked loop passes for one of the database",
        "leases/transaction.py",
        "            ends_at, left_s = loop.time() + STALL_S_MAX, STALL_S_MAX\n",
        "            pass\n",
        (f"{STANDING}::test_a_timeout_that_comes_late_is_the_loops[sqlite]",),
    ),
    Bug(
        "an outcome is given up after one try that a blocked loop made long",
        "pipelines/writer.py",
        "        gives_up_at = math.inf\n",
        "        gives_up_at = monotonic() + self.context.settings.lock_timeout.total_seconds()\n",
        ("tests/pipelines/test_writer.py::test_a_first_try_that_took_long_is_not_the_last",),
    ),
    Bug(
        "a beat that crosses a commit tells of a lost lease",
        "pipelines/heartbeater.py",
        "not in held and not item.is_settled]",
        "not in held]",
        (
            "tests/pipelines/test_heartbeater_gaps.py::test_an_item_whose_outcome_is_on_its_way_is_not_told_lost[sqlite]",
        ),
    ),
    Bug(
        "a SystemExit in a transaction ends the event loop",
        "leases/standing.py",
        "    except (SystemExit, KeyboardInterrupt) as raised:\n",
        "    except ZeroDivisionError as raised:\n",
        ("tests/leases/test_transaction.py::test_a_listener_of_the_hosts_does_not_end_the_loop[sqlite-error0]",),
    ),
    Bug(
        "a transaction that is out of time keeps the file locked",
        "leases/transaction.py",
        "beside=give_up(task)",
        "beside=None",
        (f"{STANDING}::test_one_that_is_out_of_time_frees_the_file_at_once",),
    ),
    Bug(
        "an outcome that blocks the loop each time is written again for ever",
        "pipelines/writer.py",
        " or cuts > CUTS_MAX",
        "",
        (f"{BLOCKED}::test_an_outcome_that_always_blocks_fails_in_the_end",),
    ),
    Bug(
        "a log handler that blocks stops the heartbeats",
        "leases/log_apart.py",
        '    threading.Thread(target=log, name="rowlock log", daemon=True).start()\n',
        "    log()\n",
        (f"{BLOCKED}::test_a_loop_that_stands_still_in_the_log_costs_no_lease",),
    ),
    Bug(
        "connections that know their loop are used in the thread for ever",
        "pipelines/heartbeater.py",
        "        self._must_come_home = True\n",
        "        pass\n",
        (f"{LIFELINE}::test_connections_that_know_their_thread_are_used_in_it[sqlite]",),
    ),
    Bug(
        "a loop that ended without a drain leaves its thread",
        "pipelines/host_loop.py",
        "        while not self._loop.is_closed():\n",
        "        while True:\n",
        (f"{LIFELINE}::test_a_loop_that_ended_without_a_drain_leaves_no_thread",),
    ),
    Bug(
        "options for one session cost a connection",
        "leases/own_pool.py",
        "        if engine.pool not in self._engines:\n",
        "        if True:\n",
        (f"{POOL}::test_options_for_one_session_cost_no_connection[sqlite]",),
    ),
    Bug(
        "a transaction of another loop is cut",
        "leases/standing.py",
        "        if self._thread != thread or monotonic()",
        "        if monotonic()",
        (f"{STANDING}::test_one_of_another_loop_is_left_alone[sqlite]",),
    ),
    Bug(
        "a lock that was cut fails the attempt",
        "leases/related.py",
        "                if not error.was_cut or not item.is_trusted():\n",
        "                if True:\n",
        (f"{BLOCKED}::test_a_loop_blocked_within_a_transaction_costs_no_lease[sqlite-a related lock]",),
    ),
)
