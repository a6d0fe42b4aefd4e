"""The checker: compares the notes of producers and workers with the tables at rest.

The notes are loaded into a schema `noted` of the database under test. Each rule is a query whose rows are violations. A
claim is known on both sides by its task and the moment PostgreSQL claimed at, so that each finished attempt in
`penstock.history` is traced back to the token that asked for it.

An operation that may or may not have happened is never a violation: one that was invoked and whose end is not known,
and one that was reported in the time before an asynchronous failover that PostgreSQL is allowed to lose (`excused`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import LiteralString, NamedTuple

import psycopg

from notes import read_notes
from penstock import Penstock

SHOWN = 5  # violations of a rule that are shown

LOAD: LiteralString = """
    drop schema if exists noted cascade;
    create schema noted;
    create unlogged table noted.note (n bigint generated always as identity, facts jsonb not null);
    create unlogged table noted.excused (since timestamptz not null, until timestamptz not null);
"""

DERIVE: LiteralString = """
    create unlogged table noted.ended as
        select n.n, to_timestamp((n.facts->>'at')::float8) as at, n.facts->>'op' as op, n.facts->>'phase' as phase,
               n.facts
        from noted.note as n where n.facts->>'op' in ('push', 'upsert', 'cancel', 'settle', 'release');
    -- What was answered in a time that may be lost is not known.
    update noted.ended as e set phase = 'unknown'
    from noted.excused as x where e.phase = 'ok' and e.at between x.since and x.until;

    create unlogged table noted.pushed as
        select k.key, e.facts->>'kind' as kind, e.facts->>'batch' as batch, bool_or(e.phase = 'ok') as ok,
               bool_or(e.phase = 'fail') as failed, (e.facts->>'count')::int as count
        from noted.ended as e
        cross join lateral generate_series((e.facts->>'first')::bigint,
                                           (e.facts->>'first')::bigint + (e.facts->>'count')::bigint - 1) as k(key)
        where e.op = 'push'
        group by k.key, e.facts->>'kind', e.facts->>'batch', e.facts->>'count';
    create unique index on noted.pushed (key);

    create unlogged table noted.upserted as
        select i.item->>0 as subject, (i.item->>1)::int as version, min(e.n) as n, bool_or(e.phase = 'ok') as ok,
               bool_or(e.phase = 'fail') as failed
        from noted.ended as e cross join lateral jsonb_array_elements(e.facts->'items') as i(item)
        where e.op = 'upsert'
        group by i.item->>0, (i.item->>1)::int;
    create unique index on noted.upserted (subject, version);

    -- A cancel that was invoked may have happened, unless its end says that it did not.
    create unlogged table noted.cancelled as
        select e.n, e.phase, (e.facts->>'task')::bigint as task_id, (e.facts->>'key')::bigint as key,
               e.facts->>'subject' as subject, e.facts->>'result' as result,
               e.phase = 'ok' and e.facts->>'result' in ('cancelled', 'revoked') as ok,
               lead(e.phase) over w as answer, lead(e.facts->>'result') over w as answered
        from noted.ended as e where e.op = 'cancel'
        window w as (partition by e.facts->>'key', e.facts->>'subject' order by e.n);
    create unlogged table noted.may_be_cancelled as
        select c.n, c.key, c.subject from noted.cancelled as c
        where c.phase = 'invoke'
          and (c.answer is null or c.answer in ('invoke', 'unknown')
               or c.answer = 'ok' and c.answered in ('cancelled', 'revoked'));
    create index on noted.may_be_cancelled (key);

    create unlogged table noted.claimed as
        select (n.facts->>'token')::uuid as token, (n.facts->>'pid')::int as pid,
               timestamptz 'epoch' + (n.facts->>'claimed')::bigint * interval '1 microsecond' as claimed_at,
               (n.facts->>'alone')::boolean as alone, (t.task->>0)::bigint as task_id, (t.task->>1)::bigint as key,
               t.task->>2 as subject, (t.task->>3)::int as version, (t.task->>4)::int as attempt,
               (t.task->>5)::int as iteration
        from noted.note as n cross join lateral jsonb_array_elements(n.facts->'tasks') as t(task)
        where n.facts->>'op' = 'claim';
    create index on noted.claimed (task_id, claimed_at);
    create index on noted.claimed (token, task_id);
    create index on noted.claimed (key);

    create unlogged table noted.asked as
        select (e.facts->>'token')::uuid as token, i.id::bigint as task_id,
               coalesce(e.facts->'others'->>i.id, 'done') as word,
               count(*) filter (where e.phase = 'invoke') as invoked,
               count(*) filter (where e.phase = 'fail') as refused
        from noted.ended as e cross join lateral jsonb_array_elements_text(e.facts->'ids') as i(id)
        where e.op = 'settle' and e.phase in ('invoke', 'fail')
        group by 1, 2, 3;
    create index on noted.asked (token, task_id);

    -- States are null where a settle that succeeded says nothing of a task it was asked to settle. What it answered
    -- `busy` it did not settle: the worker asks again.
    create unlogged table noted.told as
        select distinct (e.facts->>'token')::uuid as token, i.id::bigint as task_id, e.facts->'states'->>i.id as state,
               coalesce(e.facts->'others'->>i.id, 'done') as word
        from noted.ended as e cross join lateral jsonb_array_elements_text(e.facts->'ids') as i(id)
        where e.op = 'settle' and e.phase = 'ok' and e.facts->'states'->>i.id is distinct from 'busy';
    create index on noted.told (token, task_id);

    -- When PostgreSQL, or the way to it, was harmed.
    create unlogged table noted.outage as
        select to_timestamp((n.facts->>'since')::float8) as since, to_timestamp((n.facts->>'until')::float8) as until
        from noted.note as n where n.facts->>'op' = 'outage';

    create unlogged table noted.attempt as
        select h.task_id, h.iteration, h.attempt, h.claimed_at, h.finished_at, h.outcome, h.kind, h.subject, h.worker,
               c.token, c.pid, c.key, c.version, c.alone
        from penstock.history as h
        left join noted.claimed as c on c.task_id = h.task_id and c.claimed_at = h.claimed_at;
    create index on noted.attempt (task_id, claimed_at);
    create index on noted.attempt (key);
    create index on noted.attempt (subject);
    analyze noted.pushed, noted.upserted, noted.claimed, noted.asked, noted.told, noted.attempt, noted.may_be_cancelled;
"""


class Rule(NamedTuple):
    """A query whose rows are violations, and what it counts as."""

    verdict: str
    said: str
    query: LiteralString


RULES = (
    Rule(
        "lost",
        "a push was reported, and its task was never completed",
        """
        select p.kind || ' ' || p.key from noted.pushed as p
        where p.ok and p.kind <> 'poison'
          and not exists (select from noted.attempt as a where a.key = p.key and a.outcome = 'done')
          and not exists (select from noted.may_be_cancelled as c where c.key = p.key)
          and p.key not in (select (t.payload->>'serial')::bigint from penstock.task as t
                            where t.payload ? 'serial' and t.ended is null)
        """,
    ),
    Rule(
        "lost",
        "a version was reported, and neither it nor a newer one was completed",
        """
        select u.subject || ' version ' || u.version from (
            select u.subject, max(u.version) as version
            from noted.upserted as u
            where u.ok and not exists (select from noted.may_be_cancelled as c
                                       where c.subject = u.subject and c.n > u.n)
            group by u.subject
        ) as u
        where not exists (select from noted.attempt as a
                          where a.subject = u.subject and a.outcome = 'done' and a.version >= u.version)
          and not exists (select from penstock.task as t
                          where t.subject = u.subject and t.ended is null and (t.payload->>'version')::int >= u.version)
        """,
    ),
    Rule(
        "lost",
        "a task was given up that never failed for good",
        """
        select t.kind || ' ' || t.id || ': ' || t.reason from penstock.task as t
        where t.ended = 'dead' and t.kind <> 'poison'
        """,
    ),
    Rule(
        "lost",
        "a poison task was reported, and is not dead",
        """
        select p.key::text from noted.pushed as p
        where p.ok and p.kind = 'poison'
          and not exists (select from penstock.task as t
                          where t.payload @> jsonb_build_object('serial', p.key) and t.ended = 'dead')
        """,
    ),
    Rule(
        "unfollowed",
        "a poison task died, and its follow-up was not completed exactly once, or a follow-up has no death",
        """
        select coalesce(d.subject, f.subject)
        from (select 'dead:' || h.task_id || ':' || h.id as subject from penstock.history as h
              where h.kind = 'poison' and h.outcome = 'dead') as d
        full join (select h.subject, count(*) as times from penstock.history as h
                   where h.kind = 'buried' and h.outcome = 'done' group by h.subject) as f on f.subject = d.subject
        where d.subject is null or f.times is distinct from 1
        """,
    ),
    Rule(
        "lost",
        "a task is done, and its effect is not there",
        """
        select a.task_id::text from noted.attempt as a
        where a.kind = 'plain' and a.outcome = 'done' and not exists (select from effect as e where e.task = a.task_id)
        """,
    ),
    Rule(
        "lost",
        "a settle was accepted, and history does not know it",
        """
        select t.task_id || ' by ' || t.token from noted.told as t
        join noted.claimed as c on c.token = t.token and c.task_id = t.task_id
        where t.word = 'done' and t.state is not null
          and not exists (select from noted.attempt as a where a.task_id = t.task_id and a.outcome = 'done')
        """,
    ),
    Rule(
        "stale_accepted",
        "a settle was accepted, but history has the completion of another claim",
        """
        select t.task_id || ' by ' || t.token from noted.told as t
        join noted.claimed as c on c.token = t.token and c.task_id = t.task_id
        where t.word = 'done' and t.state is not null
          and exists (select from noted.attempt as a where a.task_id = t.task_id and a.outcome = 'done')
          and not exists (select from noted.attempt as a
                          where a.task_id = t.task_id and a.claimed_at = c.claimed_at and a.outcome = 'done')
        """,
    ),
    Rule(
        "stale_accepted",
        "a completion was written, but the holder of the lease was refused every time it asked",
        """
        select a.task_id || ' by ' || a.token from noted.attempt as a
        join noted.asked as k on k.token = a.token and k.task_id = a.task_id and k.word = 'done'
        where a.outcome = 'done' and k.invoked > 0 and k.refused = k.invoked
        """,
    ),
    Rule(
        "stale_accepted",
        "two attempts of a task overlap: it was claimed while it was held",
        # A claim reads the clock before it reads the agenda: on a busy machine that is a moment earlier.
        """
        select s.task_id || ' claimed at ' || s.claimed_at from (
            select a.task_id, a.claimed_at,
                   max(a.finished_at) over (partition by a.task_id order by a.claimed_at, a.finished_at
                                            rows between unbounded preceding and 1 preceding) as before
            from noted.attempt as a
        ) as s
        where s.claimed_at < s.before - interval '1 second'
          and not exists (select from noted.outage as o where o.since < s.before and o.until > s.claimed_at)
        """,
    ),
    Rule(
        "completed_twice",
        "an iteration has two completions",
        """
        select a.task_id || ' iteration ' || a.iteration from noted.attempt as a where a.outcome in ('done', 'again')
        group by a.task_id, a.iteration having count(*) > 1
        """,
    ),
    Rule(
        "completed_twice",
        "a task that was pushed once was completed more than once",
        """
        select p.kind || ' ' || p.key from noted.pushed as p
        join noted.attempt as a on a.key = p.key and a.outcome = 'done'
        group by p.kind, p.key having count(*) > 1
        """,
    ),
    Rule(
        "inexact",
        "a transactional effect is not there as often as its task was completed",
        """
        select coalesce(e.task, a.task_id)::text
        from (select x.task, count(*) as rows from exact as x group by x.task) as e
        full join (select a.task_id, count(*) as rows from noted.attempt as a
                   where a.kind = 'exact' and a.outcome = 'done' group by a.task_id) as a on a.task_id = e.task
        where e.rows is distinct from a.rows
        """,
    ),
    Rule(
        "unexpected",
        "a completion that no noted claim, or no settle, asked for",
        """
        select a.task_id::text from noted.attempt as a
        where a.outcome = 'done'
          and not exists (select from noted.asked as k
                          where k.token = a.token and k.task_id = a.task_id and k.word = 'done')
        """,
    ),
    Rule(
        "unexpected",
        "a task was claimed that was never pushed, or whose push failed",
        """
        select c.task_id || ' with key ' || c.key from noted.claimed as c
        left join noted.pushed as p on p.key = c.key
        where c.key is not null and (p.key is null or p.failed and not p.ok)
        """,
    ),
    Rule(
        "unexpected",
        "a version was claimed that was never pushed, or whose push failed",
        """
        select c.subject || ' version ' || c.version from noted.claimed as c
        left join noted.upserted as u on u.subject = c.subject and u.version = c.version
        where c.subject is not null and c.subject not like 'dead:%' and (u.version is null or u.failed and not u.ok)
        """,
    ),
    Rule(
        "unexpected",
        "an effect of a task that was never pushed",
        """
        select x.task::text from (select task, key from effect union select task, key from exact) as x
        where not exists (select from noted.pushed as p where p.key = x.key)
        """,
    ),
    Rule(
        "unexpected",
        "a bulk push whose end is not known was written in part",
        """
        select p.batch || ': ' || count(a.key) || ' of ' || p.count
        from noted.pushed as p
        left join (select distinct a.key from noted.attempt as a where a.outcome = 'done') as a on a.key = p.key
        where not p.ok and not p.failed and p.count > 1
          and p.key not in (select (t.payload->>'serial')::bigint from penstock.task as t where t.payload ? 'serial')
        group by p.batch, p.count having count(a.key) not in (0, count(*))
        """,
    ),
    Rule(
        "unexpected",
        "a settle succeeded and gave no answer for a task that it was asked to settle",
        """
        select t.task_id || ' by ' || t.token from noted.told as t where t.state is null
        """,
    ),
    Rule(
        "unexpected",
        "a task was reported cancelled, and was completed, or is not cancelled",
        """
        select c.task_id || ': ' || c.result from noted.cancelled as c
        where c.ok and c.task_id is not null
          and (exists (select from noted.attempt as a where a.task_id = c.task_id and a.outcome = 'done')
               or not exists (select from penstock.task as t where t.id = c.task_id and t.ended = 'cancelled'))
        """,
    ),
    Rule(
        "unexpected",
        "attempts do not count failures and lone crashes",
        """
        select s.task_id || ': attempt ' || s.attempt || coalesce(' after ' || s.before || ' ' || s.outcome_before, '')
        from (
            select a.task_id, a.attempt, lag(a.attempt) over w as before, lag(a.outcome) over w as outcome_before,
                   lag(a.alone) over w as alone_before, lag(a.token is not null) over w as noted_before
            from noted.attempt as a where a.subject is null
            window w as (partition by a.task_id order by a.claimed_at)
        ) as s
        where case
            when s.before is null then s.attempt <> 1
            when s.outcome_before = 'failed' then s.attempt <> s.before + 1
            when s.outcome_before = 'released' then s.attempt <> s.before
            when s.outcome_before = 'expired' and s.noted_before then s.attempt <> s.before + s.alone_before::int
            else s.attempt not between s.before and s.before + 1 end
        """,
    ),
    Rule(
        "stuck",
        "a task waits or is leased, though there is no more harm",
        """
        select t.kind || ' ' || t.id from penstock.task as t where t.ended is null
        union
        select 'agenda ' || a.task_id from penstock.agenda as a
        union
        select 'lease ' || l.token from penstock.lease as l where bit_count(l.open) > 0
        """,
    ),
)


@dataclass(frozen=True)
class Verdict:
    """The number of violations of each promise. If all are zero, nothing was found."""

    lost: int = 0
    unexpected: int = 0
    stale_accepted: int = 0
    completed_twice: int = 0
    inexact: int = 0
    unfollowed: int = 0
    stuck: int = 0
    drift: int = 0
    deadlocks: int = 0
    findings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def counts(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name != "findings"}

    @property
    def ok(self) -> bool:
        return not any(self.counts.values())

    def __str__(self) -> str:
        head = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.counts.items())
        return "\n  ".join([head, *self.findings])


def load_notes(sql: psycopg.Connection, history: Path, excused: Sequence[tuple[float, float]] = ()) -> None:
    """Load the notes into tables of the schema `noted`. The connection must be in autocommit."""
    sql.execute(LOAD)
    with sql.cursor() as cursor:
        for since, until in excused:
            cursor.execute("insert into noted.excused values (to_timestamp(%s), to_timestamp(%s))", (since, until))
        with cursor.copy("copy noted.note (facts) from stdin") as copy:
            for note in read_notes(history):
                copy.write_row([note.decode()])
    sql.execute(DERIVE)


def check(
    dsn: str,
    history: Path,
    *,
    deadlocks: int = 0,
    excused: Sequence[tuple[float, float]] = (),
    others: Sequence[str] = (),
) -> Verdict:
    """Load the notes, run every rule, and verify the counters. `others` are violations that were seen elsewhere."""
    counts = {"unexpected": len(others), "deadlocks": deadlocks}
    findings = [*others]
    with Penstock(dsn) as app:
        found = app.verify().findings
    if found:
        counts["drift"] = len(found)
        findings += [f"drift: {one}" for one in found[:SHOWN]]
    with psycopg.connect(dsn, autocommit=True) as sql:
        load_notes(sql, history, excused)
        for rule in RULES:
            rows = sql.execute(rule.query).fetchall()
            counts[rule.verdict] = counts.get(rule.verdict, 0) + len(rows)
            if rows:
                shown = ", ".join(str(one) for (one,) in rows[:SHOWN])
                findings.append(f"{rule.verdict}: {rule.said} ({len(rows)}): {shown}")
    return Verdict(**counts, findings=tuple(findings))


# --- recovery times ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recovery:
    """The seconds until work went on after each harm of one kind, and the promised maximum."""

    name: str
    bar: float
    seconds: tuple[float, ...]

    @property
    def worst(self) -> float | None:
        return max(self.seconds, default=None)

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def kept(self) -> bool:
        """Whether the promise was kept. A promise that was not measured was not kept."""
        return self.worst is not None and self.worst <= self.bar


# From the death of a process until its tasks could be claimed again, less the lease. Cases in which PostgreSQL or the
# network was harmed meanwhile are left out.
AFTER_KILL: LiteralString = """
    with killed as (
        select to_timestamp((n.facts->>'at')::float8) as at, v.pid::int as pid
        from noted.note as n cross join lateral jsonb_array_elements_text(n.facts->'pids') as v(pid)
        where n.facts->>'op' = 'kill'
    )
    select extract(epoch from max(a.finished_at) - k.at)::float8 - %(lease)s::float8
    from killed as k
    join noted.attempt as a on a.pid = k.pid and a.claimed_at < k.at and a.finished_at > k.at
                           and a.outcome in ('expired', 'released')
    where not exists (select from noted.outage as o where o.since < a.finished_at and o.until > k.at)
    group by k.at, k.pid
"""

AFTER_BACK: LiteralString = """
    select extract(epoch from (select min(a.claimed_at) from noted.attempt as a
                               where a.claimed_at > b.at) - b.at)::float8
    from (select to_timestamp((n.facts->>'at')::float8) as at
          from noted.note as n where n.facts->>'op' = 'back' and n.facts->>'what' = %(what)s) as b
"""

AFTER_BACK_PUSH: LiteralString = """
    select extract(epoch from (select min(e.at) from noted.ended as e
                               where e.at > b.at and e.op in ('push', 'upsert') and e.phase = 'ok') - b.at)::float8
    from (select to_timestamp((n.facts->>'at')::float8) as at
          from noted.note as n where n.facts->>'op' = 'back' and n.facts->>'what' = %(what)s) as b
"""


def measure_recovery(dsn: str, lease: float) -> list[Recovery]:
    """Return how soon work went on, from the notes that `check` has loaded."""
    with psycopg.connect(dsn, autocommit=True) as sql:

        def ask(query: LiteralString, what: str = "") -> tuple[float, ...]:
            rows = sql.execute(query, {"lease": lease, "what": what}).fetchall()
            return tuple(round(float(seconds), 3) for (seconds,) in rows if seconds is not None)

        return [
            Recovery("a killed process, beyond the lease", 1.0, ask(AFTER_KILL)),
            Recovery("PostgreSQL accepts to first claim", 3.0, ask(AFTER_BACK, "restart")),
            Recovery("promoted to first claim", 3.0, ask(AFTER_BACK, "promotion")),
            Recovery("promoted to first push", 3.0, ask(AFTER_BACK_PUSH, "promotion")),
        ]
