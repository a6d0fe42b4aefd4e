"""The notebook of the examples, run by a real kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from penstock import Penstock

NOTEBOOK = Path(__file__).parents[2] / "examples/notebook.ipynb"


@pytest.mark.slow
def test_the_notebook(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DSN", dsn)
    ran = NotebookClient(nbformat.read(NOTEBOOK, 4), timeout=120).execute()  # type: ignore[no-untyped-call]
    said = "".join(str(output) for cell in ran.cells for output in cell.get("outputs", []))
    assert "created=1000" in said
    with Penstock(dsn) as app:
        totals = app.queue("letters").status().totals
    assert (totals["pushed"], totals["done"], totals["failed"]) == (1000, 999, 1)
