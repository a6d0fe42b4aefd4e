"""Supplies the records that a pass handles next: batches of locked records, ready ones and those due again, for all
threads of the pass."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime

import orjson

from penstock.backlog import ticks
from penstock.backlog.claim import (
    Candidate,
    Key,
    LockedRecord,
    Statements,
    Values,
    fetch_candidates,
    fetch_taken,
    to_arrays,
)
from penstock.backlog.terms import Terms
from penstock.client.connections import Connection

LOOKAHEAD = 5000  # candidates per lookup
SLICE = 2000  # failed records per comparison with the sidecar
ONE_IN = 4  # records that may be due again while others are ready


@dataclass(slots=True)
class ClaimedBatch:
    """Locked records."""

    taken: list[LockedRecord]
    number: int | None = None  # its number in the walk; None: it does not move the mark


@dataclass(slots=True)
class Walk:
    """Knows which batches of candidates are finished. The mark is before the first one that is not."""

    ends: dict[int, Candidate] = field(default_factory=dict)
    through: set[int] = field(default_factory=set)
    given: int = 0
    passed: int = 0
    mark: ticks.Mark | None = None

    def give(self, last: Candidate) -> int:
        self.given += 1
        self.ends[self.given] = last
        return self.given

    def finish(self, number: int) -> None:
        self.through.add(number)
        while self.passed + 1 in self.through:
            self.passed += 1
            self.through.discard(self.passed)
            end = self.ends.pop(self.passed)
            self.mark = ticks.Mark(end.due, end.key)


class Source:
    """The source of a pass. Its threads share it; one of them asks at a time."""

    def __init__(
        self,
        terms: Terms,
        adopted: int,
        now: datetime,
        mark: ticks.Mark | None,
        *,
        limit: int | None,
        oldest: datetime | None,
        newest_first: bool,
    ) -> None:
        self.terms = terms
        self.statements = Statements(terms)
        self.walk = Walk()
        self.skipped = 0  # due, but held by another session or changed meanwhile
        self.failed: set[Key] = set()  # in this pass: they may be due again at once
        self.resting: set[Key] = set()  # skipped in this pass: their status could not be written
        self._adopted = adopted
        self._now = now
        self._mark = mark  # None: another pass walks the ticks
        self._left = limit
        self._oldest = oldest
        self._newest_first = newest_first
        self._lock = threading.Lock()
        self._given = self._given_again = 0
        self._quota = (
            0 if limit is None else max(limit // ONE_IN, min(limit - 1, 1))
        )  # reserved for records that are due again
        self._last_ready: Values | None = None  # the position of the last record that was taken ready
        self._ready_over = not terms.ready
        self._again_over = not terms.retry or (terms.by_ticks and mark is None)
        self.position: Candidate | None = None  # up to here failed records were compared with the sidecar
        self._slice_end: Candidate | None = None
        self.remembering = False  # the sidecar has rows
        self._unknown = False  # the present candidates are not in the sidecar
        self._unknown_over = not terms.remembers
        self._candidates: deque[Candidate] = deque()
        self._last: Candidate | None = None

    @property
    def cut(self) -> bool:
        """True if the pass ended at its limit, so that there may be more."""
        return self._left == 0 or not (self._ready_over and self._again_over)

    @property
    def reached(self) -> ticks.Mark | None:
        """The present mark. If the whole window was handled, it is the time at which the pass began."""
        if self.terms.by_ticks and self._again_over and self._mark is not None and self.walk.passed == self.walk.given:
            return ticks.Mark(self._now)
        return self.walk.mark

    def take(self, connection: Connection, size: int) -> ClaimedBatch | None:
        """Locks at most `size` records in the transaction of the connection. None: no record is left."""
        with self._lock:
            while self._left != 0 and not (self._ready_over and self._again_over):
                size = size if self._left is None else min(size, self._left)
                batch = self._take_next(connection, size)
                if batch.taken:
                    self._spend(len(batch.taken))
                    return batch
        return None

    def finish(self, batch: ClaimedBatch) -> None:
        if batch.number is not None:
            with self._lock:
                self.walk.finish(batch.number)

    def _spend(self, records: int) -> None:
        if self._left is not None:
            self._left -= records

    def _take_next(self, connection: Connection, size: int) -> ClaimedBatch:
        """Takes a batch. A quarter of the records may be due again while others are ready; all, if none is ready."""
        share = size if self._ready_over else self._given // (ONE_IN - 1) - self._given_again
        kept = 0 if self._again_over else max(self._quota - self._given_again, 0)
        room = size if self._left is None else min(size, self._left - kept)
        if not self._again_over and (share >= max(size // ONE_IN, 1) or room <= 0):
            batch = self._take_due_again(connection, min(size, max(share, kept, 1)))
            self._given_again += len(batch.taken)
            return batch
        batch = self._take_ready(connection, room)
        self._given += len(batch.taken)
        return batch

    def _take_ready(self, connection: Connection, size: int) -> ClaimedBatch:
        statement = self.statements.ready(
            newest_first=self._newest_first, bounded=self._oldest is not None, onward=self._last_ready is not None
        )
        bound = () if self._oldest is None else (self._oldest,)
        taken = fetch_taken(connection, statement, (*bound, *(self._last_ready or ()), size), len(self.terms.key))
        if taken:
            self._last_ready = self.statements.position(taken[-1])
        self._ready_over = len(taken) < size
        taken = [one for one in taken if one.key not in self.resting] if self.resting else taken
        return ClaimedBatch([one._replace(remembered=True) for one in taken] if self.remembering else taken)

    def _take_due_again(self, connection: Connection, size: int) -> ClaimedBatch:
        if not self._candidates:
            self._look_ahead(connection)
        chosen = [self._candidates.popleft() for _ in range(min(size, len(self._candidates)))]
        if self._unknown and chosen:
            self.position = chosen[-1] if self._candidates else self._slice_end
        if not chosen:
            self._again_over = True
            return ClaimedBatch([])
        number = self.walk.give(chosen[-1]) if self.terms.by_ticks else None
        keys = [one.key for one in chosen if one.key not in self.failed and one.key not in self.resting]
        taken = self.lock(connection, keys) if keys else []
        batch = ClaimedBatch(taken, number)
        self.skipped += len(keys) - len(taken)
        if not taken and number is not None:
            self.walk.finish(number)
        return batch

    def lock(self, connection: Connection, keys: list[Key]) -> list[LockedRecord]:
        """Locks those of the records that are still due and not held by another session. They are checked after they
        are locked, because another session may have handled one meanwhile."""
        width = len(self.terms.key)
        found = fetch_taken(connection, self.statements.lock(), tuple(to_arrays(keys, width)), width)
        again = [one for one in self._add_remembered(connection, found) if self._is_due(one)]
        if self.terms.remembers and len(found) < len(keys):
            self._forget_gone(connection, [key for key in keys if key not in {one.key for one in found}])
        return again

    def _is_due(self, taken: LockedRecord) -> bool:
        if taken.claimed in self.terms.ready:
            return True
        if taken.last_failure is None:
            return True
        if self.terms.by_ticks:
            if not isinstance(taken.since, datetime):
                return False  # changed after it was found: without a timestamp it has no ticks
            tick = ticks.find_last_tick(self.terms.rungs, taken.since, self._now)
            return tick is not None and tick > taken.last_failure
        wait = self.terms.waits.after(taken.failures)
        return wait is not None and self._now - taken.last_failure >= wait

    def _add_remembered(self, connection: Connection, taken: list[LockedRecord]) -> list[LockedRecord]:
        """Adds what the sidecar remembers of records. A record that is ready again begins anew."""
        if not self.terms.remembers or not taken:
            return taken
        parameters = (*to_arrays([one.key for one in taken], len(self.terms.key)), self._adopted)
        rows = {tuple(row[0]): row[1:] for row in connection.execute(self.statements.remembered(), parameters)}
        known = []
        for one in taken:
            failures, due = rows.get(one.key, (0, self._now))
            if one.claimed in self.terms.ready:
                known.append(one._replace(remembered=True))
            elif due is not None and due <= self._now:  # otherwise it is dead, or has just failed in another session
                known.append(one._replace(failures=failures, remembered=one.key in rows))
        return known

    def _forget_gone(self, connection: Connection, keys: list[Key]) -> None:
        """Removes from the sidecar the records that no longer exist, or are no longer failed."""
        parameters = tuple(to_arrays(keys, len(self.terms.key)))
        there = {tuple(row[0]) for row in connection.execute(self.statements.present(), parameters)}
        gone = [list(key) for key in keys if key not in there]
        if gone:
            connection.execute("select penstock.forget_records(%s, %s::jsonb)", (self._adopted, to_json(gone)))

    def _look_ahead(self, connection: Connection) -> None:
        most = LOOKAHEAD if self._left is None else min(LOOKAHEAD, max(self._left, 100))
        if self.terms.by_ticks:
            assert self._mark is not None
            mark = self._mark if self._last is None else ticks.Mark(self._last.due, self._last.key)
            asked = self.statements.due_by_ticks(self._now, mark, self._oldest, most)
        elif not self.terms.remembers:
            asked = self.statements.due_by_columns(self._now, self._last, self._oldest, most)
        elif self._find_unknown(connection):
            return
        else:
            asked = self.statements.due_by_sidecar(self._adopted, self._now, self._last, most)
        self._candidates.extend(fetch_candidates(connection, *asked))
        if self._candidates:
            self._last = self._candidates[-1]

    def _find_unknown(self, connection: Connection) -> bool:
        """Looks for failed records that the sidecar does not know, from where the last pass ended. It ends at the first
        slice without one. Returns whether there are any."""
        self._unknown = False
        while not self._unknown_over:
            statement, parameters = self.statements.failed_before(self._adopted, self.position, SLICE)
            rows = connection.execute(statement, parameters).fetchall()
            found = [Candidate(since, tuple(key)) for since, key, known in rows if not known]
            self._slice_end = Candidate(rows[-1][0], tuple(rows[-1][1])) if len(rows) == SLICE else None
            self._unknown_over = self._slice_end is None or not found
            young = [one for one in found if self._oldest is None or one.due >= self._oldest]
            self._candidates.extend(young)
            self._unknown = bool(young)
            if young:
                return True
            self.position = self._slice_end
        return False


def read_position(connection: Connection, adopted: int) -> tuple[Candidate | None, bool]:
    """Returns up to where failed records were compared with the sidecar, and whether the sidecar has rows."""
    row = connection.execute(REMEMBERED, (adopted,)).fetchone()
    if row is None:
        return None, False
    tick, key, rows = row
    return None if tick is None or key is None else Candidate(tick, tuple(key)), bool(rows)


REMEMBERED = """
    select a.tick, a.key, exists (select from penstock.adopted_record as r where r.adopted_id = a.id)
    from penstock.adopted as a where a.id = %s
"""


def begin_walk(connection: Connection, adopted: int, number: int) -> ticks.Mark | None:
    """Returns how far the ticks of a table were walked, if this pass may continue. None: another pass walks them; only
    one may at a time."""
    row = connection.execute("select penstock.begin_walk(%s)", (number,)).fetchone()
    if not row or not row[0]:
        return None
    row = connection.execute("select tick, key from penstock.adopted where id = %s", (adopted,)).fetchone()
    if row is None or row[0] is None:
        return ticks.START
    return ticks.Mark(row[0], None if row[1] is None else tuple(row[1]))


def note_mark(connection: Connection, adopted: int, mark: ticks.Mark | None) -> None:
    """Stores how far the ticks of a table were walked."""
    if mark is not None:
        key = None if mark.key is None else list(mark.key)
        connection.execute("select penstock.mark_adopted(%s, %s, %s)", (adopted, mark.tick, key))


def read_clock(connection: Connection) -> datetime:
    """Returns the present moment in UTC: see `ticks`."""
    row = connection.execute("select penstock.clock()").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now.astimezone(UTC)


def to_json(value: object) -> str:
    return orjson.dumps(value).decode()
