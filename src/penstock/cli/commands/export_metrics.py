"""`penstock export metrics`, `alerts` and `grafana`: what Prometheus and Grafana read."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer

from penstock import __version__
from penstock.cli.commands.export import app, format_yaml
from penstock.cli.terminal.options import COMMON, AsJson, Debug, Shell, share_options
from penstock.cli.terminal.output import print_json, print_line
from penstock.errors import Unavailable
from penstock.metrics.alerts import make_rules
from penstock.metrics.dashboard import make_dashboard
from penstock.metrics.server import MetricsServer
from penstock.metrics.source import MetricsSource, open_database
from penstock.worker import logs


def metrics(
    shell: Shell,
    *,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve them at http://HOST:PORT/metrics until Ctrl-C; default host: 127.0.0.1.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the metrics of all queues as the text of Prometheus, or serve them.

    The role penstock_reader is enough. PostgreSQL is asked at most once a second, however many programs read the
    metrics. While it does not answer, the metrics consist of `penstock_up 0`.

    Example: penstock export metrics --listen 9187
    """
    with shell.connect() as penstock:
        source = MetricsSource(open_database(penstock.dsn, penstock.dsn_source), __version__)
    if listen is None:
        print_line(source.read().removesuffix("\n"))
        return
    logs.set_up("text", quiet=shell.quiet)
    with suppress(Unavailable):  # it may be back later; a wrong password will not
        source.read()
    with MetricsServer(listen, source.text) as server:
        print_line(f"metrics at {server.url}", quiet=shell.quiet)
        signal.signal(signal.SIGTERM, leave)
        server.serve_forever(poll_interval=60)


def leave(*_: Any) -> NoReturn:
    """Ends the command when a service manager stops it."""
    sys.exit(0)


def alerts(json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001 - read by main
    """Print rules for Prometheus: six alerts to begin with, and what graphs ask for again and again.

    The alerts have the label severity: page means that a person has to act now, ticket means the next working day. This
    command reads no database.

    Example: penstock export alerts > /etc/prometheus/penstock.yml
    """
    rules = make_rules()
    if json:
        print_json(rules)
    else:
        print_line("\n".join(format_yaml(rules)))


def grafana(debug: Debug = False) -> None:  # noqa: ARG001 - read by main
    """Print a dashboard for Grafana: the five graphs to look at first, then what explains them.

    Import it, and choose the Prometheus that scrapes `penstock export metrics` and the workers. This command reads no
    database.

    Example: penstock export grafana > penstock.json
    """
    print_json(make_dashboard())


OPTIONS = tuple(one for one in COMMON if one[0] != "json")
app.command("metrics")(share_options(OPTIONS, lambda values: Shell(json=False, **values), metrics))
app.command("alerts")(alerts)
app.command("grafana")(grafana)
