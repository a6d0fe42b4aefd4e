from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.embedded import Server, postmaster
from penstock.embedded import home as home_of
from penstock.embedded.layout import load_state
from penstock.errors import ConfigError, Unavailable

Start = Callable[..., Server]

STARTER = """
import sys
from pathlib import Path
from penstock.embedded import Server
server = Server.start(Path(sys.argv[1]), settings={"shared_buffers": "16MB"})
print(server.pid, flush=True)
sys.stdin.read()
"""


def starter(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def answer(dsn: str, sql: str = "select 1") -> object:
    with psycopg.connect(dsn, connect_timeout=10) as connection:
        row = connection.execute(sql.encode()).fetchone()
    assert row is not None
    return row[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def password(server: Server) -> str:
    return (server.home / "pgpass").read_text().strip().rpartition(":")[2]


def test_it_is_up_within_seconds_over_socket_and_tcp(start: Start, home: Path) -> None:
    began = time.monotonic()
    server = start()
    assert time.monotonic() - began < 30
    assert answer(server.dsn) == 1
    assert answer(server.dsn_tcp) == 1
    assert answer(server.dsn, "select current_user || '@' || current_database()") == "penstock@penstock"
    assert answer(server.dsn_tcp, "select inet_server_port()") == server.port
    assert int(str(answer(server.dsn, "show server_version_num"))) // 10000 == server.version
    assert server.home == home
    assert (server.log, server.data, server.socket_dir) == (home / "log", home / "data", home / "run")
    assert server == Server.running(home) == start()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for tests that do not change it."""
    server = Server.start(tmp_path_factory.mktemp("shared") / "home", settings={"shared_buffers": "16MB"})
    yield server
    server.stop()


def test_only_the_password_opens_it(server: Server, tmp_path: Path) -> None:
    for wrong in ("", "password=wrong"):
        for dsn in (server.dsn, server.dsn_tcp):
            without = dsn.replace(str(server.home / "pgpass"), str(tmp_path / "none"))
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(psycopg.conninfo.make_conninfo(without, **dict([wrong.split("=")] if wrong else [])))
    assert answer(server.dsn, "select rolpassword like 'SCRAM-SHA-256$%' from pg_authid where rolcanlogin")


def test_the_password_is_seen_nowhere(server: Server) -> None:
    secret = password(server)
    assert len(secret) >= 32
    commands = [path.read_bytes() for path in Path(f"/proc/{server.pid}").glob("cmdline")]
    conf = (server.home / "penstock.conf").read_text()
    for place in (server.dsn, server.dsn_tcp, repr(server), server.log.read_text(), conf, str(commands)):
        assert secret not in place
    assert "passfile=" in server.dsn
    assert "passfile=" in server.dsn_tcp


def test_all_files_are_private(server: Server) -> None:
    assert {mode(path) for path in (server.home, server.data, server.socket_dir)} == {0o700}
    assert {mode(server.home / name) for name in ("pgpass", "log", "state.json", "lock")} == {0o600}
    assert (server.home / ".gitignore").read_text() == "*\n"
    assert sorted(path.name for path in server.home.iterdir()) == sorted(
        [".gitignore", "data", "lock", "log", "penstock.conf", "pgpass", "run", "state.json"]
    )


def test_a_home_that_was_there_keeps_its_permissions(start: Start, home: Path) -> None:
    home.mkdir()
    home.chmod(0o755)
    server = start()
    assert mode(home) == 0o755
    assert mode(server.data) == 0o700


def test_settings_fit_a_queue_and_can_be_overridden(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "C")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PGOPTIONS", "-c jit=on")
    monkeypatch.setenv("PGDATA", "/nowhere")
    server = Server.start(home, settings={"work_mem": "5MB", "cluster_name": "it's \\ a\nname"})
    monkeypatch.delenv("PGOPTIONS")
    expected = {
        "server_encoding": "UTF8",
        "listen_addresses": "127.0.0.1",
        "max_connections": "250",
        "max_wal_size": "8GB",
        "checkpoint_timeout": "15min",
        "jit": "off",
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "TimeZone": "UTC",
        "work_mem": "5MB",
        "autovacuum_naptime": "10s",
    }
    with psycopg.connect(server.dsn) as connection:
        for name, value in expected.items():
            assert connection.execute("select current_setting(%s)", [name]).fetchone() == (value,)
        wrong = connection.execute("select name, error from pg_file_settings where error is not null").fetchall()
    assert wrong == []


def test_payloads_stay_out_of_the_log(server: Server) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("create table t (payload text, n int not null)")
        for sql in ("insert into t values ('canary', null)", "select 'canary'::int"):
            with pytest.raises(psycopg.Error):
                connection.execute(sql)
        with pytest.raises(psycopg.Error), connection.cursor().copy("copy t from stdin") as copy:
            copy.write("canary\tcanary\n")
    said = server.log.read_text()
    assert "violates not-null" in said
    assert said.count("canary") <= 2, said  # "invalid input syntax" quotes the value itself


@pytest.mark.usefixtures("used")
def test_a_bad_setting_is_named(start: Start, home: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_setting"):
        Server.start(home, settings={"no_such_setting": "1"})
    with pytest.raises(ConfigError, match="not the name"):
        Server.start(home, settings={"a = 1\nb": "1"})
    assert Server.running(home) is None
    assert answer(start().dsn) == 1


@pytest.mark.usefixtures("used")
def test_stop_is_idempotent_and_the_data_stay(start: Start, home: Path) -> None:
    server = start()
    with psycopg.connect(server.dsn) as connection:
        connection.execute("create table kept as select 7 as n")
    server.stop()
    assert Server.running(home) is None
    server.stop()
    again = start()
    assert (again.dsn, again.dsn_tcp) == (server.dsn, server.dsn_tcp)
    assert again.pid != server.pid
    assert answer(again.dsn, "select n from kept") == 7
    server.stop()  # the stopped server's object: the new server goes on
    assert answer(again.dsn) == 1


def test_running_never_starts(home: Path) -> None:
    assert Server.running(home) is None
    assert not home.exists()


def test_six_starters_one_server(home: Path) -> None:
    starters = [starter(home) for _ in range(6)]
    said = {process.communicate(timeout=60)[0] for process in starters}
    assert len(said) == 1
    server = Server.running(home)
    assert server is not None
    assert said == {f"{server.pid}\n"}


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_it_outlives_its_starter(home: Path, end: signal.Signals) -> None:
    process = starter(home)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    os.killpg(process.pid, end)  # what Ctrl-C in a terminal does: the whole group
    process.communicate(timeout=10)
    time.sleep(0.3)
    server = Server.running(home)
    assert server is not None
    assert server.pid == pid
    assert answer(server.dsn) == 1
    assert os.getsid(pid) != os.getsid(0)


@pytest.mark.usefixtures("used")
def test_killed_and_started_again_with_all_that_was_committed(start: Start, home: Path) -> None:
    server = start()
    for number in range(2):
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("create table if not exists kept (n int)")
            connection.execute("insert into kept values (%s)", [number])
            server.kill()
            assert Server.running(home) is None
            assert (server.data / "postmaster.pid").exists()
            server = start()  # while a backend of the old one may still be there
    assert answer(server.dsn, "select count(*) from kept") == 2


@pytest.mark.usefixtures("used")
def test_the_pid_of_another_program_is_neither_believed_nor_killed(start: Start, home: Path) -> None:
    server = start()
    server.kill()
    other_program = subprocess.Popen(["sleep", "60"])
    try:
        for lock in (server.data / "postmaster.pid", *server.socket_dir.glob("*.lock")):
            lines = lock.read_text().splitlines()
            lock.write_text("\n".join([str(other_program.pid), *lines[1:]]) + "\n")
        assert Server.running(home) is None
        Server(**{name: getattr(server, name) for name in server.__slots__} | {"pid": other_program.pid}).stop()
        again = start()
        assert answer(again.dsn) == 1
        assert again.dsn == server.dsn
        again.stop()
        assert other_program.poll() is None
    finally:
        other_program.kill()
        other_program.wait()


@pytest.mark.usefixtures("used")
def test_an_empty_pid_file_is_overcome(start: Start) -> None:
    server = start()
    server.kill()
    (server.data / "postmaster.pid").write_text("")
    assert answer(start().dsn) == 1


@pytest.mark.usefixtures("used")
def test_a_server_that_we_cannot_see_is_not_started_over(
    start: Start, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    moved = home.rename(home.with_name("moved"))  # its command line now names another directory
    try:
        monkeypatch.setattr("penstock.embedded.launch.RETRY_SECONDS", 0)
        assert Server.running(moved) is None
        with pytest.raises(Unavailable, match="cannot be seen"):
            Server.start(moved)
        assert (moved / "data" / "postmaster.pid").exists()
    finally:
        moved.rename(home)
    assert answer(server.dsn) == 1


def test_a_start_cut_short_is_begun_anew(start: Start, home: Path) -> None:
    (home / "data.new").mkdir(parents=True)
    (home / "data.new" / "PG_VERSION").write_text("18\n")
    assert answer(start().dsn) == 1
    assert not (home / "data.new").exists()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["long" * 40, "a, b", 'it\'s $(touch x) "quoted" \\ ünï'])
def test_any_path_will_do(tmp_path: Path, name: str, tidy: Callable[[Path], Path]) -> None:
    home = tidy(tmp_path / name / "home")
    server = Server.start(home, settings={"shared_buffers": "16MB"})
    assert answer(server.dsn) == answer(server.dsn_tcp) == 1
    assert len(os.fsencode(server.socket_dir)) < 90
    assert mode(server.socket_dir) == 0o700
    if server.socket_dir != home / "run":
        server.stop()
        shutil.rmtree(server.socket_dir)  # as a cleaner of /tmp would do
        assert answer(Server.start(home).dsn) == 1


@pytest.mark.usefixtures("used")
def test_the_port_is_kept_unless_it_is_taken(start: Start, home: Path) -> None:
    server = start()
    server.stop()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", server.port))
        thief.listen()
        with pytest.raises(ConfigError, match=f"port {server.port}"):
            start(port=server.port)
        moved = start()
    assert moved.port != server.port
    assert moved.port == load_state(home)["port"]
    assert answer(moved.dsn_tcp) == 1


@pytest.mark.usefixtures("used")
def test_data_of_another_version_are_refused(start: Start) -> None:
    server = start()
    server.stop()
    (server.data / "PG_VERSION").write_text("14\n")
    with pytest.raises(ConfigError, match=r"made by PostgreSQL 14, but .* are PostgreSQL 18") as refused:
        start()
    assert "PENSTOCK_PG_BIN" in str(refused.value.hint)


@pytest.mark.usefixtures("used")
def test_recovery_is_waited_for(start: Start, home: Path) -> None:
    server = start()
    with psycopg.connect(server.dsn) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)  # the postmaster stays, all other processes restart
        deadline = time.monotonic() + 20
        while "all server processes terminated" not in server.log.read_text() and time.monotonic() < deadline:
            assert Server.running(home) == server
        assert start() == server
        assert answer(server.dsn) == 1


def test_home_is_here_or_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert home_of({}) == tmp_path / ".penstock"
    assert home_of({"PENSTOCK_HOME": ""}) == tmp_path / ".penstock"
    assert home_of({"PENSTOCK_HOME": "/srv/queue"}) == Path("/srv/queue")


def test_a_home_that_cannot_be_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        Server.start(tmp_path / "file" / "home")
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        Server.running(tmp_path)


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert postmaster.command_of(process.pid) == ""
    process.wait()
