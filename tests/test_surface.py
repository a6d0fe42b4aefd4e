"""The public surface: each public name is described, and the types of its signatures can be imported."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef, TypeVar

import pytest

import penstock
import penstock.pipeline
import penstock.scaler
import penstock.spark
from pages import ROOT, blocks_of
from penstock.client.database import Database
from scripts.make_reference import MADE, PLACE, find_alias, is_error

PACKAGES = (penstock, penstock.scaler, penstock.spark, penstock.pipeline)
PAGES = dict(zip(PACKAGES, ("python.md", "scaler.md", "spark.md", "pipeline.md"), strict=True))
NAMES = [(package, name) for package in PACKAGES for name in package.__all__]
# A stage gets the pool of its pipeline, and only passes it on.
OPAQUE: tuple[object, ...] = (Database,)

names = pytest.mark.parametrize(("package", "name"), NAMES, ids=lambda one: getattr(one, "__name__", one))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_public_names_are_there(package: ModuleType) -> None:
    assert all(hasattr(package, name) for name in package.__all__)
    assert list(package.__all__) == sorted(package.__all__)


@names
def test_a_public_name_has_a_docstring(package: ModuleType, name: str) -> None:
    found = getattr(package, name)
    if is_alias(found):
        assert find_alias(package, name).meaning, name
        return
    assert found.__doc__, name
    assert not found.__doc__.startswith(f"{name}("), f"{name} has only the docstring of a dataclass"
    for member, function in members(found):
        assert inspect.getdoc(function), f"{name}.{member} has no docstring"


@names
def test_a_public_name_is_in_the_reference(package: ModuleType, name: str) -> None:
    if is_error_of(package, name):
        assert f"`{name}` |" in (PLACE / "errors.md").read_text("utf-8")
        return
    page = (PLACE / PAGES[package]).read_text("utf-8")
    if package is penstock and name.startswith("Async"):
        assert f"`{name}`" in page  # it is like the class of the same name without Async
        return
    assert len(re.findall(rf"^###? {name}$", page, re.MULTILINE)) == 1, name


@names
def test_the_types_of_a_public_name_can_be_imported(package: ModuleType, name: str) -> None:
    for where, module, hint in hints(package, name):
        for word, found in words_of(hint, module):
            homes = [getattr(home, word) for home in PACKAGES if word in home.__all__]
            assert found in homes, f"{where}: {word} of {module} cannot be imported from a public package"


def test_classes_that_users_only_receive_show_no_constructor() -> None:
    assert {*MADE} <= {name for _, name in NAMES}
    for name in ("Queue", "Handler", "Context", "Backlog", "QueueStatus"):
        assert f"\n{name}(" not in (PLACE / "python.md").read_text("utf-8")


def test_every_name_of_penstock_is_in_an_example_of_the_docs() -> None:
    """tests/test_docs.py runs the examples."""
    pages = [ROOT / "README.md", *(page for page in ROOT.glob("docs/*.md"))]
    code = "\n".join(block.text for page in pages for block in blocks_of(page) if block.language == "python")
    missing = [name for name in penstock.__all__ if not re.search(rf"\b{name}\b", code)]
    assert missing == [], "add them to docs/types.md, or do not export them"


def test_the_page_of_types_is_typed(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text("\n".join(block.text for block in blocks_of(ROOT / "docs/types.md")), "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def is_alias(found: object) -> bool:
    ours = str(getattr(found, "__module__", "")).startswith("penstock")
    return not (inspect.ismodule(found) or (ours and (inspect.isclass(found) or inspect.isfunction(found))))


def is_error_of(package: ModuleType, name: str) -> bool:
    return package is penstock and is_error(name)


def members(found: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the public functions of a module, or the public methods and properties of a class and its bases."""
    if inspect.ismodule(found):
        yield from (pair for pair in inspect.getmembers(found, inspect.isfunction) if is_own(found, *pair))
        return
    for base in found.__mro__ if inspect.isclass(found) else ():
        if not base.__module__.startswith("penstock"):
            continue
        for name, value in vars(base).items():
            function = unwrapped(value)
            if not name.startswith("_") and function is not None:
                yield name, function


def is_own(module: ModuleType, name: str, function: Callable[..., Any]) -> bool:
    return function.__module__ == module.__name__ and not name.startswith("_")


def unwrapped(value: object) -> Callable[..., Any] | None:
    if isinstance(value, property):
        return value.fget
    if isinstance(value, functools.cached_property):
        return value.func
    if isinstance(value, (classmethod, staticmethod)):
        return value.__func__
    return value if inspect.isfunction(value) else None


def hints(package: ModuleType, name: str) -> Iterator[tuple[str, str, str]]:
    """Yields each annotation of a public name as it is written, with the module whose names it uses."""
    found = getattr(package, name)
    if is_alias(found):
        alias = find_alias(package, name)
        yield name, alias.module, alias.text
        return
    functions = [("", found)] if inspect.isfunction(found) else [*members(found)]
    if name in MADE and inspect.isfunction(found.__init__):
        functions.append(("", found.__init__))
    for member, function in functions:
        module = inspect.unwrap(function).__module__
        if module.startswith("penstock"):
            yield from ((f"{name}.{member}", module, text(hint)) for hint in function.__annotations__.values())
    for base in found.__mro__ if inspect.isclass(found) else ():
        if base.__module__.startswith("penstock") and has_fields(found):
            fields = inspect.get_annotations(base)
            yield from ((f"{name}.{one}", base.__module__, text(hint)) for one, hint in fields.items() if one[0] != "_")


def has_fields(found: type) -> bool:
    return dataclasses.is_dataclass(found) or issubclass(found, tuple) or typing.is_typeddict(found)


def text(hint: object) -> str:
    hint = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
    assert hint is None or isinstance(hint, str), hint
    return hint or "None"


def words_of(hint: str, module: str) -> Iterator[tuple[str, object]]:
    """Yields the names of an annotation that Penstock defines, and what they stand for. A text in it that is a name,
    such as `"PassCounts"`, is one too."""
    known = namespace(module)
    for node in ast.walk(ast.parse(hint, mode="eval")):
        word = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
        if not isinstance(word, str) or hasattr(builtins, word) or word not in known:
            continue
        if not is_foreign(word, known[word]):
            yield word, known[word]


def is_foreign(word: str, found: object) -> bool:
    """Whether a type belongs to Python or to another package, as does a form of its generic class, such as
    `NDArray[float64]`."""
    if isinstance(found, (ModuleType, TypeVar)) or getattr(typing, word, None) is not None or found in OPAQUE:
        return True
    kind = typing.get_origin(found) or found
    package = getattr(kind, "__module__", "").partition(".")[0]
    inside = ("penstock",) if isinstance(found, type) else ("penstock", "builtins", "typing", "types", "collections")
    return package not in inside


@functools.cache
def namespace(module: str) -> dict[str, Any]:
    """Returns the names of a module, also those that it imports for annotations only."""
    loaded = import_module(module)
    found = dict(vars(loaded))
    for node in ast.walk(ast.parse(inspect.getsource(loaded))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                if (one.asname or one.name) not in found:
                    found[one.asname or one.name] = getattr(import_module(node.module), one.name, None)
    return found
