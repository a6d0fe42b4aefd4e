"""Runs pages of the docs as a reader would: in an empty directory, block after block, as they are written.

    python    executed, in one interpreter for the whole page; under "…, in `jobs.py`:" saved as that file, and imported
    console   each `$ ` line is run, and the lines after it are its output; numbers may differ, `…` is anything
    sh        run by bash
    sql       executed, statement by statement
    ini, yaml, cron, json   read by other programs, and checked by those that are installed
    text      not run; nothing in it may look like a command

A block without a language is console or sh if it begins with a command, otherwise text.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import typer.main
from psycopg.conninfo import conninfo_to_dict

from penstock import schedule
from penstock.cli import tree
from penstock.embedded import Server
from pooler import free_port

ROOT = Path(__file__).parent.parent.parent
EXAMPLE_DSN = "postgresql://me@db.example.com/app"
PATIENCE = 120

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(\$ |penstock |python |make |export |pip |curl )")
SYNOPSIS = re.compile(r"^penstock .*(?:\[-|[ =][A-Z]{3,}(?: |$))", re.MULTILINE)  # a synopsis, not a call
FILE = re.compile(r"`([\w/.-]+\.\w+)`")
NUMBER = re.compile(r"(?:\d[\d,.]*(?: ?(?:ms|[smhd])(?![a-z]))?)+|–")
LOGGED = '{"at": '  # a worker's log, in JSON unless there is a terminal

# make is only asked what it would do. A command that runs until it is stopped is stopped soon after its first output.
BASH = r"""
set -euo pipefail
make() { command make --no-print-directory -n -C "$PENSTOCK_ROOT" "$@" > /dev/null; }
kubectl() { python -c 'import sys, yaml; assert list(yaml.safe_load_all(sys.stdin))'; }
lasting() {
    : > lasting.out
    (exec penstock "$@") >> lasting.out 2>&1 & local pid=$!
    until [ -s lasting.out ] || ! kill -0 $pid 2> /dev/null; do sleep 0.1; done
    sleep 1; kill -TERM $pid || true; wait $pid || { local code=$?; cat lasting.out; return $code; }
    cat lasting.out
}
penstock() {
    case "$*" in
        *--until-empty*|*--help*) command penstock "$@" ;;
        web|web\ *) lasting "$@" --port 0 ;;
        work\ *|backlog\ run\ *|scale\ *:*) lasting "$@" ;;
        *) command penstock "$@" ;;
    esac
}
"""
# The page's interpreter: it reads a block per line, in JSON, and writes an answer per line.
READER = """
import json, sys, traceback
spaces = {}
for line in sys.stdin:
    name, where, code = json.loads(line)
    space = spaces.setdefault(name, {"__name__": name})
    try:
        exec(compile(code, where, "exec"), space)
        print("\\0ok", flush=True)
    except BaseException:
        print("\\0" + json.dumps(traceback.format_exc()), flush=True)
"""


@dataclass(frozen=True)
class Stage:
    """What a page assumes to be there, and calls yours."""

    python: str = ""
    sql: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    saved: Mapping[int, str] = field(
        default_factory=dict
    )  # python blocks, by number, that commands call by a file name
    instead: Mapping[str, str] = field(default_factory=dict)  # replacements that make it smaller
    embedded: bool = False  # no DSN is given: it is the database of `penstock up`
    parsed: bool = False  # its commands cannot run in a test: each must exist, with its options


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    name: str | None  # the file name that the text before it gives


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [block_of(found, text[: found.start()]) for found in FENCE.finditer(text)]


def block_of(found: re.Match[str], before: str) -> Block:
    language = found[1] or guessed(found[2])
    return Block(language, found[2], before.count("\n") + 1, name_of(before, language))


def guessed(text: str) -> str:
    found = COMMAND.match(text)
    return "text" if found is None or SYNOPSIS.search(text) else "console" if found[0] == "$ " else "sh"


def name_of(before: str, language: str) -> str | None:
    words = before.rstrip().rpartition("\n\n")[2]
    files = FILE.findall(words) if words.endswith(":") and language in ("python", "ini") else []
    return str(files[-1]) if files else None


class Reading:
    """Runs one page, with a database and a directory of its own."""

    def __init__(self, page: Path, stage: Stage, home: Path, dsn: str) -> None:
        self.page, self.stage, self.home = page, stage, home
        self.dsn = dsn
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "COLUMNS": "200",
            "PENSTOCK_ROOT": str(ROOT),
            "PENSTOCK_HOME": str(home / ".penstock"),
            "PYTHONPATH": f"{home}:{os.environ.get('PYTHONPATH', '')}",
            **({} if stage.embedded else {"PENSTOCK_DSN": dsn}),
        }
        self.python = subprocess.Popen(
            [sys.executable, "-c", READER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=home,
            env=self.environment,
        )

    def run(self) -> None:
        self.prepare()
        count = 0
        for block in blocks_of(self.page):
            where = f"{self.page.relative_to(ROOT)}:{block.line}"
            if block.language == "python":
                self.run_python(block, where, self.stage.saved.get(count))
                count += 1
            else:
                self.run_other(block, where)

    def prepare(self) -> None:
        for name, text in self.stage.files.items():
            self.save(name, text)
        if self.stage.embedded:
            self.bash("penstock up", "up")
            server = Server.running(self.home / ".penstock")
            assert server is not None
            self.dsn = server.dsn
        if self.stage.sql:
            self.execute(self.stage.sql)
        if self.stage.python:
            self.interpret("__main__", self.stage.python, "stage")

    def close(self) -> None:
        try:
            self.python.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.python.kill()
            self.python.communicate()
        if Server.running(self.home / ".penstock"):
            self.bash("penstock down", "down")

    def save(self, name: str, text: str) -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    # --- python -------------------------------------------------------------------------------------------------------

    def run_python(self, block: Block, where: str, saved_as: str | None) -> None:
        code = self.here(block.text)
        name = block.name or saved_as
        if name is not None:
            self.save(name, self.stage.python + code)
        if block.name is None:
            self.interpret("__main__", "\n" * block.line + code, where)
        else:
            self.interpret(block.name.removesuffix(".py").replace("/", "."), self.stage.python + code, where)

    def interpret(self, name: str, code: str, where: str) -> None:
        assert self.python.stdin is not None
        assert self.python.stdout is not None
        self.python.stdin.write(json.dumps([name, where, code]) + "\n")
        self.python.stdin.flush()
        for line in self.python.stdout:
            if line.startswith("\0"):
                assert line.strip() == "\0ok", f"{where}\n{json.loads(line[1:])}"
                return
        raise AssertionError(f"{where}: the interpreter is gone")

    def here(self, text: str) -> str:
        """Puts the test's database into a text, and reduces sizes as the stage says."""
        for long, short in self.stage.instead.items():
            text = text.replace(long, short)
        for scheme in ("postgresql", "postgresql+psycopg", "postgresql+asyncpg"):
            text = text.replace(EXAMPLE_DSN.replace("postgresql", scheme, 1), self.url(scheme))
        return text

    def url(self, scheme: str) -> str:
        parts = conninfo_to_dict(self.dsn)
        password = parts.get("password")
        if password is None and parts.get("passfile"):
            password = Path(str(parts["passfile"])).read_text().strip().split(":", 4)[4]
        return f"{scheme}://{parts['user']}:{password}@127.0.0.1:{parts['port']}/{parts['dbname']}"

    # --- everything else ----------------------------------------------------------------------------------------------

    def run_other(self, block: Block, where: str) -> None:
        if block.name is not None:
            self.save(block.name, block.text)
        match block.language:
            case "sh" | "console" if self.stage.parsed:
                for command in re.findall(r"^(?:\$ )?(penstock .*?)(?: *[|#&].*)?$", block.text, re.MULTILINE):
                    assert_parses(shlex.split(command), where)
            case "sh":
                self.bash(self.here(block.text), where)
            case "console":
                self.converse(self.here(block.text), where)
            case "sql":
                self.execute(self.here(block.text))
            case _:
                checked_elsewhere(block, where)

    def bash(self, script: str, where: str) -> str:
        done = subprocess.run(
            ["bash", "-c", BASH + script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.home,
            env=self.environment,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{where}: exit {done.returncode}\n{script}\n{done.stdout}"
        return done.stdout

    def converse(self, text: str, where: str) -> None:
        for command, expected in exchanges(text):
            said = self.bash(command, where)
            assert agrees(said, expected), f"{where}\n$ {command}\n--- the page\n{expected}\n--- it said\n{said}"

    def execute(self, text: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in re.split(r";[ \t]*(?:--[^\n]*)?$", text, flags=re.MULTILINE):
                if re.sub(r"--[^\n]*", "", statement).strip():
                    connection.execute(statement.encode())


def exchanges(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        end = next(n for n, line in enumerate(lines) if not line.endswith("\\")) + 1
        yield "\n".join(lines[:end]), "\n".join(lines[end:])


def agrees(said: str, expected: str) -> bool:
    """Compares line by line, whatever the numbers; a line `…` stands for any number of lines."""
    pattern = ""
    for line in simple(expected):
        pattern += r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + "\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in simple(said))) is not None


def simple(text: str) -> list[str]:
    """Returns words and numbers, without their width."""
    lines = (" ".join(NUMBER.sub("#", line).split()) for line in text.splitlines() if not line.startswith(LOGGED))
    return [line for line in lines if line]


# --- what other programs read ---------------------------------------------------------------------------------------


def checked_elsewhere(block: Block, where: str) -> None:
    match block.language:
        case "text":
            called = re.search(r"^(\$ |penstock )", block.text, re.MULTILINE)
            assert called is None or SYNOPSIS.search(block.text), f"{where}: console or sh?"
        case "json":
            json.loads(block.text)
        case "cron":
            for line in filter(None, block.text.splitlines()):
                if re.match(r"\w+=", line):  # a variable of its own
                    continue
                *fields, rest = line.split(maxsplit=5)
                schedule.cron_of(" ".join(fields))
                assert_parses(shlex.split(rest.removeprefix("cd /opt/shop && ")), where)
        case "ini":
            check_ini(block.text, where)
        case "yaml":
            yaml = __import__("yaml")
            assert list(yaml.safe_load_all(block.text)), where
        case other:
            raise AssertionError(f"{where}: no check for {other!r}")


class AsWritten(configparser.RawConfigParser):
    """Keeps the case of option names: for systemd, ExecStart is not execstart."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def check_ini(text: str, where: str) -> None:
    """Checks a unit of systemd, or a configuration of PgBouncer."""
    parser = AsWritten(strict=False, interpolation=None)
    parser.read_string(text)
    assert parser.sections(), where
    if parser.has_section("Service"):
        verify_unit(text, where)
    if parser.has_section("pgbouncer"):
        start_pgbouncer(text, where)
    for section in parser.sections():
        for name, value in parser.items(section):
            if name.startswith("Exec"):
                assert_parses(shlex.split(value), where)


def verify_unit(text: str, where: str) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    with tempfile.TemporaryDirectory() as home:
        unit = Path(home) / "penstock.service"
        unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
        done = subprocess.run([program, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{where}: {done.stderr}"
    assert unit.name not in done.stderr, f"{where}: {done.stderr}"


def start_pgbouncer(text: str, where: str) -> None:
    """Checks that PgBouncer answers on its port. It reports what it does not understand, and ends."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        return
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        users, conf, port = Path(home) / "users", Path(home) / "conf", free_port()
        users.write_text('"me" "secret"\n')
        text += "unix_socket_dir =\n"
        for name, here in {"listen_port": port, "auth_file": users}.items():
            text = re.sub(rf"^{name} *=.*$", f"{name} = {here}", text, flags=re.MULTILINE)
        conf.write_text(text)
        nobody = 65534 if os.geteuid() == 0 else None  # it refuses root
        process = subprocess.Popen(
            [program, str(conf)], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, user=nobody
        )
        try:
            deadline = time.monotonic() + 30
            while process.poll() is None and not listens(port):
                assert time.monotonic() < deadline, f"{where}: it does not listen"
                time.sleep(0.05)
        finally:
            process.terminate()
            said = process.communicate()[1]
        assert not re.search("FATAL|ERROR|WARNING", said), f"{where}: {said}"


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def assert_parses(words: list[str], where: str) -> None:
    """Checks that a command exists, with the options that are given."""
    name, *rest = words
    assert Path(name).name == "penstock", where
    command: Any = typer.main.get_command(tree())
    while getattr(command, "commands", {}):
        context = command.make_context(name, rest)
        left = [*context._protected_args, *context.args]
        if not left:
            assert command.invoke_without_command, f"{where}: there is no {shlex.join(words)}"
            return
        _, command, rest = command.resolve_command(context, left)
    command.make_context(name, rest)
