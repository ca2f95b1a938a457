"""The fix point: nodes are asked until none of them changes anything, and the next calls are known.

Pure: no thread, no lock and no clock; the time is a number that is passed in. Only idle nodes are
asked: one whose call is in flight keeps its changes until the call has ended. The newest change is
reacted to first, so that a value goes on to the next node before another value is begun.

Source: ``schedule_queue`` of Databend's executing graph.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from rowlock.errors import InternalError
from rowlock.graph.building.topology import Node
from rowlock.graph.ports import Changes
from rowlock.graph.processor import NodeStatus

NEED_CONSUME = NodeStatus.NEED_CONSUME
FINISHED = NodeStatus.FINISHED


class Asked(NamedTuple):
    """How many nodes were asked, and how many of them are done."""

    finished: int
    asked: int


def wake(node: Node, changes: Changes) -> None:
    """Have a node asked even if none of its ports changed."""
    node.is_woken = True
    changes.owners.append(node)


def settle(changes: Changes, calls: list[Node], *, now: float, asks_max: int) -> Asked:
    """Ask nodes until none of them changes anything, or `asks_max` of them were asked.

    What is left stays in `changes`, for the next time.

    Args:
        changes: whose ports changed, and which nodes were woken.
        calls: the nodes that want a call are added here, in the order of their answers; those
            before an error as well.
        now: the time of all answers, in seconds.
        asks_max: bound for the number of nodes asked.

    Raises:
        InternalError: a node answered something else than a `NodeStatus`.
        Exception: whatever an `event` raised. `Changes.asked` is that node then.
    """
    finished = asked = 0
    owners = cast("list[Node]", changes.owners)
    while owners and asked < asks_max:
        node = owners.pop()
        changed = node.changed
        if node.is_busy or not (changed or node.is_woken):
            continue
        asked += 1
        for port in changed:
            port.is_changed = False
        node.is_woken = False
        changes.asked = node
        status = node.processor.event(changed)
        changed.clear()
        if status is not node.status:
            if status.__class__ is not NodeStatus:
                raise _not_a_status(node, status)
            node.spent_s[node.status] += now - node.since
            node.status, node.since = status, now
        if status > NEED_CONSUME:
            node.is_busy = True
            if status is FINISHED:
                finished += 1
                _finish_ports(node)
            else:
                calls.append(node)
        changes.asked = None
    return Asked(finished, asked)


def _not_a_status(node: Node, status: object) -> InternalError:
    # Not its `repr`, which is code of the host: the mutex is held.
    kind = type(status).__name__
    return InternalError(f"event() of {node.operator} returned a {kind}, not a NodeStatus")


def _finish_ports(node: Node) -> None:
    # A port that is left open would keep its neighbours waiting for ever.
    for input_ in node.processor.inputs:
        input_.finish()
    for output in node.processor.outputs:
        output.finish()
