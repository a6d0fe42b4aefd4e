"""Settings of PostgreSQL for a queue. Durability keeps PostgreSQL's defaults: fsync, full pages, synchronous commit."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import ConfigError

MB = 1024 * 1024
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def queue_settings(socket_dir: Path, port: int) -> dict[str, str]:
    """Returns the settings of the embedded server."""
    return {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": str(socket_dir),
        "unix_socket_permissions": "0700",
        "max_connections": "250",
        "shared_buffers": f"{min(max(memory() // 8 // MB, 128), 2048)}MB",
        "dynamic_shared_memory_type": shared_memory_type(),
        # A bulk push writes gigabytes of WAL in seconds. Fewer checkpoints mean fewer full pages.
        "max_wal_size": "8GB",
        "min_wal_size": "512MB",
        "checkpoint_timeout": "15min",
        "wal_compression": "off",
        "jit": "off",
        "random_page_cost": "1.1",
        # Every task leaves dead rows behind, so vacuum runs early and without pauses.
        "autovacuum_naptime": "10s",
        "autovacuum_vacuum_cost_delay": "0",
        "search_path": "public",  # without "$user", which is penstock: the user's tables would be in Penstock's schema
        "timezone": "UTC",
        "log_timezone": "UTC",
        "logging_collector": "off",
        "log_destination": "stderr",
        "log_line_prefix": "%m [%p] ",
        # Otherwise the statement, "Failing row contains …" and "COPY …, line 3: …" would put payloads into the log.
        "log_min_error_statement": "panic",
        "log_error_verbosity": "terse",
    }


def memory() -> int:
    """Returns the memory of this machine, or the limit of the container if that is lower."""
    limits = [path.read_text().strip() for path in map(Path, CGROUP_LIMITS) if path.is_file()]
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(physical, *(int(limit) for limit in limits if limit.isdigit()), physical)


def shared_memory_type() -> str:
    """Returns `posix`, or `mmap` if /dev/shm is missing or small.

    Docker provides 64 MB of /dev/shm, in which one parallel hash join runs out of space; files do not.
    """
    shm = Path("/dev/shm")  # noqa: S108 - it is read, not written to
    if sys.platform != "linux":
        return "posix"
    if not shm.is_dir():
        return "mmap"
    space = os.statvfs(shm)
    return "posix" if space.f_blocks * space.f_frsize > 64 * MB else "mmap"


def render(settings: Mapping[str, str]) -> str:
    """Returns the settings as the text of a configuration file."""
    return "# Written anew at every start.\n" + "".join(
        f"{check_name(k)} = {quote_setting(v)}\n" for k, v in settings.items()
    )


def check_name(name: str) -> str:
    """Returns the name of a setting, or refuses it."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name):
        raise ConfigError(f"{name!r} is not the name of a PostgreSQL setting")
    return name


def quote_setting(value: str) -> str:
    """Returns a value as a quoted string of the configuration file."""
    escaped = str(value).replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n")
    return f"'{escaped}'"
