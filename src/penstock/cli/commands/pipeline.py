"""`penstock pipeline` copies history to a lake; `pipeline_learn` adds the commands that learn from it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.status import Status

from penstock import validate
from penstock.cli.commands.pipeline_backtest import backtest
from penstock.cli.terminal.formatting import escape, format_cell
from penstock.cli.terminal.options import Shell, parse_moment, with_shell
from penstock.cli.terminal.output import print_interrupted, print_table
from penstock.errors import ConfigError, PenstockError, ValidationError
from penstock.formatting import format_age, format_count
from penstock.spark import require_pyspark as spark_needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.run import Stage, StageOutcome
    from penstock.pipeline.work import Work

app = typer.Typer(help="Copy history to a lake with Spark, and learn from it.", no_args_is_help=True)

LakeDir = Annotated[
    str, typer.Option("--lake", help="The directory of the lake; it is created if it does not exist.", metavar="DIR")
]
Since = Annotated[
    str | None,
    typer.Option(
        help="Only attempts that finished at or after this moment; a new lake stores this limit.", show_default=False
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(help="Only these queues, as mail,invoices; a new lake stores this limit.", show_default=False),
]
Master = Annotated[
    str | None,
    typer.Option(
        help="The Spark master, as spark://host:7077; default: all cores of this machine.", show_default=False
    ),
]
NICE = 10  # workers may run on the same machine, and come first
QUIET_SPARK: dict[str, Any] = {
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.log.level": "ERROR",
}
MAX_SPARK_MEMORY = 4 << 30  # bytes for Spark's Java on this machine, and at most a quarter of its memory


@app.command("run")
@with_shell
def run_all(
    shell: Shell,
    *,
    lake: LakeDir,
    since: Since = None,
    queues: Queues = None,
    master: Master = None,
    release: Annotated[
        bool,
        typer.Option("--release", help="Drop days of history that the lake holds, after comparing them row by row."),
    ] = False,
) -> None:
    """Run all stages on what is new: bronze, silver, gold, profiles, reconcile and the report.

    It is safe to repeat, to stop at any point, and to run while workers run. It exits with 1 if the numbers differ.

    Example: penstock pipeline run --lake /srv/lake
    """
    with open_work(shell, lake, since=since, queues=queues, master=master) as (work, watch):
        outcomes = watch.run(work, find_stages())
        if release and all(one.ok for one in outcomes):
            outcomes += watch.run(work, [make_release_stage()])
    print_outcomes(shell, outcomes)


@app.command("bronze")
@with_shell
def bronze(shell: Shell, *, lake: LakeDir, since: Since = None, queues: Queues = None, master: Master = None) -> None:
    """Copy new history and samples to the lake, unchanged.

    Example: penstock pipeline bronze --lake /srv/lake
    """
    with open_work(shell, lake, since=since, queues=queues, master=master) as (work, watch):
        outcomes = watch.run(work, find_stages("bronze"))
    print_outcomes(shell, outcomes)


@app.command("silver")
@with_shell
def silver(shell: Shell, *, lake: LakeDir, master: Master = None) -> None:
    """Rebuild the attempts of the days that have changed.

    Example: penstock pipeline silver --lake /srv/lake
    """
    run_stage(shell, lake, master, "silver")


@app.command("gold")
@with_shell
def gold(shell: Shell, *, lake: LakeDir, master: Master = None) -> None:
    """Rebuild minutes, breaches, kinds, errors and chances of the days that have changed.

    Example: penstock pipeline gold --lake /srv/lake
    """
    run_stage(shell, lake, master, "gold")


@app.command("reconcile")
@with_shell
def reconcile(shell: Shell, *, lake: LakeDir, master: Master = None) -> None:
    """Compare counters, samples, history and the lake. Exits with 1 if they differ, and prints where.

    Example: penstock pipeline reconcile --lake /srv/lake
    """
    run_stage(shell, lake, master, "reconcile")


@app.command("forget")
@with_shell
def forget(
    shell: Shell,
    reader: Annotated[
        str | None, typer.Argument(help="The reader, as `penstock doctor` names it.", show_default=False)
    ] = None,
    *,
    lake: Annotated[
        str | None, typer.Option("--lake", help="The lake of the reader, instead of its name.", metavar="DIR")
    ] = None,
) -> None:
    """Stop keeping history for a reader that will not read again. It is registered again if its lake is used.

    Example: penstock pipeline forget --lake /srv/old-lake
    """
    if (reader is None) == (lake is None):
        raise ValidationError("reader: give its name, or --lake", hint="`penstock doctor` names those that lag.")
    name = str(reader) if lake is None else find_reader(lake)
    with shell.connect() as penstock:
        penstock.forget_reader(name)
    shell.answer({"forgotten": name}, f"forgotten: {name}")


app.command("backtest")(backtest)


@app.command("rebase")
@with_shell
def rebase(shell: Shell, *, lake: LakeDir, master: Master = None) -> None:
    """Make the lake equal to its database again, after a failover that lost rows or after a restore.

    It reads again the days that differ: it removes rows that no longer exist, and adds missing rows. It refuses a
    database that was restored from a backup of another cluster and is older than the lake.

    Example: penstock pipeline rebase --lake /srv/lake
    """
    from penstock.pipeline.run import Stage  # noqa: PLC0415 - Spark is an extra
    from penstock.pipeline.stages.rebase import rebase as rebased  # noqa: PLC0415 - Spark is an extra

    find_reader(lake)
    with shell.connect() as penstock:
        penstock.rebase_history()
    with open_work(shell, lake, master=master, anywhere=True) as (work, watch):
        outcomes = watch.run(work, [Stage("rebase", rebased)])
    print_outcomes(shell, outcomes)


# --- shared by the commands -------------------------------------------------------------------------------------------


def run_stage(shell: Shell, lake: str, master: str | None, name: str) -> None:
    find_reader(lake)
    with open_work(shell, lake, master=master) as (work, watch):
        outcomes = watch.run(work, find_stages(name))
    print_outcomes(shell, outcomes)


def find_stages(*names: str) -> list[Stage]:
    from penstock.pipeline.run import STAGES  # noqa: PLC0415 - Spark is an extra

    return [stage for stage in STAGES if not names or stage.name in names]


def make_release_stage() -> Stage:
    from penstock.pipeline.run import Stage  # noqa: PLC0415 - Spark is an extra
    from penstock.pipeline.stages.release import run_release  # noqa: PLC0415 - Spark is an extra

    return Stage("release", run_release)


def find_reader(lake: str) -> str:
    """Returns the name under which the lake in a directory reads history. Raises if there is no lake."""
    spark_needed()
    from penstock.pipeline.lake import Lake  # noqa: PLC0415 - Spark is an extra

    return Lake(lake).state.reader


@contextmanager
def open_work(
    shell: Shell,
    lake: str,
    *,
    since: str | None = None,
    queues: list[str] | None = None,
    master: str | None = None,
    anywhere: bool = False,
) -> Iterator[tuple[Work, StageProgress]]:
    """Opens the lake and starts Spark. Everything is checked first, since the start of Spark takes a while."""
    spark_needed()
    from penstock.pipeline.work import working  # noqa: PLC0415 - Spark is an extra

    names = [validate.queue_name(name) for given in queues or () for name in given.split(",")]
    begin = parse_moment(since, "since")
    with shell.connect() as penstock:
        dsn = penstock.dsn
    watch = StageProgress(shell)
    stop: list[SparkSession] = []

    def start() -> SparkSession:
        watch.tell("Spark starts")
        stop.append(start_quiet_spark(master))
        return stop[0]

    try:
        with (
            watch,
            working(start, lake, dsn=dsn, queues=names, since=begin, tell=watch.tell, anywhere=anywhere) as work,
        ):
            yield work, watch
    except KeyboardInterrupt:
        print_interrupted("the lake is as it was after the last complete stage; run it again")
        raise
    finally:
        for session in stop:
            session.stop()


def start_quiet_spark(master: str | None) -> SparkSession:
    """Starts a Spark whose Java has no standard error, unless --debug is given."""
    from penstock.spark import session  # noqa: PLC0415 - Spark is an extra

    settings = {**QUIET_SPARK}
    if master is None and "driver-memory" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        settings["spark.driver.memory"] = f"{min(MAX_SPARK_MEMORY, there // 4) >> 20}m"
    os.nice(NICE)  # inherited by Java and its child processes
    debug = "--debug" in sys.argv
    if not debug:
        logging.disable()  # Spark's Python side logs every call that Ctrl-C interrupts
    try:
        with silence_children(not debug):
            return session("penstock pipeline", master=master, **settings)
    except PenstockError:
        raise
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"Spark did not start: {said}", hint="--debug shows the output of its Java.") from error


@contextmanager
def silence_children(silent: bool) -> Iterator[None]:
    """Starts child processes without standard error."""
    if not silent:
        yield
        return
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class StageProgress:
    """Shows the present stage on a terminal, and prints a line after each stage."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._stage = ""
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self._shell.quiet:
            self._status = Status("", console=Console(stderr=True))
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, text: str) -> None:
        if self._status is not None:
            self._status.update(f"{self._stage}: {text}" if self._stage else text)

    def run(self, work: Work, stages: list[Stage]) -> list[StageOutcome]:
        from penstock.pipeline.run import run  # noqa: PLC0415 - Spark is an extra

        return run(work, stages, begins=self._begins, ends=self._ends)

    def _begins(self, stage: str) -> None:
        self._stage = stage
        self.tell("…")

    def _ends(self, outcome: StageOutcome) -> None:
        if not self._shell.json:
            self._shell.answer(
                None, f"{outcome.stage:<10} {format_age(outcome.seconds):>6}  {format_answer(outcome.answer)}"
            )


def format_answer(answer: Mapping[str, Any]) -> str:
    """Writes the result of a stage on one line."""
    if "differences" in answer:
        compared = ", ".join(f"{count:,} {name}" for name, count in answer["compared"].items())
        wrong = len(answer["differences"])
        return f"{format_count(wrong, 'difference') if wrong else 'everything agrees'} ({compared})"
    if "verdict" in answer:
        return escape(f"{answer['verdict']} {answer['path']}")
    counts = [f"{value:,} {name}" for name, value in answer.items() if isinstance(value, int) and value]
    return ", ".join(counts) or "nothing new"


def print_outcomes(shell: Shell, outcomes: list[StageOutcome]) -> None:
    """Prints all results with --json, otherwise only differences. Exits with 1 if there are any."""
    if shell.json:
        stages = {one.stage: {"seconds": round(one.seconds, 3), **one.answer} for one in outcomes}
        shell.answer({"ok": all(one.ok for one in outcomes), "stages": stages}, "")
    else:
        differences = [row for one in outcomes for row in one.answer.get("differences", ())]
        if differences:
            rows = [
                [
                    row["where"],
                    format_cell(row["queue"] or None),
                    row["what"],
                    f"{row['expected']:,}",
                    f"{row['found']:,}",
                ]
                for row in differences
            ]
            print_table(("where", "queue", "what", "expected", "found"), rows, words=("queue", "what"))
    if not all(one.ok for one in outcomes):
        raise typer.Exit(1)
