"""Runs every block of README and docs as it is written. The pages that need Spark are in tests/spark/test_docs.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT, Reading, agrees, blocks_of
from penstock.cli.commands.work import SUPERVISORS
from scripts import make_reference
from stages import SPARK, STAGES, stage_of

WRITTEN = [page for page in sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")]) if page.parent.name != "reference"]
PAGES = [page for page in WRITTEN if blocks_of(page)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) not in SPARK], ids=name_of)
def test_the_page_runs(page: Path, tmp_path: Path, dsn: str) -> None:
    reading = Reading(page, stage_of(name_of(page)), tmp_path, dsn)
    try:
        reading.run()
    finally:
        reading.close()


def test_the_reference_is_what_the_code_says(tmp_path: Path) -> None:
    make_reference.main(tmp_path)
    for name in make_reference.PAGES:
        written = ROOT / "docs/reference" / name
        assert written.read_text("utf-8") == (tmp_path / name).read_text("utf-8"), f"{name}: run `make reference`"


def test_every_variable_of_the_environment_is_explained() -> None:
    """Their names are found in the code as texts, so no name may be composed from parts."""
    code = {path: path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")}
    assert [path for path, text in code.items() if "PENSTOCK_{" in text] == []
    page = make_reference.settings()
    for name in (*re.findall(r"[\"'](PENSTOCK_[A-Z_]+)[\"']", "".join(code.values())), *SUPERVISORS):
        assert page.count(f"| `{name}` |") == 1, name


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """The build is strict: a link to a missing page or section is an error."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = "".join(page.read_text("utf-8") for page in tmp_path.rglob("*.html"))
    fetched = re.findall(r'<(?:script|img|link)[^>]* (?:src|href)="(https?:[^"]*)"', pages)
    assert not fetched, "the site is to be read without a network"


def test_every_stage_has_its_page() -> None:
    assert {*STAGES, *SPARK} <= {name_of(page) for page in PAGES}


def test_how_output_is_compared() -> None:
    assert agrees("mail  1  2.1s\n", "mail 7 30ms")
    assert agrees("a\nb\nc\n", "a\n…\nc")
    assert agrees("index on x\n", "index on …")
    assert not agrees("1 created\n", "1 skipped")
    assert not agrees("1 created\nand more\n", "1 created")
