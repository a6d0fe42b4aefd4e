"""What mkdocs is told about this repository: pages that live outside docs/, and links to code, which has no page."""

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
    """Pages of the navigation that are not written yet are left out; what it does not name comes last."""
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
    made = target in {*PAGES.values(), "decisions/index.md"} or target.startswith("examples/")
    return entry if made or (ROOT / "docs" / target).exists() else None


def on_files(files: Files, config: Any) -> Files:
    """The pages from elsewhere, the list of decisions, and each example as a page that shows it."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=moved((ROOT / source).read_text("utf-8"))))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
    shown = []
    for example in sorted((ROOT / "examples").iterdir()):
        if example.suffix in (".py", ".sql"):
            target = f"examples/{example.name}.md"
            shown.append({example.name: target})
            files.append(File.generated(config, target, content=as_page(example)))
    config.nav.insert(3, {"Examples": shown})
    return files


def moved(text: str) -> str:
    """A page of the root as a page of docs/."""
    return LINK.sub(lambda link: f"[{link[1]}](../{link[2]}{link[3] or ''})", text)


def decisions() -> str:
    titles = {
        path.name: path.read_text("utf-8").partition("\n")[0].lstrip("# ")
        for path in sorted((ROOT / "docs/decisions").glob("0*.md"))
    }
    return "# Decisions\n\nWhy it is as it is, with figures.\n\n" + "".join(
        f"- [{title}]({name})\n" for name, title in titles.items()
    )


def as_page(example: Path) -> str:
    language = {".py": "python", ".sql": "sql"}[example.suffix]
    return f"# {example.name}\n\n```{language}\n{example.read_text('utf-8')}```\n"


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    return LINK.sub(lambda link: led(link, page.file.src_uri, files), markdown)


def led(link: re.Match[str], source: str, files: Files) -> str:
    """The link to a page there is; to code, which has none here, only its words."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), link[2]))
    inside = {"docs/" + name for name in files.src_uris}
    page = {source: "docs/" + name for source, name in PAGES.items()}.get(target, target)
    page = f"docs/{page}.md" if page.startswith("examples/") else page
    if page in inside:
        here = posixpath.join("docs", posixpath.dirname(source))
        return f"[{link[1]}]({posixpath.relpath(page, here)}{link[3] or ''})"
    outside = (ROOT / target).exists() and not target.startswith("docs/")
    return f"{link[1]} (`{target}`)" if outside else link[0]
