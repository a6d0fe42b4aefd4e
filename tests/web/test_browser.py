"""The dashboard in a real Chromium: live, by keyboard, narrow and dark, with hostile texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from browser import Tab, browsing
from dashboard import serving
from penstock import Outcome, Penstock

HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
SCREENS: tuple[str, ...] = (
    "/",
    "/queues/mail",
    "/tasks?queue=mail&state=dead",
    "/failures",
    "/workers",
    "/schedules",
    "/doctor",
    "/audit",
)
# The contrast of every text with its background, by WCAG: 4.5, or 3 for large letters.
CONTRAST = """[...document.querySelectorAll('body *')].filter(one => [...one.childNodes].some(
    node => node.nodeType === 3 && node.textContent.trim()) && one.getClientRects().length
    && !one.closest('svg')).map(one => {
  const canvas = CONTRAST_CANVAS.getContext('2d', { willReadFrequently: true })
  const parse = (text) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1)
    return [...canvas.getImageData(0, 0, 1, 1).data]
  }
  const light = (rgb) => rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, n) => sum + v * [.2126, .7152, .0722][n], 0)
  let back = one, colour = [0, 0, 0, 0]
  while (back && (colour = parse(getComputedStyle(back).backgroundColor))[3] < 255) back = back.parentElement
  const pair = [light(parse(getComputedStyle(one).color)), light(colour)].sort((a, b) => b - a)
  const style = getComputedStyle(one), size = parseFloat(style.fontSize)
  const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700)
  return { text: one.textContent.trim().slice(0, 40), ratio: (pair[0] + .05) / (pair[1] + .05), least: large ? 3 : 4.5 }
}).filter(one => one.ratio < one.least)"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browsing() as found:
        found.resize(1280)
        yield found


@pytest.fixture
def address(app: Penstock, dsn: str, sql: psycopg.Connection) -> Iterator[str]:
    """A dashboard of a database in which something of everything happens, with hostile texts."""
    mail = app.create_queue("mail", sla="30s")
    app.create_queue("calm", sla="1h")
    ids = [mail.push({HOSTILE: HOSTILE}, subject=f"{HOSTILE}{n}", kind=HOSTILE).id for n in range(3)]
    mail.settle(mail.claim(1, worker=HOSTILE), {ids[0]: Outcome.dead(HOSTILE)})
    app.beat(HOSTILE, ["mail"], slots=2, busy=1)
    app.set_schedule(HOSTILE, "0 6 * * *", queue="mail", kind=HOSTILE)
    sql.execute(
        "insert into penstock.sample (queue_id, at, planned, pending, active, done, dead, cancelled, oldest_age, sla,"
        " workers, totals)"
        " select q.id, date_bin('10 s', now(), 'epoch') - n * interval '10 s', 0, 5 + n, 1,"
        " 0, 0, 0, make_interval(secs => n), q.sla, 2, '{}' from generate_series(0, 300) as n, penstock.queue as q"
    )
    with serving(dsn, "--level", "operator") as found:
        yield found


def origin(address: str) -> str:
    return address.partition("/?")[0]


def until(tab: Tab, script: str, within: float = 60) -> Any:
    ends = time.monotonic() + within
    while not (found := tab.ask(script)):
        assert time.monotonic() < ends, script
        time.sleep(0.1)
    return found


def test_every_screen_in_a_browser(tab: Tab, address: str, app: Penstock) -> None:
    """No script of a text runs, nothing is refused by the policy, nothing is fetched from elsewhere, nothing is wider
    than the screen, every text has contrast, and every control can be reached by keyboard and has a name."""
    tab.complaints.clear()
    tab.requests.clear()
    tab.visit(address)
    task = app.queue("mail").tasks(state="dead")[0].id
    for scheme in ("light", "dark"):
        tab.dress(scheme)
        for path in (*SCREENS, f"/tasks/{task}"):
            tab.visit(origin(address) + path)
            for width in (360, 1280):
                tab.resize(width)
                assert tab.ask("document.documentElement.scrollWidth") <= width, (path, width)
            tab.ask("window.CONTRAST_CANVAS = document.createElement('canvas'), 1")
            assert tab.ask(CONTRAST) == [], (path, scheme)
            assert (
                tab.ask(
                    "[...document.querySelectorAll('a, button, input, select')].filter(one =>"
                    " one.tabIndex < 0 || !(one.textContent.trim() || one.labels?.length"
                    " || one.ariaLabel || one.type === 'hidden')"
                    ").map(one => one.outerHTML)"
                )
                == []
            ), path
            assert tab.ask("document.querySelectorAll('h1').length") == 1, path
    assert tab.complaints == []
    assert [one for one in tab.requests if not one.startswith((origin(address), "data:"))] == []
    tab.dress("light")


def test_the_page_follows_what_happens(tab: Tab, address: str, app: Penstock) -> None:
    tab.visit(address)
    until(tab, "!document.getElementById('pulse').hidden")
    waiting = "document.querySelector('.queues tbody tr th + td + td + td + td')?.textContent"
    names = "[...document.querySelectorAll('.queues tbody th')].map(one => one.textContent.trim())"
    assert sorted(tab.ask(names)) == ["calm", "mail"]
    tab.ask("document.querySelector('.queues a[href$=\"/queues/calm\"]').focus()")
    app.queue("calm").push_many([{}] * 1234)
    until(tab, "document.querySelector('.queues').textContent.includes('1,234')")
    assert tab.ask("document.activeElement.getAttribute('href')") == "/queues/calm"  # although the table is new
    assert tab.ask(waiting) is not None


def test_a_broken_stream_is_said_and_mends_itself(tab: Tab, app: Penstock, dsn: str, tmp_path: Path) -> None:
    app.create_queue("mail", sla="30s")
    env = {"PENSTOCK_WEB_SECRET": "0123456789abcdef0123456789abcdef"}
    with serving(dsn, env=env) as address:
        tab.visit(address)
        until(tab, "!document.getElementById('pulse').hidden")
        port = origin(address).rpartition(":")[2]
    said = until(tab, "document.getElementById('stale').textContent")
    assert said.startswith("Stale since ")
    assert "no connection" in said
    assert not tab.ask("document.getElementById('stale').hidden")
    with serving(dsn, "--port", port, env=env):
        until(tab, "document.getElementById('stale').hidden")
    tab.complaints.clear()


def test_a_chart_shows_values_and_zooms(tab: Tab, address: str) -> None:
    tab.resize(1280, 1400)
    tab.visit(address)
    tab.visit(f"{origin(address)}/queues/mail?span=1h")
    room = tab.ask(
        "(r => [r.left, r.top, r.width, r.height])(document.querySelector('.marks').getBoundingClientRect())"
    )
    x, y = room[0] + 0.8 * room[2], room[1] + room[3] / 2
    tab.point(x, y)
    tip = until(tab, "document.querySelector('.tip:not([hidden])')?.textContent")
    assert "oldest waiting:" in tip
    tab.tell("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
    tab.tell("Input.dispatchMouseEvent", type="mouseMoved", x=room[0] + 0.95 * room[2], y=y, button="left")
    assert not tab.ask("document.querySelector('.band').hidden")
    tab.browser.seen.clear()
    tab.tell("Input.dispatchMouseEvent", type="mouseReleased", x=room[0] + 0.95 * room[2], y=y, button="left")
    tab.browser.until(lambda one: one["method"] == "Page.loadEventFired")
    begins, ends = tab.ask(
        "[Number(document.querySelector('.charts').dataset.begins),"
        " Number(document.querySelector('.charts').dataset.ends)]"
    )
    assert ends - begins == pytest.approx(0.15 * 3600, abs=30)


def test_without_javascript_every_screen_reads_the_same(tab: Tab, address: str) -> None:
    tab.visit(address)
    tab.tell("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.visit(f"{origin(address)}/queues/mail")
        assert "Age of the oldest task" in tab.ask("document.body.textContent")
        assert tab.ask("document.querySelectorAll('.marks path').length") > 3
        assert tab.ask("document.querySelectorAll('details').length") > 3  # the values, as tables
    finally:
        tab.tell("Emulation.setScriptExecutionDisabled", value=False)
