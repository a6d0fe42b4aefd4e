"""Hooks of mkdocs for this repository: pages from outside docs/, and links to code, which has no page."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"ARCHITECTURE.md": "architecture.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Leaves out pages of the navigation that do not exist, and puts pages that it does not name last."""
    named = set(pages_of(config.nav))
    config.nav = [kept for entry in config.nav if (kept := existing(entry))]
    others = [path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in named]
    if others:
        config.nav.append({"More": others})
    return config


def pages_of(entries: list[dict[str, Any]]) -> Iterator[str]:
    for entry in entries:
        for target in entry.values():
            yield from pages_of(target) if isinstance(target, list) else [target]


def existing(entry: dict[str, Any]) -> dict[str, Any] | None:
    ((title, target),) = entry.items()
    if isinstance(target, list):
        return {title: [kept for one in target if (kept := existing(one))]}
    made = target in PAGES.values() or target.startswith("examples/")
    return entry if made or (ROOT / "docs" / target).exists() else None


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from elsewhere, and a page for each example."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=moved((ROOT / source).read_text("utf-8"))))
    shown = []
    for example in sorted((ROOT / "examples").iterdir()):
        if example.suffix in (".py", ".sql"):
            target = f"examples/{example.name}.md"
            shown.append({example.name: target})
            files.append(File.generated(config, target, content=as_page(example)))
    config.nav.insert(3, {"Examples": shown})
    return files


def moved(text: str) -> str:
    """Returns a page of the root directory with the links of a page in docs/."""
    return LINK.sub(lambda link: f"[{link[1]}](../{link[2]}{link[3] or ''})", text)


def as_page(example: Path) -> str:
    language = {".py": "python", ".sql": "sql"}[example.suffix]
    return f"# {example.name}\n\n```{language}\n{example.read_text('utf-8')}```\n"


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    return LINK.sub(lambda link: led(link, page.file.src_uri, files), markdown)


def led(link: re.Match[str], source: str, files: Files) -> str:
    """Returns the link if its page exists. A link to code, which has no page, becomes plain text."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), link[2]))
    inside = {"docs/" + name for name in files.src_uris}
    page = {source: "docs/" + name for source, name in PAGES.items()}.get(target, target)
    page = f"docs/{page}.md" if page.startswith("examples/") else page
    if page in inside:
        here = posixpath.join("docs", posixpath.dirname(source))
        return f"[{link[1]}]({posixpath.relpath(page, here)}{link[3] or ''})"
    outside = (ROOT / target).exists() and not target.startswith("docs/")
    return f"{link[1]} (`{target}`)" if outside else link[0]
