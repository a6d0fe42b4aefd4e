"""`penstock init-project` writes a project that runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock import Penstock
from shell import environment, penstock

BIN = str(Path(sys.executable).parent)


def run(*command: str, cwd: Path, dsn: str) -> str:
    env = environment(dsn)
    env["PATH"] = f"{BIN}:{env['PATH']}"
    ran = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def next_commands(output: str) -> list[str]:
    return [line.partition("#")[0].strip() for line in output.partition("next:\n")[2].splitlines()]


def test_a_first_day(tmp_path: Path, app: Penstock, dsn: str) -> None:
    made = penstock("init-project", "mail", cwd=tmp_path)
    assert made.code == 0
    assert made.out.startswith("written: mail/tasks.py, mail/test_tasks.py, mail/Makefile\n")
    assert "cd mail" in made.out
    project = tmp_path / "mail"
    assert "1 passed" in run(sys.executable, "-m", "pytest", "-q", cwd=project, dsn=dsn)
    run(sys.executable, "tasks.py", cwd=project, dsn=dsn)
    assert app.queue("default").status().pending == 1, "the tests of the project used a server of their own"
    assert "hello, world" in run("penstock", "work", "tasks:app", "--until-empty", cwd=project, dsn=dsn)
    assert "penstock work tasks:app --dev" in run("make", "-n", "work", cwd=project, dsn=dsn)
    assert "1 passed" in run("make", "test", cwd=project, dsn=dsn)
    commands = next_commands(made.out)
    assert commands == ["cd mail", "penstock up", "python tasks.py", "make work", "make test"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("mine:\n")
    made = penstock("init-project", cwd=tmp_path)
    assert (made.code, (tmp_path / "Makefile").read_text()) == (0, "mine:\n")
    assert "penstock work tasks:app --dev" in made.out, "it prints what to add"
    commands = next_commands(made.out)
    assert commands == ["penstock up", "python tasks.py", "penstock work tasks:app --dev", "python -m pytest"]
    (tmp_path / "tasks.py").write_text("mine = 1\n")
    (tmp_path / "test_tasks.py").unlink()
    again = penstock("init-project", ".", "--json", cwd=tmp_path)
    assert again.code == 1
    assert "tasks.py exists already" in again.err
    assert not (tmp_path / "test_tasks.py").exists(), "all files are written, or none"
    other = penstock("init-project", "tasks.py", cwd=tmp_path)
    assert other.code == 2
    assert "'tasks.py' is not a directory" in other.err
    value = penstock("init-project", "b/c", "--json", cwd=tmp_path).json
    assert value == {"directory": "b/c", "written": ["tasks.py", "test_tasks.py", "Makefile"]}
