"""What an attacker tries: other origins, forged sessions, hostile texts, large bodies, slow clients."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from dashboard import Visitor, serving, visit
from penstock import Outcome, Penstock, Queue
from penstock.web import guard
from shell import penstock

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'onmouseover='alert(1)",
    "javascript:alert(1)",
    "{{7*7}}${7*7}<%= 7*7 %>",
    "</title></textarea><svg/onload=alert(1)>",
    "\u202egnp.exe\u0007\x1b[2J",
)
PEOPLE = "ann:admin:a-long-password\nbob:reader:another-password\neve:none:has-no-access-x\n"


@pytest.fixture
def reader(dsn: str) -> Iterator[Visitor]:
    with serving(dsn) as address:
        yield visit(address)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    found = tmp_path / "users"
    found.write_text(PEOPLE)
    found.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return found


def stranger(visitor: Visitor) -> Visitor:
    return Visitor(visitor.host, visitor.port)


# --- who may come in --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/tasks", "/queues/work", "/live?topic=promises", "/doctor", "/audit"])
def test_without_the_token_no_screen_opens(queue: Queue, reader: Visitor, path: str) -> None:
    answer = stranger(reader).get(path)
    assert answer.status == 401
    assert "work" not in answer.words
    assert "Token" in answer.words


def test_a_wrong_token_and_a_forged_session_open_nothing(queue: Queue, reader: Visitor) -> None:
    assert stranger(reader).get("/?token=wrong").status == 403
    (name, good), *_ = reader.cookies.items()
    raw, _, mark = good.partition(".")
    forged = {"empty": "", "unsigned": raw, "other mark": f"{raw}.{'0' * 64}", "changed": f"A{raw[1:]}.{mark}"}
    forged |= {"no base64": f"!!!.{mark}", "foreign letters": "ü.ü", "long": "A" * 3000}
    for what, cookie in forged.items():
        thief = Visitor(reader.host, reader.port, {name: cookie.encode("latin-1", "ignore").decode("latin-1")})
        assert thief.get("/").status == 401, what
    assert reader.get("/").status == 200


def test_a_session_of_another_server_process_is_refused(dsn: str, queue: Queue, reader: Visitor) -> None:
    with serving(dsn) as address:
        other = visit(address)
        thief = Visitor(other.host, other.port, dict(reader.cookies))
        assert thief.get("/").status == 401


def test_servers_with_one_secret_share_sessions(dsn: str, queue: Queue) -> None:
    env = {"PENSTOCK_WEB_SECRET": "0123456789abcdef0123456789abcdef"}
    with serving(dsn, env=env) as first, serving(dsn, env=env) as second:
        one, other = visit(first), urlsplit(second)
        assert other.port
        assert Visitor(one.host, other.port, dict(one.cookies)).get("/").status == 200


def test_the_cookie_of_a_session_cannot_be_read_or_sent_by_other_sites(dsn: str, queue: Queue) -> None:
    with serving(dsn) as address:
        parts = urlsplit(address)
        assert parts.hostname
        assert parts.port
        cookie = Visitor(parts.hostname, parts.port).get(f"/?{parts.query}").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/" in cookie


def test_other_machines_need_a_way_to_log_in(dsn: str) -> None:
    ran = penstock("web", "--host", "0.0.0.0", dsn=dsn)
    assert ran.code == 3
    assert "--auth basic, token or proxy" in ran.err


def test_users_with_passwords(dsn: str, queue: Queue, people: Path) -> None:
    import base64

    def basic(name: str, password: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}

    with serving(dsn, "--auth", "basic", "--users", str(people)) as address:
        parts = urlsplit(address)
        assert parts.hostname
        assert parts.port
        guest = Visitor(parts.hostname, parts.port)
        refused = guest.get("/")
        assert (refused.status, refused.headers["www-authenticate"].split()[0]) == (401, "Basic")
        assert guest.get("/", basic("ann", "wrong-password")).status == 401
        assert guest.get("/", basic("bob", "a-long-password")).status == 401
        assert guest.get("/", basic("eve", "has-no-access-x")).status == 401
        assert guest.get("/", {"Authorization": "Basic !!!"}).status == 401
        assert "admin · ann" in guest.get("/", basic("ann", "a-long-password")).words
        assert "reader · bob" in guest.get("/", basic("bob", "another-password")).words


def test_a_proxy_names_the_user(dsn: str, queue: Queue, people: Path) -> None:
    options = ("--auth", "proxy", "--users", str(people), "--level", "none", "--proxy-header", "X-User")
    with serving(dsn, *options) as address:
        parts = urlsplit(address)
        assert parts.hostname
        assert parts.port
        guest = Visitor(parts.hostname, parts.port)
        assert guest.get("/").status == 403
        assert guest.get("/", {"X-User": "mallory"}).status == 403
        assert "admin · ann" in guest.get("/", {"X-User": "ann"}).words


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (PEOPLE, 0o644, "others may read"),
        ("ann\n", 0o600, "is not name:level:secret"),
        ("ann:king:0123456789\n", 0o600, "is not one of none, reader, operator, admin"),
        ("ann:admin:short\n", 0o600, "shorter than 8"),
        ("", 0o600, "no user has a password"),
    ],
)
def test_a_file_of_users_that_is_not_accepted(dsn: str, tmp_path: Path, text: str, mode: int, said: str) -> None:
    file = tmp_path / "users"
    file.write_text(text)
    file.chmod(mode)
    ran = penstock("web", "--auth", "basic", "--users", str(file), dsn=dsn)
    assert ran.code in (2, 3)
    assert said in ran.err
    assert "0123456789" not in ran.err


def test_a_login_without_the_roles_is_told_at_the_start(direct_dsn: str, sql: psycopg.Connection) -> None:
    sql.execute("create role web_stranger login password 'secret-1'")
    try:
        dsn = psycopg.conninfo.make_conninfo(direct_dsn, user="web_stranger", password="secret-1")
        ran = penstock("web", dsn=dsn)
        assert ran.code == 3
        assert "penstock_reader" in ran.err
    finally:
        sql.execute("drop role web_stranger")


# --- what a page of another site can do -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "HERE"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_a_form_of_another_origin_is_refused(
    queue: Queue, reader: Visitor, headers: dict[str, str], status: int
) -> None:
    path = f"/tasks/{queue.push({'secret': 'abracadabra'}).id}"
    form = {"form_token": reader.form_token(path)}
    given = {name: value.replace("HERE", reader.origin) for name, value in headers.items()}
    answer = reader.post(f"{path}/reveal", form, given)
    assert answer.status == status
    assert ("abracadabra" in answer.text) == (status == 200)


def test_an_old_browser_is_known_by_its_origin(queue: Queue, reader: Visitor) -> None:
    path = f"/tasks/{queue.push({}).id}"
    body = f"form_token={reader.form_token(path)}".encode()
    for origin, status in ((reader.origin, 200), ("http://evil.example", 403), ("null", 403), (None, 403)):
        headers = {"Content-Type": "application/x-www-form-urlencoded"} | ({"Origin": origin} if origin else {})
        assert reader.ask("POST", f"{path}/reveal", body, headers).status == status, origin


def test_a_form_needs_the_token_of_its_session(dsn: str, queue: Queue, reader: Visitor) -> None:
    path = f"/tasks/{queue.push({}).id}"
    good = reader.form_token(path)
    with serving(dsn, env={}) as address:
        foreign = visit(address).form_token(path)
    for token in ("", "x", good[:-1], foreign, "ü"):
        assert reader.post(f"{path}/reveal", {"form_token": token}).status == 403, token
    assert reader.post(f"{path}/reveal").status == 403
    assert reader.get(f"{path}/reveal").status == 405  # nothing changes by GET


def test_every_answer_has_the_headers_that_protect_it(queue: Queue, reader: Visitor) -> None:
    for path in ("/", "/tasks", "/nothing", "/static/nothing", "/healthz", "/queues/nothing"):
        headers = reader.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'"), path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store" or path.startswith("/static"), path
    page = reader.get("/").text
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|\sstyle=|https?://", page)


def test_another_name_for_this_server_is_refused(queue: Queue, reader: Visitor) -> None:
    assert reader.get("/", {"Host": "evil.example"}).status == 421
    assert reader.get("/", {"Host": f"localhost:{reader.port}"}).status == 200


# --- hostile texts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_tasks_are_never_markup(
    app: Penstock, queue: Queue, sql: psycopg.Connection, dsn: str, text: str
) -> None:
    one = queue.push({text: [text, {"inner": text}]}, subject=text, kind=text)
    queue.settle(queue.claim(1, worker=text), {one.id: Outcome.dead(f"{text}\n{text}")})
    app.beat(text, ["work"], host=text)
    app.set_schedule(text, "0 6 * * *", queue="work", kind=text)
    with serving(dsn, "--level", "operator") as address:
        visitor = visit(address)
        paths = ["/", "/queues/work", f"/tasks/{one.id}", "/tasks?queue=work&state=dead", "/failures", "/workers"]
        paths += ["/schedules", "/audit", "/tasks?kind=%3Cscript%3Ealert(1)%3C/script%3E&queue=work"]
        for path in paths:
            page = visitor.get(path)
            assert page.status == 200, path
            for one_text in HOSTILE:
                if "<" in one_text:
                    assert one_text not in page.text, path
            shown = re.sub(r'<input type="hidden"[^>]*>', "", page.text)  # these carry names back as they are
            assert not re.search(r"<(script(?! src=)|img(?! src=\"/static/)|svg/onload)|<[^>]*\son\w+=", shown), path
            assert not re.search("[\x07\x1b\u202e]", shown), path
            assert "49" not in page.words or "7*7" in page.words


def test_no_path_leads_out_of_the_static_files(queue: Queue, reader: Visitor) -> None:
    for path in (
        "/static/../site.py",
        "/static/..%2fsite.py",
        "/static/%2e%2e/%2e%2e/errors.py",
        "/static//etc/passwd",
        "/static/style.css",
        "/static/style-000000000000.css",
        "/static/style.css%00",
    ):
        assert reader.get(path).status == 404, path
    found = re.search(r'href="(/static/style-[0-9a-f]{12}\.css)"', reader.get("/").text)
    assert found
    style = reader.get(found[1])
    assert (style.status, style.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")


# --- large and slow ---------------------------------------------------------------------------------------------------


def test_a_body_of_100_mb_is_refused_at_once(queue: Queue, reader: Visitor) -> None:
    with socket.create_connection((reader.host, reader.port)) as line:
        line.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 413")


def test_a_body_without_a_length_is_cut_off_at_the_limit(queue: Queue, reader: Visitor) -> None:
    sent = 0
    with socket.create_connection((reader.host, reader.port)) as line:
        line.settimeout(20)
        line.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(1600):  # 100 MB
                line.sendall(b"10000\r\n" + bytes(65536) + b"\r\n")
                sent += 65536
        except OSError:
            pass
        assert sent < 50 << 20, "the server read on"
    assert reader.get("/").status == 200


def test_a_client_that_sends_its_head_slowly_is_cut_off(queue: Queue, reader: Visitor) -> None:
    began = time.monotonic()
    with socket.create_connection((reader.host, reader.port)) as line:
        line.settimeout(60)
        line.sendall(b"GET / HTTP/1.1\r\nHost: local")
        closed = line.recv(10)
    assert closed == b""
    assert time.monotonic() - began >= 5
    assert reader.get("/").status == 200


def test_a_client_that_sends_its_body_slowly_is_cut_off(queue: Queue, reader: Visitor) -> None:
    with socket.create_connection((reader.host, reader.port)) as line:
        line.settimeout(guard.BODY_SECONDS + 60)
        line.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\na")
        assert line.recv(100).startswith(b"HTTP/1.1 408")


def test_a_hundred_streams_that_are_not_read_do_not_stop_the_others(queue: Queue, reader: Visitor) -> None:
    (name, cookie), *_ = reader.cookies.items()
    with ExitStack() as stack:
        for _ in range(100):
            line = stack.enter_context(socket.create_connection((reader.host, reader.port)))
            line.sendall(
                f"GET /live?topic=promises HTTP/1.1\r\nHost: localhost\r\nCookie: {name}={cookie}\r\n\r\n".encode()
            )
        head = line.recv(20)
        assert head.startswith(b"HTTP/1.1 200")
        assert reader.get("/").status == 200


def test_viewers_cost_the_database_what_one_costs(queue: Queue, sql: psycopg.Connection, reader: Visitor) -> None:
    """Fifty streams for five seconds: the board is read about once a second, not fifty times."""
    (name, cookie), *_ = reader.cookies.items()
    count = "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = 'board'"
    sql.execute("alter system set track_functions = 'pl'")
    sql.execute("select pg_reload_conf()")
    try:
        time.sleep(1)
        with ExitStack() as stack:
            for _ in range(50):
                line = stack.enter_context(socket.create_connection((reader.host, reader.port)))
                line.sendall(
                    f"GET /live?topic=promises HTTP/1.1\r\nHost: localhost\r\nCookie: {name}={cookie}\r\n\r\n".encode()
                )
            before = sql.execute(count).fetchone()
            time.sleep(6)
            after = sql.execute(count).fetchone()
        assert before
        assert after
        assert 0 < after[0] - before[0] <= 12
    finally:
        sql.execute("alter system reset track_functions")
        sql.execute("select pg_reload_conf()")


# --- mounted in another application -----------------------------------------------------------------------------------

MOUNTED = """
import os, sys, uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from penstock.web import Visitor, application

async def access(request):
    return Visitor("operator", request.headers["x-me"]) if "x-me" in request.headers else "none"

inner = application(os.environ["PENSTOCK_DSN"], access=access)
uvicorn.run(Starlette(routes=[Mount("/ops/queues", inner)]), port=int(sys.argv[1]), log_level="error")
"""


def test_mounted_in_another_application_every_link_stays_below_its_path(queue: Queue, dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    one = queue.push({})
    process = subprocess.Popen(
        [sys.executable, "-c", MOUNTED, str(port)], env={**os.environ, "PENSTOCK_DSN": dsn}, stdout=subprocess.DEVNULL
    )
    try:
        visitor = Visitor("127.0.0.1", port)
        wait_until_open(port)
        me = {"X-Me": "ann"}
        assert visitor.get("/ops/queues/").status == 403
        for path in ("/", "/queues/work", "/tasks?queue=work", f"/tasks/{one.id}", "/failures", "/workers"):
            page = visitor.get(f"/ops/queues{path}", me)
            assert page.status == 200, path
            links = re.findall(r'(?:href|src|action|data-live|data-zoom)="([^"#?][^"]*)"', page.text)
            assert links
            assert all(link.startswith("/ops/queues/") for link in links), path
            for link in {link for link in links if "/static/" in link}:
                assert visitor.get(link).status == 200
        assert "operator · ann" in page.words
    finally:
        process.terminate()
        process.wait(20)


def wait_until_open(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server did not start")
