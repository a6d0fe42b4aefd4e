"""The race against the peers, side by side in one run:
python bench/peers.py all|push|drain|latency|wal|snapshot|kill|frozen [--peers a,b] [--rounds N] [--tasks N]

Peers are installed by pip, npm and apt-get into bench/.peers; one that cannot be had is named and left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

import psycopg

from bench.race import measures, pages
from bench.race.contestants import CONTESTANTS, OURS, Peer
from bench.race.figures import Figures, Found, bars, judge
from bench.race.install import install, versions
from bench.race.lane import PeerFailed
from bench.support.harness import Bench, bench, report

TASKS, ROUNDS = 200_000, 3
PUSHES, RATE = 400, 50
LOGGED = 30_000  # tasks: their statements go to a log, which is read
SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "jit")


@dataclass(slots=True)
class Race:
    server: Bench
    peers: list[Peer]
    tasks: int
    rounds: int
    out: dict[str, str]  # who does not run, and why
    found: Found = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found = {peer.name: Figures() for peer in self.peers}

    # --- what can be asked for

    def push(self) -> None:
        self.laps(0)

    def drain(self) -> None:
        self.laps(1)
        self.laps(2)

    def latency(self) -> None:
        for peer in self.turns("latency", lambda peer: not peer.limit, rounds=min(2, self.rounds)):
            self.keep(peer, lambda one, peer: one.add_latency(measures.latency(self.server, peer, PUSHES, RATE)))

    def wal(self) -> None:
        """How much, unless a drain has said it; and in what portions. Once: counts do not depend on the weather."""
        if not any(one.wal for one in self.found.values()):
            self.laps(2, rounds=1)
        for peer in self.turns("batches", lambda peer: peer.postgres, rounds=1):
            self.keep(peer, lambda one, peer: one.add_batches(self.portions(peer)))

    def snapshot(self) -> None:
        for peer in self.turns("held snapshot", lambda peer: peer.postgres, rounds=min(2, self.rounds)):
            self.keep(peer, lambda one, peer: one.add_held(self.held(peer)))

    def kill(self) -> None:
        for peer in self.turns("kill -9", lambda peer: peer.returns is not None, rounds=1):
            self.keep(peer, lambda one, peer: one.killed.append(measures.kill(self.server, peer)))

    def frozen(self) -> None:
        for peer in self.turns("frozen", lambda peer: not peer.limit and not peer.variant, rounds=1):
            self.keep(peer, lambda one, peer: one.late.append(measures.frozen(self.server, peer)))

    # --- how

    def laps(self, processes: int, rounds: int | None = None) -> None:
        for peer in self.turns(f"push, drain with {processes}", lambda _: True, rounds):
            self.keep(peer, partial(self.lap, processes))

    def lap(self, processes: int, one: Figures, peer: Peer) -> None:
        lap = measures.lap(self.server, peer, self.share(peer), processes)
        one.add_lap(lap, processes, postgres=peer.postgres)

    def portions(self, peer: Peer) -> measures.Batches:
        return measures.batches(self.server, peer, min(self.share(peer), LOGGED))

    def held(self, peer: Peer) -> measures.Held:
        return measures.snapshot(self.server, peer, 3 * self.share(peer) // 2)

    def share(self, peer: Peer) -> int:
        return max(600, self.tasks // peer.share)

    def turns(self, what: str, fits: Callable[[Peer], bool], rounds: int | None = None) -> Iterator[Peer]:
        """Each once a round, the order turning, so that a machine's mood falls on all alike."""
        chosen = [peer for peer in self.peers if fits(peer)]
        for n in range(self.rounds if rounds is None else rounds):
            turn = n % max(1, len(chosen))
            for peer in chosen[turn:] + chosen[:turn]:
                if peer.name not in self.out:
                    print(f"  {what}, round {n + 1}: {peer.name}", flush=True)
                    yield peer

    def keep(self, peer: Peer, run: Callable[[Figures, Peer], None]) -> None:
        """One that fails is named, and does not run any more; the others do."""
        try:
            run(self.found[peer.name], peer)
        except (PeerFailed, psycopg.Error, OSError) as error:
            if peer.name == OURS:
                raise
            self.out[peer.name] = f"it failed here: {error}"
            print(f"  {peer.name} is out: {error}", flush=True)


WHAT: dict[str, Callable[[Race], None]] = {
    "push": Race.push,
    "drain": Race.drain,
    "latency": Race.latency,
    "wal": Race.wal,
    "snapshot": Race.snapshot,
    "kill": Race.kill,
    "frozen": Race.frozen,
}


def chosen(names: str) -> list[Peer]:
    """By the beginnings of their names. Penstock always runs: the figures are ratios to it."""
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if not any(peer.name.startswith(name) for peer in CONTESTANTS):
            known = ", ".join(peer.name for peer in CONTESTANTS)
            raise SystemExit(f"--peers: there is no {name!r}; there are: {known}")
    return [peer for peer in CONTESTANTS if peer.name == OURS or not asked or peer.name.startswith(tuple(asked))]


def run(asked: argparse.Namespace) -> bool:
    peers = chosen(asked.peers)
    out = install(peers)
    for name, why in out.items():
        print(f"left out: {name}: {why}", flush=True)
    peers = [peer for peer in peers if peer.name not in out]
    with bench() as server:
        race = Race(server, peers, asked.tasks, asked.rounds, out)
        # A drain pushes first: with both asked for, one run gives both figures.
        for name in [one for one in WHAT if one != "push"] if asked.what == "all" else [asked.what]:
            WHAT[name](race)
            record(asked, race, settings(server))  # what is known is not lost with what comes after it
        postgres = settings(server)
    for head, rows in pages.tables(race.found, peers):
        pages.show(head, rows)
    said = bars(race.found, peers)
    if asked.write is not None:
        told = {**versions(peers), **words(postgres, race)}
        pages.write(asked.write, race.found, peers, told, race.out, said)
    return judge(said)


def record(asked: argparse.Namespace, race: Race, postgres: dict[str, str]) -> None:
    numbers = versions(race.peers)
    facts = {"what": asked.what, "tasks": asked.tasks, "rounds": asked.rounds, "postgresql": postgres}
    how = {peer.name: {"version": numbers.get(peer.name), "settings": peer.settings} for peer in race.peers}
    figures = {name: one.to_json() for name, one in race.found.items()}
    judgement = [{"bar": label, "value": value, "at": bar} for label, value, bar, _ in bars(race.found, race.peers)]
    report("peers", {**facts, "peers": how, "left_out": race.out, "figures": figures, "bars": judgement})


def settings(server: Bench) -> dict[str, str]:
    with server.sql(server.server.dsn) as sql:
        rows = [(name, sql.execute(f"show {name}").fetchone()) for name in ("server_version", *SETTINGS)]
    return {name: str(row[0]) for name, row in rows if row is not None}


def words(postgres: dict[str, str], race: Race) -> dict[str, str]:
    slow = ", ".join(f"{peer.name} {race.share(peer):,}" for peer in race.peers if peer.share > 1)
    less = f" (slow systems get fewer, the figures being rates: {slow})" if slow else ""
    return {
        "machine": f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        "postgres": f"PostgreSQL {postgres['server_version']}, shared_buffers {postgres['shared_buffers']}",
        "sizes": f"{race.rounds} rounds of {race.tasks:,} tasks{less}.",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*WHAT, "all"], nargs="?", default="all")
    parser.add_argument("--peers", default="", help="beginnings of names, with commas; default: all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--write", type=Path, help="a directory for race.md and race.svg: docs")
    asked = parser.parse_args()
    if asked.rounds < 1 or asked.tasks < 600:
        parser.error("--rounds must be at least 1, --tasks at least 600")
    sys.exit(0 if run(asked) else 1)


if __name__ == "__main__":
    main()
