"""Every rank except rank 0: watch the script of this rank, and obey rank 0."""

from __future__ import annotations

from ddoctor.cluster.store import FINISHED, ClusterStore, compressed, key
from ddoctor.cluster.supervisor import CoordinatorHeartbeat, orders
from ddoctor.training.child import Child, NewChild
from ddoctor.training.gathering import Answers
from ddoctor.training.line import Direct, Line
from ddoctor.training.messages import UNRECORDED, Directive, Record, TurnOrder, Unrecorded
from ddoctor.training.reporting import reply


def follow(store: ClusterStore, child: Child, new_child: NewChild, join_limit: float) -> int | None:
    """Run turns until rank 0 ends the run; return the script's exit code of the first turn.

    ``join_limit``: seconds to wait for rank 0's first heartbeat.

    Raises:
        CoordinatorLost: rank 0 no longer answers.
        StoreLost: the store no longer answers.
        Unrecorded: rank 0 has given up the record.
    """
    coordinator = CoordinatorHeartbeat(store, join_limit)
    first = _turn(store, child, 0, coordinator)
    for turn, order in orders(store, TurnOrder, coordinator, first=1):
        if order.over:
            store.add(FINISHED)
            break
        _turn(store, new_child(turn, order), turn, coordinator)
    return 1 if first.ended_by_us else first.ending.exit_code


def _turn(
    store: ClusterStore, child: Child, turn: int, coordinator: CoordinatorHeartbeat
) -> Record:
    launched = child.launched
    if child.whole:
        line: Direct | Line = Line(store, turn, launched)
    else:
        line = Direct(store, turn, launched.rank, store.tick)
    answers = Answers(store, turn, child) if child.whole else None

    def glance() -> None:
        # Rank 0 may ask about a change; nothing else is urgent.
        if answers is not None:
            answers.look(line.exchange(now).directive.window)

    while not child.over:
        now = child.now()
        said = line.exchange(now)
        coordinator.heard(said.beat)
        _obey(child, said.directive)
        if said.directive.end:
            child.end(sample=True, tick=line.tick)
        child.watch(line.tick, glance if child.whole else None)
        coordinator.ending = child.interrupted
    if answers is not None:
        answers.finish()
    # It may come only now: then the ranks that stopped in time have broken the connections.
    _obey(child, reply(store, turn).directive)
    line.exchange(child.now())
    record = child.record()
    store.set(key("record", turn, launched.rank), compressed(record))
    return record


def _obey(child: Child, directive: Directive) -> None:
    if directive.stop == UNRECORDED:
        raise Unrecorded
    if directive.stop is not None:
        child.stop_at(directive.stop)
