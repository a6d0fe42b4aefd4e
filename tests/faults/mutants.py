"""The mutants that the checker must find: the product's SQL with one defect each.

A mutant replaces text in the definition of a function, as PostgreSQL has it, or runs a statement. The text must be
there exactly once: if the function has changed, the mutant fails and has to be written anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg


@dataclass(frozen=True)
class Mutant:
    """One defect. `caught_by` are verdicts of which at least one must not be zero.

    `blows` is the harm that brings it out. `mix` and `kinds` say what producers do, if the default does not suffice.
    """

    name: str
    caught_by: tuple[str, ...]
    function: str = ""
    changes: tuple[tuple[str, str], ...] = ()
    statement: str = ""
    blows: tuple[tuple[str, int], ...] = ()
    mix: tuple[tuple[str, float], ...] = ()
    kinds: tuple[tuple[str, float], ...] = ()
    longest: float = 0.1  # seconds that a handler sleeps
    quick: bool = False

    def apply(self, sql: psycopg.Connection) -> None:
        """Break the schema in this database."""
        if self.statement:
            sql.execute(self.statement.encode())
            return
        row = sql.execute("select pg_get_functiondef(%s::regproc)", (f"penstock.{self.function}",)).fetchone()
        definition = str(row[0]) if row else ""
        for old, new in self.changes:
            found = definition.count(old)
            assert found == 1, f"{self.name}: penstock.{self.function} has {old!r} {found} times"
            definition = definition.replace(old, new)
        sql.execute(definition.encode())


UPSERTS = (("upsert", 8.0), ("upsert_many", 1.0), ("single", 1.0))
CANCELS = (("cancelled", 5.0), ("single", 2.0), ("bulk", 0.2))
BULK = (("bulk", 5.0), ("single", 3.0))
SLOW_KINDS = (("plain", 1.0), ("exact", 1.0))

MUTANTS = (
    Mutant(
        "the fence is gone: a settle takes whatever lease has the task now",
        ("stale_accepted", "completed_twice", "unexpected", "lost"),
        function="settle",
        changes=(
            (
                "select * into v_lease from penstock.lease as l where l.token = p_token for update;",
                """
            select * into v_lease from penstock.lease as l where l.token = p_token or p_ids && l.ids
            order by (l.token = p_token) desc limit 1 for update;""",
            ),
        ),
        blows=(("zombie", 8),),
        longest=1.5,
        mix=BULK,
        kinds=SLOW_KINDS,
    ),
    Mutant(
        "the fence of workers is gone: a settle that does not wait takes whatever lease has the task now",
        ("stale_accepted", "completed_twice", "unexpected", "lost"),
        function="settle",
        changes=(
            (
                "select * into v_lease from penstock.lease as l where l.token = p_token for update skip locked;",
                """
            select * into v_lease from penstock.lease as l where l.token = p_token or p_ids && l.ids
            order by (l.token = p_token) desc limit 1 for update skip locked;""",
            ),
        ),
        blows=(("zombie", 8),),
        longest=1.5,
        mix=BULK,
        kinds=SLOW_KINDS,
        quick=True,
    ),
    Mutant(
        "the fence is gone: a settle without a lease says that it is done",
        ("lost", "stale_accepted", "unexpected"),
        function="settle",
        changes=(
            (
                "return query select s.id, 'refused' from unnest(p_ids) as s(id);",
                "return query select s.id, 'done' from unnest(p_ids) as s(id);",
            ),
        ),
        blows=(("zombie", 8),),
        mix=BULK,
        kinds=SLOW_KINDS,
    ),
    Mutant(
        "an upsert of a task that runs is reported renewed, and it does not run again",
        ("lost",),
        function="_refresh",
        changes=(("set renew = coalesce(g.due, v_now)", "set renew = null"),),
        mix=UPSERTS,
    ),
    Mutant(
        "an upsert is reported updated, and nothing was written",
        ("lost",),
        function="push_many",
        changes=(("set payload = excluded.payload,", "set payload = t.payload,"),),
        mix=UPSERTS,
    ),
    Mutant(
        "a settle forgets that the task was renewed",
        ("lost",),
        function="_conclude",
        changes=(
            ("when k.renew is not null then 'waits'", "when k.renew is not null and k.outcome <> 'done' then 'waits'"),
        ),
        mix=UPSERTS,
    ),
    Mutant(
        "the agenda does not count what leaves it",
        ("drift",),
        statement="drop trigger count_delete on penstock.agenda",
        mix=BULK,
    ),
    Mutant(
        "leases are not counted",
        ("drift",),
        statement="drop trigger count_insert on penstock.lease",
        mix=BULK,
    ),
    Mutant(
        "a squeeze forgets the transactions that run, and what they count later",
        ("drift",),
        function="_squeeze",
        changes=(("where r.xid < v_watermark.xid order by r.xid);", "where false);"),),
        blows=(("lock", 3),),
    ),
    Mutant(
        "an expiry burns no attempt of a task that was alone",
        ("unexpected", "stuck", "lost"),
        function="_conclude",
        changes=(
            (
                "s.outcome = 'failed' or (s.outcome = 'expired' and (p_lease).alone) as burned,",
                "s.outcome = 'failed' as burned,",
            ),
        ),
        mix=(("poison", 1.0), ("single", 5.0)),
    ),
    Mutant(
        "an expiry pushes no follow-up for the task that dies",
        ("unfollowed",),
        function="_conclude",
        changes=(
            (
                "case when j.fate = 'dead' then j.on_dead",
                "case when j.fate = 'dead' and j.outcome <> 'expired' then j.on_dead",
            ),
        ),
        mix=(("poison", 1.0), ("single", 5.0)),
    ),
    Mutant(
        "a follow-up is pushed twice",
        ("unfollowed",),
        function="_conclude",
        changes=(
            (
                "perform penstock._push_follow_ups(v_follow_ups, v_ends);",
                """
            perform penstock._push_follow_ups(v_follow_ups || v_follow_ups, v_ends || array(
                select jsonb_set(e, '{end}', '0') from unnest(v_ends) as e));""",
            ),
        ),
        mix=(("poison", 1.0), ("single", 5.0)),
    ),
    Mutant(
        "an expiry drops the tasks of its lease",
        ("lost", "stuck", "drift"),
        function="_put_back",
        changes=(
            (
                "perform penstock._close_lease(v_lease, v_open);",
                """
            delete from penstock.agenda as a where a.task_id = any(v_open);
            perform penstock._close_lease(v_lease, v_open);""",
            ),
        ),
        blows=(("kill", 6),),
        mix=BULK,
        kinds=SLOW_KINDS,
    ),
    Mutant(
        "a claim leaves the agenda row: two workers get the task",
        ("completed_twice", "stale_accepted", "unexpected", "stuck", "drift"),
        function="claim",
        changes=(("delete from penstock.agenda as a where a.ctid = any(v_picks.places);", ""),),
        mix=BULK,
        kinds=SLOW_KINDS,
    ),
    Mutant(
        "a settle forgets history",
        ("lost", "drift"),
        function="_finish",
        changes=(
            ("from gone as g\n        join unnest(p_lease.ids", "from gone as g\n        join unnest('{}'::bigint[]"),
        ),
        mix=BULK,
    ),
    Mutant(
        "a cancel of a task that runs does not revoke it",
        ("unexpected", "drift", "stuck"),
        function="_revoke",
        changes=(("v_lease.open := set_bit(v_lease.open, v_n, 0);", ""),),
        mix=CANCELS,
    ),
    Mutant(
        "a cancel of a task that waits is reported, and it lives on",
        ("unexpected",),
        function="cancel",
        changes=(
            ("delete from penstock.agenda as a where a.task_id = any(v_waiting);", ""),
            ("where t.id = any(v_waiting || v_revoked);", "where t.id = any(v_revoked);"),
        ),
        mix=CANCELS,
    ),
    Mutant(
        "a release burns an attempt",
        ("unexpected",),
        function="_conclude",
        changes=(
            (
                "else least(d.attempts + d.burned::int, 32767) end,",
                "else least(d.attempts + (d.burned or d.outcome = 'release')::int, 32767) end,",
            ),
        ),
        blows=(("term", 8),),
        mix=BULK,
        kinds=SLOW_KINDS,
    ),
    Mutant(
        "the ledger forgets a bulk push whose COMMIT was not confirmed",
        ("completed_twice",),
        function="enter_part",
        changes=(("return v_known.report;", "return null;"),),
        blows=(("commits", 12),),
        mix=(("bulk", 1.0),),
    ),
)
