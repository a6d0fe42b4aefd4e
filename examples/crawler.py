"""A crawler: pages lead to other pages and to pictures. A subject is unique in its queue, so every address is fetched
once, however many pages link to it. The links of a page are pushed in the transaction that ends its task.

penstock up
python examples/crawler.py        # crawls its own site, 40 pages; for yours, `penstock work examples.crawler:app`
"""

import re
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urljoin

from penstock import Context, NewTask, Penstock

app = Penstock()


@app.task(queue="pages", timeout="30s", run="thread")
def visit(url: str, context: Context) -> None:
    html = fetch(url).decode()
    pages = {urljoin(url, link) for link in re.findall(r'href="([^"]+)"', html)}
    pictures = {urljoin(url, link) for link in re.findall(r'src="([^"]+)"', html)}
    with context.transaction() as connection:  # the page is done and its links are pushed, or neither
        visit.push_many(named(pages), connection=connection)
        download.push_many(named(pictures), connection=connection)


@app.task(queue="pictures")
def download(url: str) -> None:
    print(f"{len(fetch(url))} bytes from {url}")


def named(urls: set[str]) -> list[NewTask]:
    return [NewTask({"url": url}, subject=url) for url in sorted(urls)]


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        return bytes(response.read())


class Site(BaseHTTPRequestHandler):
    """Page n links to the pages 2n, 2n + 1 and 0, and shows one of five pictures."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        number = int(self.path.rpartition("/")[2])
        links = "".join(f'<a href="/page/{n % 40}">' for n in (0, 2 * number, 2 * number + 1))
        picture = f'<img src="/picture/{number % 5}">'
        self.wfile.write(b"\x89PNG" if "picture" in self.path else (links + picture).encode())

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


if __name__ == "__main__":
    app.init()
    # Done tasks are kept for a while: as long as their subjects are there, no address is fetched twice.
    pages = app.create_queue("pages", keep_done="1d", exist_ok=True)
    pictures = app.create_queue("pictures", keep_done="1d", exist_ok=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        start = f"http://127.0.0.1:{site.server_port}/page/1"
        visit.push(start, subject=start)
        app.drain_inline()  # in this process; in production workers do it
        site.shutdown()
    print(f"{pages.status().done} pages visited, {pictures.status().done} pictures downloaded")
