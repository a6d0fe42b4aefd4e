"""`penstock upkeep`, `retention`, `verify --repair`, `init --no-roles` and `psql`, run from outside."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from conftest import Clock
from penstock import Queue
from penstock.cli.commands.psql import make_environment as psql_environment
from penstock.cli.commands.psql import make_flags, name_variable
from penstock.embedded import Server
from shell import each, penstock, refused

# --- upkeep, repair, init ---------------------------------------------------------------------------------------------


def test_upkeep(dsn: str, queue: Queue, clock: Clock) -> None:
    queue.push(due=clock.now())
    value, said = penstock("upkeep", "--json", dsn=dsn), penstock("upkeep", dsn=dsn)
    assert value.json["parts"]["promoted"] == 1
    assert all(isinstance(rows, int) for rows in value.json["parts"].values())
    assert said.out.splitlines()[0].split() == ["part", "rows"]


def test_upkeep_names_what_failed(dsn: str, queue: Queue, sql: Connection) -> None:
    sql.execute("""
        create function penstock_test.refuse() returns trigger language plpgsql as
            $$ begin raise exception 'no deletes here'; end $$;
        create trigger refuse before delete on penstock.audit
            for each row execute function penstock_test.refuse();
        insert into penstock.audit (at, verb) values ('2000-01-01', 'drop');
    """)
    value, said = penstock("upkeep", "--json", dsn=dsn), penstock("upkeep", dsn=dsn)
    assert (value.code, said.code) == (1, 1)
    assert [*value.json["failed"]] == ["audit entries dropped"]
    assert value.json["parts"]["sampled"] == 1
    assert "failed: audit entries dropped: " in said.err


def test_retention(dsn: str, queue: Queue, sql: Connection) -> None:
    assert penstock("retention", "--json", dsn=dsn).json["retention"]["history"] == 30 * 86400
    rehearsed = penstock("retention", "history", "7d", "--dry-run", "--json", dsn=dsn)
    assert (rehearsed.json["dry_run"], rehearsed.json["retention"]["history"]) == (True, 30 * 86400)
    assert penstock("retention", "history", "7d", "--json", dsn=dsn).json["retention"]["history"] == 7 * 86400
    said = penstock("retention", "history", "none", dsn=dsn)
    assert "for ever" in next(line for line in said.out.splitlines() if line.startswith("history"))
    short, unknown, half = each(
        ("retention", "history", "1h"), ("retention", "payloads", "7d"), ("retention", "history"), dsn=dsn
    )
    refused(short, "less than 1 day", code=2)
    refused(unknown, "'payloads' is not kept by upkeep", code=1)
    refused(half, "penstock retention history 7d", code=2)


def test_a_rehearsal_answers_and_changes_nothing(dsn: str, queue: Queue, clock: Clock) -> None:
    queue.push_many([{"n": 1}, {"n": 2}])
    queue.push(due=clock.now())
    rehearsed = penstock("claim", "work", "--limit", "5", "--dry-run", "--json", dsn=dsn).json
    assert [task["payload"] for task in rehearsed["tasks"]] == [{"n": 1}, {"n": 2}, {}]
    assert rehearsed["token"] is None
    assert penstock("upkeep", "--dry-run", "--json", dsn=dsn).json["parts"]["promoted"] == 1
    assert (queue.status().planned, queue.status().pending, queue.status().active) == (1, 2, 0)
    claim = queue.claim()
    settle = ("settle", "work", str(claim.token), str(claim.ids[0]))
    assert penstock(*settle, "--dry-run", "--json", dsn=dsn).json["would"] == {str(claim.ids[0]): "done"}
    assert queue.status().active == 1
    assert penstock(*settle, "--json", dsn=dsn).json == {"settled": {str(claim.ids[0]): "done"}}


@pytest.mark.unbalanced
def test_verify_repairs(dsn: str, queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}])
    wrong = "insert into penstock.counter_log (queue_id, metric, delta) select id, 'pending', 5 from penstock.queue"
    sql.execute(wrong)
    assert penstock("verify", dsn=dsn).code == 1
    rehearsed = penstock("verify", "work", "--repair", "--dry-run", "--json", dsn=dsn)
    assert (rehearsed.code, [one["what"] for one in rehearsed.json["would"]]) == (1, ["counter pending corrected"])
    ran = penstock("verify", "work", "--repair", "--json", dsn=dsn)
    assert ran.code == 0
    assert ran.json["repaired"] == [{"queue": "work", "what": "counter pending corrected", "rows": 5}]
    assert (ran.json["drift"], ran.json["findings"]) == (0, [])
    sql.execute(wrong)
    said = penstock("verify", "--repair", dsn=dsn)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("work: counter pending corrected: ")
    assert "all is well" in said.out
    nothing, missing = each(("verify", "--repair", "--json"), ("verify", "wrok", "--repair"), dsn=dsn)
    assert (nothing.code, nothing.json["repaired"]) == (0, [])
    refused(missing, "Did you mean 'work'?", code=1)


def test_init_without_roles(make_database: Callable[..., str]) -> None:
    dsn = make_database("template0")
    full, lean = each(("init", "--sql"), ("init", "--sql", "--no-roles"))
    assert "create role" in full.out.lower()
    assert len(lean.out) < len(full.out)
    plan = penstock("init", "--no-roles", "--plan", "--json", dsn=dsn)
    assert plan.json == {"planned": ["0001_tables.sql", "functions"]}
    ran = penstock("init", "--no-roles", "--json", dsn=dsn)
    assert ran.json == {"applied": ["0001_tables.sql", "functions"]}


# --- psql -------------------------------------------------------------------------------------------------------------


ASK = ("--", "-XAtc", "select current_database()")


def test_psql_on_path(dsn: str, tmp_path: Path) -> None:
    """A stub of psql prints what it is given: the password is in a variable, and not on the command line."""
    program = tmp_path / "psql"
    program.write_text('#!/bin/sh\necho "args $*"\nenv | grep ^PG | sort\nexit 7\n')
    program.chmod(0o755)
    given = "postgresql://ann:s3kr3t@db.example:5433/mail?sslmode=require"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PGSERVICE": "other"}
    ran = penstock("psql", "--dsn", given, "--", "-c", "select 1", env=env)
    assert ran.code == 7
    assert ran.out.splitlines() == [
        "args -c select 1", "PGDATABASE=mail", "PGHOST=db.example", "PGPASSWORD=s3kr3t", "PGPORT=5433",
        "PGSSLMODE=require", "PGUSER=ann",
    ]  # fmt: skip
    same = penstock("psql", "--dsn", given, "-c", "select 1", env=env)
    assert (same.code, same.out) == (ran.code, ran.out), "options that penstock does not have are passed on to psql"
    short = penstock("psql", "-v", "ON_ERROR_STOP=1", "-h", "there", "-Atc", "select 1", "--dsn", given, env=env)
    assert short.out.splitlines()[0] == "args -v ON_ERROR_STOP=1 -h there -Atc select 1", "so are all short options"
    loud = penstock("psql", "--verbose", "--dsn", given, env=env)
    assert (loud.out.splitlines()[0], "db.example" in loud.err) == ("args ", True)
    assert "--verbose" in penstock("psql", "--help").out
    none = penstock("psql", dsn=dsn, env={"PATH": str(tmp_path / "nowhere")})
    refused(none, "PS3001", "psql is not found", code=3)


def test_psql_of_the_embedded_server(server_dsn: str) -> None:
    home = Path(str(conninfo_to_dict(server_dsn)["passfile"])).parent
    server = Server.running(home)
    assert server is not None
    ran = penstock("psql", *ASK, env={"PENSTOCK_HOME": str(home), "PATH": "/nonexistent"})
    assert (ran.code, ran.out.strip(), ran.err) == (0, conninfo_to_dict(server.dsn)["dbname"], "")
    stop = ("-v", "ON_ERROR_STOP=1", "-c", "select 1/0", "-c", "select 'on'")
    ran = penstock("psql", "-XAt", *stop, env={"PENSTOCK_HOME": str(home), "PATH": "/nonexistent"})
    assert (ran.code, ran.out) == (1, "")


def test_psql_is_told_in_libpqs_own_words() -> None:
    for option in pq.Conninfo.get_defaults():
        if option.envvar is not None:
            assert name_variable(option.keyword.decode()) == option.envvar.decode()
    parts: dict[str, Any] = conninfo_to_dict(make_conninfo("service=mail", dbname="other", password="s3kr3t"))
    assert make_flags(parts) == ["--dbname=other"], "a service would win over a variable"
    assert psql_environment(parts, {"PGSERVICE": "x"}) == {
        "PGSERVICE": "mail", "PGDATABASE": "other", "PGPASSWORD": "s3kr3t",
    }  # fmt: skip
    assert psql_environment({}, {"PGSERVICE": "x"}) == {"PGSERVICE": "x"}
