"""The exports of `penstock.pipeline` and `penstock.spark`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock import pipeline, spark


@pytest.mark.parametrize("package", [pipeline, spark], ids=["pipeline", "spark"])
def test_every_exported_name_can_be_imported(package: object) -> None:
    names = list(getattr(package, "__all__"))  # noqa: B009 - of any module
    assert names == sorted(names)
    assert all(getattr(package, name) is not None for name in names)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(package, "nothing")  # noqa: B009 - it is not there


def test_the_packages_import_no_spark() -> None:
    code = "import penstock.pipeline, penstock.spark, sys; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
