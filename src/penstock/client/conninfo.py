"""DSNs: how they are checked, completed and shown."""

from __future__ import annotations

from typing import Any, cast

import psycopg
from psycopg import pq

from penstock.errors import ConfigError

# Autocommit is on, because Penstock sends BEGIN and COMMIT itself. Nothing is prepared, because a pooler may stand
# between. The encoding is UTF-8, whatever the DSN, the environment, the role or the database says, because the binary
# values are UTF-8.
SETTINGS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,
    "application_name": "penstock",
    "client_encoding": "UTF8",
}
# With these, a network that drops every packet is noticed in half a minute, not in hours. Values in the DSN take
# precedence.
NOTICE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


def settings_for(dsn: str) -> dict[str, Any]:
    """Returns the connection settings for a DSN; settings in the DSN take precedence."""
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    return SETTINGS | {name: value for name, value in NOTICE.items() if name not in given}


def each_host(dsn: str) -> list[str]:
    """Returns one DSN for each host that may be the primary, in their order. It returns only the DSN itself if there is
    one host, or if the DSN does not ask for the primary."""
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    set_outside = {
        one.keyword.decode(): one.val.decode()
        for one in pq.Conninfo.get_defaults()
        if one.val and one.val != one.compiled
    }
    known = {**set_outside, **given}
    hosts, addresses, ports = (str(known.get(name) or "").split(",") for name in ("host", "hostaddr", "port"))
    count = max(len(hosts), len(addresses))
    wanted = known.get("target_session_attrs", "read-write")
    lists = [give_each_host(one, count) for one in (hosts, addresses, ports)]
    if count == 1 or wanted not in ("read-write", "primary") or None in lists:
        return [dsn]
    return [
        psycopg.conninfo.make_conninfo(
            dsn, host=host or None, hostaddr=address or None, port=port or None, target_session_attrs=wanted
        )
        for host, address, port in zip(*cast("list[list[str]]", lists), strict=True)
    ]


def give_each_host(values: list[str], count: int) -> list[str] | None:
    """Returns one value for each host, or None if there are more or fewer values, which libpq then reports."""
    return values if len(values) == count else values * count if len(values) == 1 else None


def for_other_drivers(dsn: str) -> str:
    """Returns the DSN with Penstock's settings in it, for another driver that uses libpq."""
    ours = ("autocommit", "prepare_threshold")
    given = {name: value for name, value in settings_for(dsn).items() if name not in ours}
    if len(each_host(dsn)) > 1 and "target_session_attrs" not in psycopg.conninfo.conninfo_to_dict(dsn):
        given["target_session_attrs"] = "read-write"
    return psycopg.conninfo.make_conninfo(dsn, **given)


def check_dsn(dsn: str, source: str = "dsn") -> dict[str, Any]:
    """Returns the parts of a DSN. An @ or / that is not escaped ends a password early, and libpq would print the rest
    of the password as the name of a host, port or database: such a DSN is refused here, and no part of it is shown."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise ConfigError(f"{source}: the DSN cannot be read", hint=DSN_HINT) from None
    if any("@" in str(parts.get(name, "")) for name in ("host", "port", "dbname")):
        raise ConfigError(f"{source}: an @ or / in its password is not escaped", hint="Write %40 for @ and %2F for /.")
    for port in str(parts.get("port") or "").split(","):
        if port and not (port.isdecimal() and 1 <= int(port) <= 65535):
            raise ConfigError(f"{source}: its port is not a number from 1 to 65535", hint=DSN_HINT)
    return parts


def for_service(name: str) -> str:
    """Returns the DSN of a service in a service file."""
    return psycopg.conninfo.make_conninfo(service=name)


def spell_out_dsn(dsn: str) -> str:
    """Returns the DSN with the values that libpq would take from the environment of this process, because another
    machine has another environment."""
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    if "service" in given:
        return dsn  # the service file contains the rest, on the other machine too
    found = {one.keyword.decode(): one.val.decode() for one in pq.Conninfo.get_defaults() if one.envvar and one.val}
    known = {name: value for name, value in found.items() if name in SPELT_OUT and name not in given}
    return psycopg.conninfo.make_conninfo(dsn, **known)


SPELT_OUT = ("host", "hostaddr", "port", "dbname", "user", "password", "sslmode", "sslrootcert", "service")
DSN_HINT = "Write postgresql://user@host:port/database, or key=value pairs."


def describe_dsn(dsn: str | None) -> str:
    """Returns where a DSN leads, without secrets."""
    try:
        parts = check_dsn(dsn or "")
    except ConfigError:
        return "a DSN that cannot be read"
    host, port, name = parts.get("host"), parts.get("port"), parts.get("dbname")
    return f"{name or 'the default database'} at {host or 'the default host'}{f':{port}' if port else ''}"
