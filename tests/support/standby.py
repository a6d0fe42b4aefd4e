"""A primary and a streaming standby from the embedded binaries, for tests of failover.

    with replicated_pair(tmp_path, synchronous=True) as pair:
        with Penstock(pair.dsn) as app:             # both hosts, target_session_attrs=read-write
            ...
            pair.primary.kill()                     # or stop(), freeze()
            pair.promote()                          # returns when the new primary accepts writes
            pair.rejoin()                           # the old primary comes back as a standby of the new one

`pair.primary` and `pair.standby` swap in `promote()`, so that a test can fail over again and again.
An asynchronous promotion loses what was committed between `cut_off_standby()` and the death of the primary.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psycopg
from psycopg.conninfo import make_conninfo

from penstock.embedded import Server, layout, postmaster
from penstock.embedded.cluster import DATABASE, ROLE
from penstock.embedded.identity import Identity, candidates, choose

SETTINGS = {
    "shared_buffers": "64MB",
    "fsync": "off",  # processes are killed here, never the machine
    "wal_level": "replica",
    "wal_log_hints": "on",  # pg_rewind needs it where a cluster has no checksums
    "wal_keep_size": "512MB",  # so that a standby that was away finds the WAL that it missed
    "wal_retrieve_retry_interval": "200ms",
    "authentication_timeout": "10s",
}
STEP = 0.01  # seconds between two looks


@dataclass
class Node:
    """One of the two servers. It keeps its home, its port and its name in both roles."""

    name: str
    home: Path
    settings: dict[str, str]
    server: Server = field(init=False)
    frozen: list[int] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def dsn(self) -> str:
        """A DSN of this server alone, by TCP."""
        return make_conninfo(self.server.dsn_tcp, connect_timeout=5)

    def start(self) -> None:
        """Start the server, or start it again, with the port that it had."""
        self.server = Server.start(self.home, environ=os.environ, settings=self.settings)

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server in good order and wait until it has ended."""
        self.resume()
        self.server.stop(mode)

    def kill(self) -> None:
        """End all processes of the server with SIGKILL, frozen or not, as the death of its machine does."""
        found = self.frozen or self.processes()
        self.frozen = []
        for pid in found:
            send(pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in found), 10, f"the processes of the {self.name} end")
        postmaster.clear_stale(self.server.data, self.server.socket_dir)

    def freeze(self) -> None:
        """Stop all processes of the server with SIGSTOP: the kernel accepts connections, and nothing answers."""
        self.frozen = self.processes()
        for pid in self.frozen:
            send(pid, signal.SIGSTOP)
        # A process that the postmaster started meanwhile.
        for pid in self.processes():
            if pid not in self.frozen:
                self.frozen.append(pid)
                send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server continue."""
        for pid in reversed(self.frozen):
            send(pid, signal.SIGCONT)
        self.frozen = []

    def processes(self) -> list[int]:
        """The postmaster, first, and its children; empty when the server does not run."""
        pid = self.server.pid
        if postmaster.postmaster_program(pid, self.server.data) is None:
            return []  # the number may be another process's by now
        with suppress(OSError):
            return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split())]
        return [pid]

    def query(self, statement: str) -> list[tuple[object, ...]]:
        """Run one statement on a connection of its own and return its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def value(self, expression: str) -> object:
        """Return the value of one SQL expression."""
        return self.query(f"select {expression}")[0][0]

    def configure(self, **settings: str) -> None:
        """Change settings that need no restart, and wait until new sessions have them."""
        for name, value in settings.items():
            self.query(f"alter system set {name} = '{value}'")
        self.query("select pg_reload_conf()")
        for name, value in settings.items():
            wait_until(lambda n=name, v=value: self.value(f"current_setting('{n}')") == v, 10, f"{name} is {value}")  # type: ignore[misc]

    def accepts_writes(self) -> bool:
        """Return whether the server answers and accepts writes: it is no standby, and recovery has ended."""
        try:
            self.value("pg_current_xact_id()")
        except (psycopg.OperationalError, psycopg.errors.ObjectNotInPrerequisiteState):
            return False
        except psycopg.InternalError:  # "cannot assign TransactionIds during recovery"
            return False
        return True


@dataclass
class ReplicatedPair:
    """A primary and its standby. `nodes` keeps the order of the hosts in `dsn`; the roles swap in `promote()`."""

    nodes: tuple[Node, Node]
    primary: Node
    standby: Node

    @property
    def dsn(self) -> str:
        """Both hosts, as an application names them: libpq takes the one that accepts writes."""
        return self.make_dsn(self.nodes)

    def make_dsn(self, nodes: tuple[Node, ...], target_session_attrs: str = "read-write") -> str:
        """A DSN of these hosts in this order, by TCP."""
        return make_conninfo(
            host=",".join("127.0.0.1" for _ in nodes),
            port=",".join(str(node.port) for node in nodes),
            user=ROLE,
            dbname=DATABASE,
            passfile=str(self.nodes[0].home / "pgpass"),
            target_session_attrs=target_session_attrs,
        )

    def make_synchronous(self) -> None:
        """Commits on the primary wait for the standby from now on."""
        self.primary.configure(synchronous_standby_names=self.standby.name)
        self._wait_for_replication("sync_state = 'sync'")

    def make_asynchronous(self) -> None:
        """Commits on the primary no longer wait for the standby."""
        self.primary.configure(synchronous_standby_names="")

    def wait_for_replay(self, timeout: float = 30) -> None:
        """Wait until the standby has replayed all that the primary has committed, asynchronous commits too."""
        target = self.primary.value("pg_current_wal_insert_lsn()")
        self.primary.query("select pg_logical_emit_message(true, 'wait_for_replay', '')")  # flushes what came before
        replayed = f"pg_last_wal_replay_lsn() >= '{target}'::pg_lsn"
        wait_until(lambda: self.standby.value(replayed) is True, timeout, f"the standby replays up to {target}")

    def lag(self) -> int:
        """Bytes of WAL that the primary has written and the standby has not replayed."""
        written = self.primary.value("pg_current_wal_insert_lsn()")
        behind = self.standby.value(f"pg_wal_lsn_diff('{written}', pg_last_wal_replay_lsn())")
        return max(0, int(str(behind)))

    def cut_off_standby(self) -> None:
        """Stop streaming: what the primary commits from now on is lost when the standby is promoted.

        `pg_wal_replay_pause()` would not do: a promotion replays all WAL that the standby has received.
        """
        self.standby.configure(primary_conninfo="")
        streams = "exists (select from pg_stat_wal_receiver)"
        wait_until(lambda: self.standby.value(streams) is False, 10, "the standby's receiver ends")

    def reconnect_standby(self) -> None:
        """Stream again after `cut_off_standby()`, from where the standby stopped."""
        self.standby.query("alter system reset primary_conninfo")
        self.standby.query("select pg_reload_conf()")
        self._wait_for_replication("state = 'streaming'")

    def promote(self, timeout: float = 60) -> Node:
        """Promote the standby; return the new primary when it accepts writes. The old one is left as it is."""
        self.standby.query("select pg_promote(wait => false)")
        wait_until(self.standby.accepts_writes, timeout, "the promoted standby accepts writes")
        self.primary, self.standby = self.standby, self.primary
        return self.primary

    def rejoin(self) -> None:
        """Make the old primary a standby of the new one: rewound to where they parted, then started."""
        old, new = self.standby, self.primary
        old.kill()
        new.query("checkpoint")  # pg_rewind reads the new timeline from the control file
        source = make_conninfo(new.server.dsn_tcp, password=password_of(new))
        run(owner_of(old), old.server.binaries / "pg_rewind", "-D", str(old.server.data), "--source-server", source)
        self._start_standby(old, new)

    def _start_standby(self, node: Node, primary: Node) -> None:
        user, data = owner_of(node), layout.data_of(node.home)
        for name in ("standby.signal", "postgresql.auto.conf"):  # no settings of the other server
            layout.write(data / name, "")
            user.own(data / name)
        node.settings["primary_conninfo"] = make_conninfo(
            host="127.0.0.1",
            port=primary.port,
            user=ROLE,
            password=password_of(primary),
            application_name=node.name,
        )
        node.start()
        self._wait_for_replication("state = 'streaming'")

    def _wait_for_replication(self, condition: str) -> None:
        listed = (
            f"exists (select from pg_stat_replication where application_name = '{self.standby.name}' and {condition})"
        )
        wait_until(lambda: self.primary.value(listed) is True, 30, f"the standby is attached with {condition}")

    def close(self) -> None:
        """End both servers and remove their files."""
        for node in self.nodes:
            if (running := Server.running(node.home)) is not None:
                node.server = running
                node.kill()
            state = layout.load_state(node.home)
            for outside in ("place", "socket_dir"):
                if outside in state:
                    shutil.rmtree(state[outside], ignore_errors=True)
            shutil.rmtree(node.home, ignore_errors=True)


@contextmanager
def replicated_pair(
    home: Path, *, synchronous: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[ReplicatedPair]:
    """A running primary and a running standby below `home`; both are gone at the end."""
    chosen = {**SETTINGS, **(settings or {})}
    first, second = (Node(name, home / name, dict(chosen)) for name in ("alpha", "beta"))
    pair = ReplicatedPair((first, second), first, second)
    try:
        first.start()
        copy_cluster(first, second)
        pair._start_standby(second, first)
        if synchronous:
            pair.make_synchronous()
        yield pair
    finally:
        pair.close()


def copy_cluster(primary: Node, node: Node) -> None:
    """Make the cluster of `node` a base backup of the primary's."""
    user = owner_of(primary)
    layout.make_home(node.home, user)
    state = layout.load_state(node.home)
    data = layout.find_server_dir(node.home, state, user) / "data"
    layout.save_state(node.home, state)
    data.mkdir(0o700)
    user.own(data)
    source = make_conninfo(primary.server.dsn_tcp, password=password_of(primary))
    options = ("--wal-method=stream", "--checkpoint=fast", "--no-sync")
    run(user, primary.server.binaries / "pg_basebackup", "-D", str(data), "-d", source, *options)
    shutil.copy2(primary.home / "pgpass", node.home / "pgpass")


def owner_of(node: Node) -> Identity:
    """The user that runs the server of this node."""
    return choose(candidates(), layout.owner(node.home))


def password_of(node: Node) -> str:
    return (node.home / "pgpass").read_text("utf-8").strip().rpartition(":")[2]


def run(user: Identity, program: Path, *arguments: str) -> None:
    done = user.run("/bin/sh", "-c", '"$@" 2>&1', "sh", str(program), *arguments)
    if done.returncode:
        raise RuntimeError(f"{program.name} ended with {done.returncode}:\n{done.stdout}")


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def alive(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


def wait_until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Look again and again until the condition holds; fail with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout:g} s it is not yet so that {what}")
        time.sleep(STEP)
