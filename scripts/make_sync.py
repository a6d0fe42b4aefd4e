"""Makes the sync client from the async one (`make generate`). A test compares the files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "penstock"
WRITTEN_TWICE = ("concurrency_async.py", "borrowed_async.py")  # for threads and for asyncio
SOURCES = {
    source: source.with_name(source.name.replace("_async", ""))
    for source in sorted(ROOT.rglob("*_async.py"))
    if source.name not in WRITTEN_TWICE
}
RULES = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait\s+", ""),
    (r"\b(__)a(enter|exit)__", r"\1\2__"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAwaitable\[(T|bool|dict\[str, int\]|list\[TupleRow\])\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (
        r"\bAsync(AdminMethods|BulkWriter|Claimer|Connection(?:Pool)?|Cursor|Database|Handler|HostConnection|Hosts|Items|Penstock|Queue|TaskMethods)\b",
        r"\1",
    ),
    # Modules and functions: x_async has its counterpart in x.
    (r"\b(\w+)_async\b", r"\1"),
    # A pair of parentheses that was only needed for an await.
    (r"\((\w+(?:\.\w+)*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))\)(?=\.fetch|\.close|\[0\])", r"\1"),
)
HEADER = "# Made from {source} by scripts/make_sync.py (`make generate`): edit that, never this.\n"


def sync(source: Path) -> str:
    text = source.read_text("utf-8")
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    text = re.sub(r'(""".*?) *"""', r'\1"""', text, count=1)
    text = HEADER.format(source=source.relative_to(ROOT.parent.parent)) + text
    for command in (["check", "--fix-only", "--select", "I,UP", "-"], ["format", "-"]):
        ruff = [str(Path(sys.executable).parent / "ruff"), *command, "--stdin-filename", str(SOURCES[source])]
        done = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True)  # noqa: S603 - our own ruff
        text = done.stdout
    return text


def main() -> None:
    for source, target in SOURCES.items():
        target.write_text(sync(source), "utf-8")
        sys.stdout.write(f"{target.relative_to(ROOT.parent.parent)} written\n")


if __name__ == "__main__":
    main()
