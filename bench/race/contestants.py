"""The peers: each with the script that runs it, the settings that make it fast, and the query for its open tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Home = Literal["ours", "python", "newer python", "node"]


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    script: str  # in bench/peers
    home: Home  # the environment that runs it
    settings: str  # those that no variant changes
    package: str = ""
    module: str = ""  # if it is not the package's name
    open: str = ""  # the number of tasks without a recorded end: SQL, or commands whose answers are added
    redis: bool = False
    variant: str = ""
    forks: bool = False  # one command starts all processes; otherwise there is one for each
    share: int = 1  # slow peers get a part of the tasks; the figures are rates
    returns: float | None = None  # about when a dead worker's task runs again by itself, at defaults
    returns_said: str = ""  # if the race does not wait for that
    rescue: bool = False  # its script can trigger what would take hours or needs an operator
    limit: bool = False  # not a queue, but the limit of one
    better: str = ""  # what it has that Penstock lacks

    @property
    def postgres(self) -> bool:
        return not self.redis

    @property
    def ours(self) -> bool:
        return self.script == "on_penstock.py"

    @property
    def other_tool(self) -> bool:
        return not self.ours and not self.limit

    @property
    def in_python(self) -> bool:
        return self.home in ("python", "newer python")


OURS = "penstock"
PENSTOCK = "push_many; `penstock work`, lease 30 s"
LEFT_IN_PENSTOCK = "select count(*) from penstock.task"
# Tasks that were never claimed, and claims that are not closed. Its own view of jobs takes half a minute for 10,000.
LEFT_IN_AWA = """
    select coalesce(max(s.last_value) filter (where s.sequencename = 'job_id_seq'), 0)
         - coalesce(max(s.last_value) filter (where s.sequencename = 'lease_claim_receipt_id_seq'), 0)
         + (select count(*) from awa.lease_claims)
         - (select coalesce(sum(b.closed_count), 0) from awa.lease_claim_closure_batches as b)
    from pg_sequences as s where s.schemaname = 'awa'"""

CONTESTANTS = (
    Peer(
        OURS,
        "on_penstock.py",
        "ours",
        f"{PENSTOCK}, async handler, all defaults",
        package="penstock",
        open=LEFT_IN_PENSTOCK,
        forks=True,
        returns=30.0,
    ),
    Peer(
        "penstock, sync handler",
        "on_penstock.py",
        "ours",
        f"{PENSTOCK}, sync handler in threads, all defaults",
        package="penstock",
        open=LEFT_IN_PENSTOCK,
        variant="sync",
        forks=True,
    ),
    Peer(
        "graphile-worker",
        "on_graphile_worker.mjs",
        "node",
        "completions batched without delay, unix socket",
        package="graphile-worker",
        open="select count(*) from graphile_worker._private_jobs",
        returns_said="4 h, its fixed lock; sooner if you call forceUnlockWorkers",
        rescue=True,
        better="native support for JavaScript applications; serial named queues",
    ),
    Peer(
        "pg-boss",
        "on_pg_boss.mjs",
        "node",
        "batches fetched while full, one handler call a batch, LISTEN, unix socket",
        package="pg-boss",
        open="select count(*) from pgboss.job where state < 'completed'",
        returns_said="15 min (expireInSeconds) and up to a minute; sooner with heartbeatSeconds",
        better="flows of dependent jobs, per-group concurrency, publish and subscribe",
    ),
    Peer(
        "pgqueuer",
        "on_pgqueuer.py",
        "python",
        "asyncpg, uvloop, tables logged, its own autovacuum settings",
        package="pgqueuer",
        open="select count(*) from pgqueuer",
        returns=60.0,
        better="concurrency limits for each entry point across all workers; tracing",
    ),
    Peer(
        "procrastinate",
        "on_procrastinate.py",
        "python",
        "finished jobs deleted; it fetches one job a call",
        package="procrastinate",
        open="select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
        share=20,
        returns_said="never by itself; its documentation shows a periodic task that you can add",
        rescue=True,
        better="locks that make jobs run one after the other; a Django application with an admin page",
    ),
    Peer(
        "chancy",
        "on_chancy.py",
        "python",
        "async jobs, eager polling, outcomes sent every 0.05 s",
        package="chancy",
        open="select count(*) from chancy_jobs where state in ('pending', 'running', 'retrying')",
        share=5,
        returns_said="about 2 min (heartbeat 90 s) with its Recovery plugin",
        better="rate limits, workflows of dependent jobs, a dashboard",
    ),
    Peer(
        "awa",
        "on_awa.py",
        "python",
        "COPY, polled every 50 ms; its core is Rust",
        package="awa-pg",
        module="awa",
        open=LEFT_IN_AWA,
        share=5,
        returns=100.0,
        better="workers in Rust on the same queue; handlers that wait for an external call; a web page",
    ),
    Peer(
        "oban",
        "on_oban.py",
        "newer python",
        "the free version for Python, asyncio and uvloop; it inserts one job a statement",
        package="oban",
        open="select count(*) from oban_jobs where state in ('available', 'scheduled', 'executing', 'retryable')",
        share=5,
        returns_said="5 to 6 min (rescue_after and the interval of its lifeline)",
        better="one schema for Elixir and Python, a dashboard; rate limits and workflows in the paid version",
    ),
    Peer(
        "absurd",
        "on_absurd.py",
        "python",
        "spawn in transactions, polled every 10 ms; it claims in batches and completes task by task",
        package="absurd-sdk",
        module="absurd_sdk",
        open="select count(*) from absurd.t_race where state in ('pending', 'running', 'sleeping')",
        share=20,
        returns=120.0,
        better="workflows whose steps are checkpointed, sleeps and events within a task; SDKs for other languages",
    ),
    Peer(
        "dbos",
        "on_dbos.py",
        "python",
        "enqueue_in_transaction, polled every 50 ms; it completes workflow by workflow",
        package="dbos",
        open="select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'DELAYED', 'PENDING')",
        share=40,
        returns_said="when its executor starts again, or by its Conductor, a service",
        rescue=True,
        better="workflows whose steps are checkpointed, messages and events between them; SDKs for other languages",
    ),
    Peer(
        "celery + redis",
        "on_celery.py",
        "python",
        "solo pool, late acknowledgement, no results; Redis appends to its log, fsync every second",
        package="celery",
        open="LLEN celery, HLEN unacked",
        redis=True,
        share=20,
        returns_said="1 h (visibility_timeout) with late acknowledgement; never at defaults, which acknowledge first",
        better="canvases (chains, groups, chords), many brokers; and Redis answers sooner than a commit to disk",
    ),
    Peer(
        "dramatiq + redis",
        "on_dramatiq.py",
        "python",
        "its command line, only the Retries middleware, no bulk push; Redis appends to its log, fsync every second",
        package="dramatiq",
        open="HLEN dramatiq:default.msgs",
        redis=True,
        forks=True,
        share=5,
        returns_said="1 min (heartbeat_timeout), and then until one in a thousand of its calls checks for dead workers",
        better="rate limits; less setup than Celery",
    ),
    Peer(
        "limit: COPY, bare loop",
        "on_bare.py",
        "ours",
        "COPY into one table; claim of 500 by UPDATE, DELETE and a history row: no retries, no fence, no counters",
        open="select count(*) from bare",
        limit=True,
    ),
)
