from __future__ import annotations

from pathlib import Path

import pytest

from penstock.embedded import settings
from penstock.embedded.settings import queue_settings


@pytest.mark.parametrize(("gigabytes", "buffers"), [(0.25, "128MB"), (4, "512MB"), (256, "2048MB")])
def test_shared_buffers_are_an_eighth_within_limits(
    gigabytes: float, buffers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "memory", lambda: int(gigabytes * 1024**3))
    assert queue_settings(Path("/run"), 5432)["shared_buffers"] == buffers


def test_a_container_has_less_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = settings.memory()
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("536870912\n")
    monkeypatch.setattr(settings, "CGROUP_LIMITS", (str(tmp_path / "max"), str(tmp_path / "none")))
    assert settings.memory() >= whole
    monkeypatch.setattr(settings, "CGROUP_LIMITS", (str(tmp_path / "limit"),))
    assert settings.memory() == 536870912
