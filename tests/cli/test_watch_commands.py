"""`penstock why`, `status --watch` and `top`, in pipes and in real terminals."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import psycopg
import pytest

from conftest import Clock
from decisions import as_reader, store_decision
from penstock import Outcome, Penstock, Queue
from penstock.cli.commands.top import View, draw_screen
from penstock.client import scaling
from penstock.model import Board, BoardWorker, QueueQuestion, QueueStatus, Scaled, StoredDecision
from penstock.scaler.standing import RecentBoards
from shell import COMMAND, each, environment, is_one_block, penstock

PATIENCE = 30.0  # seconds, for a loaded machine


@pytest.fixture
def promised(app: Penstock) -> Queue:
    return app.create_queue("work", sla="60s", lease="10s")


# --- why --------------------------------------------------------------------------------------------------------------


def test_why_tells_the_last_decision_and_what_changed(dsn: str, app: Penstock, promised: Queue, clock: Clock) -> None:
    first = clock.now()
    store_decision(app, workers=2, reason="2: calm", urgency="NORMAL", wanted=2)
    clock.advance(20)
    store_decision(app)
    now, then, shown = each(
        ("why", "work", "--json"),
        ("why", "work", "--at", (first + timedelta(seconds=5)).isoformat(), "--json"),
        ("why", "work"),
        dsn=dsn,
    )
    found = now.json
    assert (found["workers"], found["actual"], found["wanted"], found["urgency"]) == (3, 1, 3, "WARNING")
    assert (found["time_to_breach"], found["predicted_breach"]) == (10.0, 12.5)
    assert found["rules"] == {"deadlines": 3, "steady": 1.5}
    assert found["inputs"]["pending"] == 500
    assert found["changed"] == {"workers": [2, 3], "wanted": [2, 3], "urgency": ["NORMAL", "WARNING"]}
    assert found["scaler"] == {"holder": "a scaler", "alive": True, "target": 3}
    assert found["before"]["workers"] == 2
    assert (then.json["workers"], then.json["reason"], then.json["before"]) == (2, "2: calm", None)
    assert then.json["scaler"] is None
    lines = shown.out.splitlines()
    assert lines[0].startswith("3 workers for work, WARNING, decided ")
    assert lines[1] == "500 waiting, the oldest for 50 of 60 s; 3 keep every deadline"
    assert lines[2].startswith("1 worker at that moment; decided by deadlines; the oldest task is late in 10s")
    assert "at that pace a task is late in 12s" in lines[2] or "late in 13s" in lines[2]
    assert lines[3].startswith("policy deadline, epoch 1; a scaler scales it, and decided")
    assert lines[4] == "since the decision before, 20s earlier: target 2 → 3, wanted 2 → 3, urgency NORMAL → WARNING"
    assert ["deadlines", "3"] in [line.split() for line in lines]
    assert "\x1b" not in shown.out


def test_why_says_when_no_scaler_runs_any_more(dsn: str, app: Penstock, promised: Queue) -> None:
    store_decision(app)
    scaling.leave_scaling(app._database, "a scaler")
    assert "no scaler runs now: this is what the last one wanted" in penstock("why", "work", dsn=dsn).out


def test_why_without_a_scaler_says_what_one_would_do(dsn: str, app: Penstock, promised: Queue) -> None:
    promised.push_many([{}] * 500)
    app.create_queue("bare")
    shown, value, bare, missing, past, odd = each(
        ("why", "work"),
        ("why", "work", "--json"),
        ("why", "bare"),
        ("why", "wrok"),
        ("why", "work", "--at", "2020-01-01T00:00:00Z"),
        ("why", "work", "--at", "yesterday"),
        dsn=dsn,
    )
    assert shown.out.startswith("no scaler has ever run for work\none would ask now for ")
    assert "500 waiting" in shown.out
    assert value.json["decided"] is False
    assert value.json["would"]["workers"] >= 1
    for ran, said in ((bare, "no SLA"), (missing, "Did you mean 'work'?"), (past, "nothing was decided by 2020-01-01")):
        assert (ran.code, is_one_block(ran.err)) == (1, True)
        assert said in ran.err
    assert (odd.code, "at: 'yesterday'" in odd.err) == (2, True)
    assert promised.status().pending == 500


def test_why_without_a_scaler_counts_what_has_finished(dsn: str, app: Penstock, promised: Queue) -> None:
    """It counts as a scaler does: attempts with any outcome, not only those that the queue keeps."""
    promised.push_many([{}] * 12)
    assert "finished" not in penstock("why", "work", dsn=dsn).out
    claim = promised.claim(7, worker="w")
    outcomes = [*[Outcome.done()] * 3, Outcome.again(delay="1h"), Outcome.dead("bad"), *[Outcome.failed("bad")] * 2]
    promised.settle(claim, dict(zip((task.id for task in claim.tasks), outcomes, strict=True)))
    assert [one.ended for one in scaling.scaler_snapshot(app._database, [QueueQuestion("work")]).queues] == [7]
    shown, value = each(("why", "work"), ("why", "work", "--json"), dsn=dsn)
    assert "7 finished, none lately" in shown.out
    assert "7 finished" in value.json["would"]["reason"]


def test_why_may_be_asked_by_a_reader(dsn: str, app: Penstock, promised: Queue, sql: psycopg.Connection) -> None:
    store_decision(app)
    with as_reader(sql):
        assert sql.execute("select workers from penstock.decisions('work')").fetchall() == [(3,)]
        row = sql.execute("select penstock.board('work')").fetchone()
        assert row is not None
        assert row[0]["scaling"][0]["target"] == 3


# --- status --watch ---------------------------------------------------------------------------------------------------


def test_watching_in_a_pipe(dsn: str, app: Penstock, promised: Queue) -> None:
    promised.push_many([{}] * 30)
    store_decision(app)
    with running("status", "--watch", "--interval", "0.2s", "--json", dsn=dsn) as process:
        assert process.stdout is not None
        found = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    one = found[-1]["queues"][0]
    assert (one["queue"], one["pending"], one["target"], one["workers"]) == ("work", 30, 3, 0)
    assert one["urgency"] == "NORMAL"
    assert 0 < one["time_to_breach"] < 60
    assert one["why"].startswith("500 waiting")
    assert one["scaler"] == {"holder": "a scaler", "alive": True}
    assert (one["arriving"], one["leaving"]) == (0, 0)
    assert found[0]["at"] < found[1]["at"] < found[2]["at"]


def test_watching_for_people_in_a_pipe(dsn: str, promised: Queue) -> None:
    promised.push()
    with running("status", "work", "--watch", "--interval", "0.2s", dsn=dsn) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert re.match(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ queue=work pending=1 active=0 oldest=\S+ sla=1m urgency=NORMAL", line
    )


def test_watching_with_wrong_options(dsn: str, promised: Queue) -> None:
    missing, fast, alone, away = each(
        ("status", "wrok", "--watch"),
        ("status", "--watch", "--interval", "1ms"),
        ("status", "--interval", "1s"),
        ("status", "--watch", "--dsn", "postgresql://localhost:1/x"),
        dsn=dsn,
    )
    assert (missing.code, "Did you mean 'work'?" in missing.err) == (1, True)
    assert (fast.code, "interval: 0.001 s" in fast.err) == (2, True)
    assert (alone.code, "only --watch" in alone.err) == (2, True)
    assert away.code == 4


def test_watching_on_a_terminal(dsn: str, promised: Queue) -> None:
    promised.push_many([{}] * 7)
    with Terminal("status", "--watch", "--interval", "0.2s", dsn=dsn, size=(24, 100)) as terminal:
        terminal.until(lambda said: said.count(b"pending") >= 3)
        terminal.press(b"\x03")
        assert terminal.ended() == 130
    assert b"\x1b[2J" not in terminal.said, "the picture is overwritten and not cleared, so that it does not flicker"
    assert terminal.said.rstrip().endswith(b"\x1b[?25h"), "the cursor is back"


@contextmanager
def running(*arguments: str, dsn: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=environment(dsn), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


# --- top --------------------------------------------------------------------------------------------------------------


class Terminal:
    """A command in a terminal of its own, with typed keys and a real Ctrl-C."""

    def __init__(
        self, *arguments: str, dsn: str, size: tuple[int, int] = (24, 80), term: str = "xterm-256color"
    ) -> None:
        self._ours, self._theirs = os.openpty()
        self.said = b""
        self.resize(*size, tell=False)
        self.before = termios.tcgetattr(self._theirs)
        env = environment(dsn, {"TERM": term})
        del env["COLUMNS"]
        script = 'exec "$@" <"$0" >"$0" 2>"$0"'
        self.process = subprocess.Popen(
            ["sh", "-c", script, os.ttyname(self._theirs), *COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def resize(self, rows: int, columns: int, *, tell: bool = True) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:  # a kernel signals the foreground group itself, but not every sandbox does
            os.killpg(self.process.pid, signal.SIGWINCH)

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def until(self, enough: Callable[[bytes], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not enough(self.said):
            assert time.monotonic() < deadline, self.said[-3000:].decode(errors="replace")
            self._read(0.2)

    def _read(self, seconds: float) -> None:
        if select.select([self._ours], [], [], seconds)[0]:
            self.said += os.read(self._ours, 65536)

    def ended(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            self._read(0.05)
        self._read(0.1)
        return self.process.returncode

    def frames(self) -> list[list[str]]:
        """Returns the pictures, as lines of plain text."""
        parts = self.said.decode(errors="replace").split("\x1b[H")[1:]
        return [[line.rstrip() for line in plain(part).splitlines()] for part in parts]

    def shows(self, *texts: str) -> None:
        """Waits until the newest complete picture contains all of these texts."""

        def seen(_: bytes) -> bool:
            return any(all(text in "\n".join(frame) for text in texts) for frame in self.frames()[-2:])

        self.until(seen)

    def restored(self) -> bool:
        return termios.tcgetattr(self._theirs) == self.before


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


def left(terminal: Terminal) -> None:
    """Checks that the terminal is as it was before."""
    assert terminal.said.count(b"\x1b[?1049h") == terminal.said.count(b"\x1b[?1049l") == 1
    assert terminal.said.rindex(b"\x1b[?25h") > terminal.said.rindex(b"\x1b[?25l")
    assert b"Traceback" not in terminal.said
    assert terminal.restored()


def test_top(dsn: str, app: Penstock, promised: Queue) -> None:
    promised.push_many([{}] * 1234)
    app.create_queue("other")
    store_decision(app)
    app.beat("host:42", ["work"], slots=4, busy=2)
    with Terminal("top", "--interval", "0.2s", dsn=dsn) as terminal:
        terminal.shows("q quits", "work", "1,234", "other", "host:42", "2 of 4", "1 of 3", "decisions", "500 waiting")
        assert all(len(line) <= 80 for line in terminal.frames()[-2])
        assert len(terminal.frames()[-2]) <= 24
        promised.push_many([{}])
        terminal.shows("1,235")
        terminal.press(b"xyz")
        terminal.resize(12, 34)
        terminal.until(lambda _: len(terminal.frames()) > 1 and all(len(line) <= 34 for line in terminal.frames()[-2]))
        assert len(terminal.frames()[-2]) <= 12
        terminal.resize(40, 160)
        terminal.shows("planned", "NORMAL")
        terminal.press(b"q")
        assert terminal.ended() == 0
        left(terminal)


def test_top_ends_with_ctrl_c(dsn: str, promised: Queue) -> None:
    with Terminal("top", "work", dsn=dsn) as terminal:
        terminal.shows("work", "no workers", "no scaler has run yet")
        terminal.press(b"\x03")
        assert terminal.ended() == 130
        left(terminal)


def test_top_keeps_trying(direct_dsn: str, server_dsn: str) -> None:
    """PostgreSQL goes away without a sign, and comes back."""
    name = psycopg.conninfo.conninfo_to_dict(direct_dsn)["dbname"]
    with Penstock(direct_dsn) as app:
        app.create_queue("work")
    with Terminal("top", "--interval", "0.2s", dsn=direct_dsn) as terminal:
        terminal.shows("work", "q quits")
        with psycopg.connect(server_dsn, autocommit=True) as admin:
            admin.execute(f"alter database {name} allow_connections false".encode())
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
            terminal.shows("no answer for", "trying again", "work")
            admin.execute(f"alter database {name} allow_connections true".encode())
        terminal.shows("work", "q quits")
        terminal.press(b"q")
        assert terminal.ended() == 0
        left(terminal)


def test_top_of_a_server_that_stands_still(direct_dsn: str, sql: psycopg.Connection) -> None:
    """PostgreSQL neither answers nor fails: the first line says so, and keys still work."""
    with Penstock(direct_dsn) as app:
        app.create_queue("work")
    mine = sql.info.backend_pid
    with Terminal("top", "--interval", "0.2s", dsn=direct_dsn) as terminal:
        terminal.shows("work", "q quits")
        others = "select pid from pg_stat_activity where datname = current_database() and pid <> %s"
        frozen = [pid for (pid,) in sql.execute(others, (mine,)) if backend(pid)]
        try:
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            terminal.shows("no answer for", "trying again", "work")
            terminal.press(b"q")
            assert terminal.ended() == 0
            left(terminal)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)


def backend(pid: int) -> bool:
    """Whether this is the backend of a client, and not an autovacuum worker, which others wait for."""
    return b"autovacuum" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_top_on_a_terminal_without_cursor_control(dsn: str, promised: Queue) -> None:
    with Terminal("top", dsn=dsn, term="dumb") as terminal:
        assert terminal.ended() == 2
        assert b"'dumb' cannot be drawn on" in terminal.said
        assert b"status --watch" in terminal.said


def test_top_without_a_terminal(dsn: str, promised: Queue) -> None:
    piped, value, fast, missing = each(
        ("top",),
        ("top", "--json"),
        ("top", "--interval", "2h"),
        ("top", "--dsn", "postgresql://localhost:1/x"),
        dsn=dsn,
    )
    for ran in (piped, value, missing):
        assert ran.code == 2
        assert "needs a terminal" in ran.err
    assert (fast.code, "interval" in fast.err) == (2, True)


def test_top_of_what_is_not_there(dsn: str, promised: Queue) -> None:
    with Terminal("top", "wrok", dsn=dsn, size=(24, 100)) as terminal:
        assert terminal.ended() == 1
        assert b"Did you mean 'work'?" in terminal.said
        assert b"\x1b[?1049h" not in terminal.said


AT = 1_800_000_000.0


def a_board(queues: int, workers: int, decisions: int, at: float = AT, ended: int = 0) -> Board:
    moment = datetime.fromtimestamp(at, UTC)
    noted = [
        StoredDecision(n, f"q{n}", moment, 1, "deadline", 3, 1, 3, "BREACH", "max", "3: " + "why " * 60, -5, 0, {}, {})
        for n in range(decisions)
    ]
    return Board(
        at=at,
        queues=tuple(
            QueueStatus(f"q{n}", 5, 100 - ended, 2, 0, 3, 0, 10.0 * n, 60.0, False, {"done": ended}, moment)
            for n in range(queues)
        ),
        scaling={"q1": Scaled("q1", "me", "deadline", 3, False, 500.0)},
        workers=tuple(
            BoardWorker(f"host-ü-{n}", "host", n, ("q1", "q2"), 4, n % 5, 100.0, 20.0 * (n == 1), n != 2, n == 3)
            for n in range(workers)
        ),
        decisions=tuple(noted),
        latest={one.queue: one for one in noted},
        samples={},
    )


@pytest.mark.sample(6)
@pytest.mark.parametrize("size", [(80, 24), (20, 5), (40, 10), (200, 60), (9, 2), (1, 1)])
@pytest.mark.parametrize("counts", [(0, 0, 0), (1, 1, 1), (50, 80, 30)])
def test_a_picture_fits_whatever_the_terminal(size: tuple[int, int], counts: tuple[int, int, int]) -> None:
    width, height = size
    board = a_board(*counts)
    found = draw_screen(View(board, RecentBoards().see(board), 0.0), "mail@db", width=width, height=height)
    assert len(found.renderables) <= height
    assert all(one.cell_len <= width for one in found.renderables)  # type: ignore[union-attr]


def test_rates_and_what_is_left() -> None:
    memory = RecentBoards()
    memory.see(a_board(2, 0, 0))
    (first, second) = memory.see(a_board(2, 4, 0, at=AT + 10, ended=50))
    assert (first.leaving, first.arriving) == (5.0, 0.0)
    assert first.eta == pytest.approx((50 + 2) / 5)
    assert second.usage == pytest.approx(10 / 60)
    assert second.urgency == "NORMAL"
    assert (second.workers, second.target) == (3, 3)
    assert second.status.queue == "q1"
    assert memory.see(a_board(2, 0, 0, at=AT - 100))[0].leaving is None, "the clock was set back, so no rate is shown"


def test_what_ended_did_not_arrive_again(app: Penstock, promised: Queue, clock: Clock) -> None:
    """Done tasks are removed, and cancelled tasks may have been active: each is counted once."""
    clock.freeze()
    promised.push_many([{}] * 30)
    memory = RecentBoards()
    memory.see(app.board())
    claim = promised.claim(20)
    promised.settle(claim, {one: Outcome.done() for one in claim.ids[1:]})
    promised.cancel([claim.ids[0]])
    clock.advance(10)
    promised.push_many([{}] * 5)
    (seen,) = memory.see(app.board())
    assert seen.arriving == pytest.approx(0.5)
    assert seen.leaving == pytest.approx(1.9)
    assert seen.eta == pytest.approx(15 / 1.4)
