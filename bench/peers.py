"""The race against other queues, side by side in one run:
python bench/peers.py all|push|drain|latency|wal|snapshot|kill|frozen|sweep [--peers a,b] [--rounds N] [--tasks N]

Peers are installed by pip, npm and apt-get into bench/.peers. One that cannot be installed is named and left out.

sweep runs the declared variants of each peer's settings (bench/race/variants.py) in turn, and records the median of
each in bench/race/sweep.json: push, drain_1 (one process), drain_2 (two) and latency, as --measures says. A variant
that fails is named, and the sweep goes on. The race runs each peer with the best recorded variant of each measure.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

import psycopg

from bench.race import measures, pages, sweep
from bench.race.contestants import CONTESTANTS, OURS, Peer
from bench.race.figures import Figures, Found, judge, show
from bench.race.install import install, versions
from bench.race.lane import PeerFailed
from bench.race.sweep import MEASURES, SWEPT, Measure
from bench.race.variants import Chosen
from bench.support.harness import Bench, bench, report

TASKS, ROUNDS = 200_000, 3
PUSHES, RATE = 400, 50
LOGGED = 30_000  # tasks whose statements are logged and counted
SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "jit")


@dataclass(slots=True)
class Race:
    server: Bench
    peers: list[Peer]
    tasks: int
    rounds: int
    out: dict[str, str]  # the peers that do not run, and why
    recorded: sweep.Peers
    found: Found = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found = {peer.name: Figures() for peer in self.peers}

    # --- measurements

    def push(self) -> None:
        self.laps(0)

    def drain(self) -> None:
        self.laps(1)
        self.laps(2)

    def latency(self) -> None:
        for peer in self.turns("latency", lambda peer: not peer.limit, rounds=min(2, self.rounds)):
            self.keep(peer, lambda one, peer: one.add_latency(self.waits(peer)))

    def wal(self) -> None:
        """Bytes of WAL, unless a drain has measured them, and the sizes of batches. One round, because counts do not
        vary."""
        if not any(one.wal for one in self.found.values()):
            self.laps(2, rounds=1)
        for peer in self.turns("batches", lambda peer: peer.postgres, rounds=1):
            self.keep(peer, lambda one, peer: one.add_batches(self.portions(peer)))

    def snapshot(self) -> None:
        for peer in self.turns("held snapshot", lambda peer: peer.postgres, rounds=min(2, self.rounds)):
            self.keep(peer, lambda one, peer: one.add_held(self.held(peer)))

    def kill(self) -> None:
        for peer in self.turns("kill -9", lambda peer: peer.returns is not None, rounds=1):
            self.keep(peer, lambda one, peer: one.killed.append(measures.kill(self.server, peer, first(peer))))

    def frozen(self) -> None:
        for peer in self.turns("frozen", lambda peer: not peer.limit and not peer.variant, rounds=1):
            self.keep(peer, lambda one, peer: one.late.append(measures.frozen(self.server, peer, first(peer))))

    # --- rounds

    def laps(self, processes: int, rounds: int | None = None) -> None:
        for peer in self.turns(f"push, drain with {processes}", lambda _: True, rounds):
            self.keep(peer, partial(self.lap, processes))

    def lap(self, processes: int, one: Figures, peer: Peer) -> None:
        chosen = sweep.choose(self.recorded, peer.name, "drain_1" if processes == 1 else "drain_2")
        lap = measures.lap(self.server, peer, chosen, self.share(peer), processes)
        one.add_lap(lap, processes, postgres=peer.postgres)

    def portions(self, peer: Peer) -> measures.Batches:
        chosen = sweep.choose(self.recorded, peer.name, "drain_2")
        return measures.batches(self.server, peer, chosen, min(self.share(peer), LOGGED))

    def held(self, peer: Peer) -> measures.Held:
        chosen = sweep.choose(self.recorded, peer.name, "drain_2")
        tasks = 5 * self.tasks if peer.ours else 3 * self.share(peer) // 2  # our bar is for a million tasks
        return measures.snapshot(self.server, peer, chosen, tasks)

    def waits(self, peer: Peer) -> dict[str, float]:
        return measures.latency(self.server, peer, sweep.choose(self.recorded, peer.name, "latency"), PUSHES, RATE)

    def share(self, peer: Peer) -> int:
        return share(peer, self.tasks)

    def turns(self, what: str, fits: Callable[[Peer], bool], rounds: int | None = None) -> Iterator[Peer]:
        """Yields each peer once a round, in a rotating order, so that changes of the machine's speed affect all."""
        chosen = [peer for peer in self.peers if fits(peer)]
        for n in range(self.rounds if rounds is None else rounds):
            turn = n % max(1, len(chosen))
            for peer in chosen[turn:] + chosen[:turn]:
                if peer.name not in self.out:
                    print(f"  {what}, round {n + 1}: {peer.name}", flush=True)
                    yield peer

    def keep(self, peer: Peer, run: Callable[[Figures, Peer], None]) -> None:
        """Runs one peer. A peer that fails is named and does not run again."""
        try:
            run(self.found[peer.name], peer)
        except (PeerFailed, psycopg.Error, OSError) as error:
            if peer.name == OURS:
                raise
            self.out[peer.name] = f"it failed here: {error}"
            print(f"  {peer.name} is out: {error}", flush=True)


def share(peer: Peer, tasks: int) -> int:
    return max(600, tasks // peer.share)


def first(peer: Peer) -> Chosen:
    """Returns the variants that run before any sweep, because the fastest do not matter when a worker dies."""
    return sweep.choose({}, peer.name, "drain_2")


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
    """Returns the peers whose names begin so, and always Penstock, because the figures are ratios to it."""
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if not any(peer.name.startswith(name) for peer in CONTESTANTS):
            known = ", ".join(peer.name for peer in CONTESTANTS)
            raise SystemExit(f"--peers: there is no {name!r}; there are: {known}")
    return [peer for peer in CONTESTANTS if peer.name == OURS or not asked or peer.name.startswith(tuple(asked))]


def ready(names: str) -> tuple[list[Peer], dict[str, str]]:
    """Installs the chosen peers, and returns those that can run, and why others cannot."""
    peers = chosen(names)
    out = install(peers)
    for name, why in out.items():
        print(f"left out: {name}: {why}", flush=True)
    return [peer for peer in peers if peer.name not in out], out


def run_sweep(asked: argparse.Namespace) -> bool:
    peers = [peer for peer in ready(asked.peers)[0] if peer.other_tool]
    numbers = versions(peers)
    at = datetime.now(UTC).isoformat(timespec="seconds")

    def keep(trials: sweep.Trials) -> None:
        name = trials.peer.name
        facts = {"at": at, "version": numbers[name], "tasks": share(trials.peer, asked.tasks)}
        sweep.write(name, trials.measure, {**facts, "variants": trials.to_json()})

    with bench() as server:
        sweep.sweep(server, peers, asked.measures, asked.rounds, lambda peer: share(peer, asked.tasks), keep)
    recorded = sweep.read()
    for peer in peers:
        for measure in asked.measures:
            print(f"{peer.name}, {measure}: {sweep.find_best(recorded, peer.name, measure).name or 'one variant'}")
    return True


def run(asked: argparse.Namespace) -> bool:
    peers, out = ready(asked.peers)
    recorded = sweep.read()
    with bench() as server:
        race = Race(server, peers, asked.tasks, asked.rounds, out, recorded)
        # A drain pushes first, so if both are requested, one run gives both figures.
        for name in [one for one in WHAT if one != "push"] if asked.what == "all" else [asked.what]:
            WHAT[name](race)
            record(asked, race, settings(server))  # so that figures are kept if a later measurement fails
        postgres = settings(server)
    for head, rows in pages.tables(race.found, peers):
        pages.show(head, rows)
    said = judge(race.found, peers)
    if asked.write is not None:
        told = {**versions(peers), **words(postgres, race)}
        used = {peer.name: sweep.describe(recorded, peer) for peer in peers}
        fair = is_fair(asked, race)
        pages.write(asked.write, race.found, peers, pages.Texts(told, used, race.out, fair), said)
    return show(said)


def is_fair(asked: argparse.Namespace, race: Race) -> bool:
    """Returns whether a run may replace the correction in docs/race.md: it is whole, all peers that run on this Python
    took part, and a sweep has chosen the settings of each."""
    others = [
        peer for peer in CONTESTANTS if peer.other_tool and not (peer.name in race.out and peer.home == "newer python")
    ]
    whole = asked.what == "all" and asked.tasks >= TASKS and asked.rounds >= ROUNDS
    return whole and all(
        peer in race.peers and peer.name not in race.out and sweep.is_swept(race.recorded, peer) for peer in others
    )


def record(asked: argparse.Namespace, race: Race, postgres: dict[str, str]) -> None:
    numbers = versions(race.peers)
    facts = {"what": asked.what, "tasks": asked.tasks, "rounds": asked.rounds, "postgresql": postgres}
    how = {
        peer.name: {"version": numbers.get(peer.name), "settings": sweep.describe(race.recorded, peer)}
        for peer in race.peers
    }
    figures = {name: one.to_json() for name, one in race.found.items()}
    said = judge(race.found, race.peers)
    judgement = [{"bar": one.label, "value": one.value, "at": one.bar.bar, "kept": one.kept} for one in said]
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


def measures_of(names: str) -> list[Measure]:
    found = [measure for measure in MEASURES if measure in names.split(",")]
    if len(found) != len(names.split(",")):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(MEASURES)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*WHAT, "all", "sweep"], nargs="?", default="all")
    parser.add_argument("--peers", default="", help="beginnings of names, with commas; default: all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument(
        "--measures",
        type=measures_of,
        default=[*SWEPT],
        help=f"of a sweep: {', '.join(MEASURES)}; default: {','.join(SWEPT)}",
    )
    parser.add_argument("--write", type=Path, help="a directory for race.md and race.svg: docs")
    asked = parser.parse_args()
    if asked.rounds < 1 or asked.tasks < 600:
        parser.error("--rounds must be at least 1, --tasks at least 600")
    sys.exit(0 if (run_sweep if asked.what == "sweep" else run)(asked) else 1)


if __name__ == "__main__":
    main()
