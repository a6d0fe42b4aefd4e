"""Writes src/penstock/sql/schema.sql: the schema as PostgreSQL has it, for reviewers. A test compares it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock import Penstock, embedded

TARGET = Path(__file__).parent.parent / "src" / "penstock" / "sql" / "schema.sql"
NOISE = re.compile(r"^(--.*|\\(un)?restrict .*|SET .*|SELECT pg_catalog\.set_config.*)?$")


def dumped(pg_dump: Path, dsn: str) -> str:
    """Returns the schema without history's partitions, versions and session settings."""
    text = subprocess.run(  # noqa: S603 - our own pg_dump, no shell
        [pg_dump, "--schema-only", "--no-owner", "--schema=penstock", "--exclude-table=penstock.history_2*", dsn],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return "\n".join(line for line in text.splitlines() if not NOISE.match(line)) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        server = embedded.Server.start(Path(home) / "pg", environ=os.environ, settings={"fsync": "off"})
        try:
            with Penstock(server.dsn) as penstock:
                penstock.init()
            TARGET.write_text(dumped(server.binaries / "pg_dump", server.dsn), "utf-8")
        finally:
            server.stop()
    sys.stdout.write(f"{TARGET} written\n")


if __name__ == "__main__":
    main()
