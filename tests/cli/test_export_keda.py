"""`penstock export keda` prints manifests that KEDA accepts."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg

from decisions import as_reader, store_decision
from penstock import Penstock
from penstock.client import scaling
from shell import Ran, each, is_one_block


def parsed(text: str) -> list[Any]:
    """Parses the YAML that the command writes: maps and lists by indentation, and JSON scalars. Anything else fails."""
    return [block([line for line in one.splitlines() if line], 0)[0] for one in text.split("---\n")]


def block(lines: list[str], indent: int) -> tuple[Any, list[str]]:
    blank = " " * indent
    if lines[0].startswith(f"{blank}- "):
        items = []
        while lines and lines[0].startswith(f"{blank}- "):
            inside = [lines[0].replace("- ", "  ", 1), *lines[1:]]
            if re.match(r" *[\w.]+:( |$)", inside[0]):
                item, lines = block(inside, indent + 2)
            else:
                item, lines = json.loads(inside[0]), inside[1:]
            items.append(item)
        return items, lines
    found = {}
    while lines and re.match(f"{blank}[^ -]", lines[0]):
        key, _, value = lines[0].strip().partition(":")
        if value:
            found[key], lines = json.loads(value), lines[1:]
        else:
            deeper = len(lines[1]) - len(lines[1].lstrip())
            assert deeper > indent
            found[key], lines = block(lines[1:], deeper)
    return found, lines


def test_keda_gets_what_it_reads(dsn: str, app: Penstock, sql: psycopg.Connection) -> None:
    app.create_queue("mail.high_prio", sla="60s")
    told = (
        "--app",
        "shop.tasks:app",
        "--image",
        "registry.example/shop:1.2",
        "--namespace",
        "shop",
        "--max-workers",
        "40",
    )
    text, value = each(
        ("export", "keda", "mail.high_prio", *told),
        ("export", "keda", "mail.high_prio", *told, "--json"),
    )
    assert (text.code, value.code) == (0, 0), text.err
    deployment, authentication, scaled = parsed(text.out)
    assert [deployment, authentication, scaled] == value.json
    name = "penstock-mail-high-prio"
    assert (deployment["kind"], deployment["metadata"]) == ("Deployment", {"name": name, "namespace": "shop"})
    assert "replicas" not in deployment["spec"], "KEDA sets the replicas"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][:5] == ["penstock", "work", "shop.tasks:app", "--queues", "mail.high_prio"]
    assert authentication["spec"]["secretTargetRef"] == [{"parameter": "connection", "name": "penstock", "key": "dsn"}]
    spec = scaled["spec"]
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert spec["scaleTargetRef"] == {"name": name}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["pollingInterval"], spec["cooldownPeriod"]) == (
        0, 40, 5, 60,
    )  # fmt: skip
    assert spec["fallback"] == {"failureThreshold": 3, "replicas": 1}
    (trigger,) = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("postgresql", "AverageValue")
    assert trigger["authenticationRef"] == {"name": authentication["metadata"]["name"]}
    assert trigger["metadata"]["targetQueryValue"] == "1"

    def asked() -> int:
        with as_reader(sql):
            row = sql.execute(trigger["metadata"]["query"].encode()).fetchone()
        assert row is not None
        assert isinstance(row[0], int)
        return row[0]

    assert asked() == 1, "without a decision the target is 1, not 0"
    store_decision(app, "mail.high_prio", workers=7)
    assert asked() == 7
    store_decision(app, "mail.high_prio", workers=0)
    assert asked() == 0
    scaling.leave_scaling(app._database, "a scaler")
    assert asked() == 1


def test_keda_refuses(dsn: str) -> None:
    commands: tuple[tuple[tuple[str, ...], str], ...] = (
        (("MAIL",), "MAIL"),
        (("mail", "--app", "a:b"), "needs both"),
        (("mail", "--image", "x"), "needs both"),
        (("mail", "--app", "a b", "--image", "x"), "app: 'a b'"),
        (("mail", "--app", "a:b", "--image", "x y"), "image: 'x y'"),
        (("mail", "--namespace", "Shop"), "namespace: 'Shop'"),
        (("mail", "--deployment", "-x"), "deployment: '-x'"),
        (("mail", "--min-workers", "5", "--max-workers", "4"), "max_workers: 4"),
        (("mail", "--max-workers", "0"), "max_workers: 0"),
        (("mail", "--polling", "0s"), "polling: 0"),
        (("mail", "--fallback", "11"), "fallback: 11"),
    )
    for ran, (_, said) in zip(each(*(("export", "keda", *one) for one, _ in commands)), commands, strict=True):
        refused(ran, said)


def refused(ran: Ran, said: str) -> None:
    assert (ran.code, ran.out, is_one_block(ran.err)) == (2, "", True), ran.err
    assert said in ran.err
