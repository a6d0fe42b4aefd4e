"""`penstock pipeline …`: history into a lake, and what can be learnt from it."""

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
from penstock.cli.backtest import backtest
from penstock.cli.options import Shell, moment, with_shell
from penstock.cli.output import age, cell, harmless, interrupted, many, table
from penstock.errors import ConfigError, PenstockError, ValidationError
from penstock.spark import needed as spark_needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.run import Outcome, Stage
    from penstock.pipeline.work import Work

app = typer.Typer(help="History into a lake on Spark, and what can be learnt from it.", no_args_is_help=True)

LakeDir = Annotated[str, typer.Option("--lake", help="The lake's directory; begun if there is none.", metavar="DIR")]
Since = Annotated[
    str | None,
    typer.Option(help="Only what finished at or after this moment; a new lake keeps to it.", show_default=False),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(help="Only these queues: mail,invoices; a new lake keeps to them.", show_default=False),
]
Master = Annotated[
    str | None,
    typer.Option(help="Where Spark runs, as spark://host:7077; default: here, on all cores.", show_default=False),
]
NICE = 10  # queues are drained on the same machine, perhaps: we step back
QUIET: dict[str, Any] = {
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.log.level": "ERROR",
}
MEMORY = 4 << 30  # of Spark's Java here, at most; and at most a quarter of what there is


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
        typer.Option("--release", help="Drop days of history that the lake holds, each compared with it row by row."),
    ] = False,
) -> None:
    """Everything that is new: bronze, silver, gold, profiles, whether it all adds up, and the report.

    Safe to repeat, to stop anywhere, and to run while workers drain. Exit 1: something does not add up.

    Example: penstock pipeline run --lake /srv/lake
    """
    with site(shell, lake, since=since, queues=queues, master=master) as (work, watch):
        outcomes = watch.run(work, stages())
        if release and all(one.ok for one in outcomes):
            outcomes += watch.run(work, [releasing()])
    conclude(shell, outcomes)


@app.command("bronze")
@with_shell
def bronze(shell: Shell, *, lake: LakeDir, since: Since = None, queues: Queues = None, master: Master = None) -> None:
    """Take what is new in history and samples into the lake, as it is.

    Example: penstock pipeline bronze --lake /srv/lake
    """
    with site(shell, lake, since=since, queues=queues, master=master) as (work, watch):
        outcomes = watch.run(work, stages("bronze"))
    conclude(shell, outcomes)


@app.command("silver")
@with_shell
def silver(shell: Shell, *, lake: LakeDir, master: Master = None) -> None:
    """Make the lake's attempts, of the days that have changed.

    Example: penstock pipeline silver --lake /srv/lake
    """
    one_stage(shell, lake, master, "silver")


@app.command("gold")
@with_shell
def gold(shell: Shell, *, lake: LakeDir, master: Master = None) -> None:
    """Make minutes, breaches, kinds, errors and chances, of the days that have changed.

    Example: penstock pipeline gold --lake /srv/lake
    """
    one_stage(shell, lake, master, "gold")


@app.command("reconcile")
@with_shell
def reconcile(shell: Shell, *, lake: LakeDir, master: Master = None) -> None:
    """Compare the queues' books, their samples, their history and the lake. Exit 1: they differ, and where.

    Example: penstock pipeline reconcile --lake /srv/lake
    """
    one_stage(shell, lake, master, "reconcile")


@app.command("forget")
@with_shell
def forget(
    shell: Shell,
    reader: Annotated[str | None, typer.Argument(help="A reader, as doctor names it.", show_default=False)] = None,
    *,
    lake: Annotated[str | None, typer.Option("--lake", help="Or the lake that read.", metavar="DIR")] = None,
) -> None:
    """Keep no history for a reader that will not come again. A lake that does is known again.

    Example: penstock pipeline forget --lake /srv/old-lake
    """
    if (reader is None) == (lake is None):
        raise ValidationError("reader: give its name, or --lake", hint="`penstock doctor` names those that lag.")
    name = str(reader) if lake is None else reader_of(lake)
    with shell.connected() as penstock:
        penstock.forget_reader(name)
    shell.answer({"forgotten": name}, f"forgotten: {name}")


app.command("backtest")(backtest)


@app.command("rebase")
@with_shell
def rebase(shell: Shell, *, lake: LakeDir, master: Master = None) -> None:
    """After the database was restored into another cluster: the lake goes on with that one.

    What the lake lacks is added. A backup that is older than the lake is refused.

    Example: penstock pipeline rebase --lake /srv/lake
    """
    from penstock.pipeline.rebase import rebase as rebased  # noqa: PLC0415 - Spark is an extra
    from penstock.pipeline.run import Stage  # noqa: PLC0415 - Spark is an extra

    reader_of(lake)
    with shell.connected() as penstock:
        penstock.rebase_history()
    with site(shell, lake, master=master, anywhere=True) as (work, watch):
        outcomes = watch.run(work, [Stage("rebase", rebased)])
    conclude(shell, outcomes)


# --- what the commands share ------------------------------------------------------------------------------------------


def one_stage(shell: Shell, lake: str, master: str | None, name: str) -> None:
    reader_of(lake)
    with site(shell, lake, master=master) as (work, watch):
        outcomes = watch.run(work, stages(name))
    conclude(shell, outcomes)


def stages(*names: str) -> list[Stage]:
    from penstock.pipeline.run import STAGES  # noqa: PLC0415 - Spark is an extra

    return [stage for stage in STAGES if not names or stage.name in names]


def releasing() -> Stage:
    from penstock.pipeline.release import released  # noqa: PLC0415 - Spark is an extra
    from penstock.pipeline.run import Stage  # noqa: PLC0415 - Spark is an extra

    return Stage("release", released)


def reader_of(place: str) -> str:
    """The name under which a lake reads history. There must be one."""
    spark_needed()
    from penstock.pipeline.lake import Lake  # noqa: PLC0415 - Spark is an extra

    return Lake(place).state.reader


@contextmanager
def site(
    shell: Shell,
    lake: str,
    *,
    since: str | None = None,
    queues: list[str] | None = None,
    master: str | None = None,
    anywhere: bool = False,
) -> Iterator[tuple[Work, Watch]]:
    """Everything is looked at before Spark is started: that takes a while."""
    spark_needed()
    from penstock.pipeline.work import working  # noqa: PLC0415 - Spark is an extra

    names = [validate.queue_name(name) for given in queues or () for name in given.split(",")]
    begin = moment(since, "since")
    with shell.connected() as penstock:
        dsn = penstock.dsn
    watch = Watch(shell)
    stop: list[SparkSession] = []

    def start() -> SparkSession:
        watch.tell("Spark starts")
        stop.append(quiet_session(master))
        return stop[0]

    try:
        with (
            watch,
            working(start, lake, dsn=dsn, queues=names, since=begin, tell=watch.tell, anywhere=anywhere) as work,
        ):
            yield work, watch
    except KeyboardInterrupt:
        interrupted("the lake is as it was after the last stage that ended; run it again")
        raise
    finally:
        for session in stop:
            session.stop()


def quiet_session(master: str | None) -> SparkSession:
    """A Spark that prints nothing: its Java, and all that it starts, has no standard error. --debug lets it speak."""
    from penstock.spark import session  # noqa: PLC0415 - Spark is an extra

    settings = {**QUIET}
    if master is None and "driver-memory" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        settings["spark.driver.memory"] = f"{min(MEMORY, there // 4) >> 20}m"
    os.nice(NICE)  # Java, and all that it starts, inherits it
    debug = "--debug" in sys.argv
    if not debug:
        logging.disable()  # Spark's Python side tells of every call that Ctrl-C cut
    try:
        with unheard(not debug):
            return session("penstock pipeline", master=master, **settings)
    except PenstockError:
        raise
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"Spark did not start: {said}", hint="--debug shows what its Java said.") from error


@contextmanager
def unheard(really: bool) -> Iterator[None]:
    """Processes that are started meanwhile have no standard error."""
    if not really:
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


class Watch:
    """What is being done, on a terminal; what came of it, a line per stage."""

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

    def run(self, work: Work, stages: list[Stage]) -> list[Outcome]:
        from penstock.pipeline.run import run  # noqa: PLC0415 - Spark is an extra

        return run(work, stages, begins=self._begins, ends=self._ends)

    def _begins(self, stage: str) -> None:
        self._stage = stage
        self.tell("…")

    def _ends(self, outcome: Outcome) -> None:
        if not self._shell.json:
            self._shell.answer(None, f"{outcome.stage:<10} {age(outcome.seconds):>6}  {told(outcome.answer)}")


def told(answer: Mapping[str, Any]) -> str:
    """What a stage did, on one line."""
    if "differences" in answer:
        compared = ", ".join(f"{count:,} {name}" for name, count in answer["compared"].items())
        wrong = len(answer["differences"])
        return f"{many(wrong, 'difference') if wrong else 'everything agrees'} ({compared})"
    if "verdict" in answer:
        return harmless(f"{answer['verdict']} {answer['path']}")
    counts = [f"{value:,} {name}" for name, value in answer.items() if isinstance(value, int) and value]
    return ", ".join(counts) or "nothing new"


def conclude(shell: Shell, outcomes: list[Outcome]) -> None:
    """The whole for programs; differences for people. Exit 1: there are any."""
    if shell.json:
        stages = {one.stage: {"seconds": round(one.seconds, 3), **one.answer} for one in outcomes}
        shell.answer({"ok": all(one.ok for one in outcomes), "stages": stages}, "")
    else:
        differences = [row for one in outcomes for row in one.answer.get("differences", ())]
        if differences:
            rows = [
                [row["where"], cell(row["queue"] or None), row["what"], f"{row['expected']:,}", f"{row['found']:,}"]
                for row in differences
            ]
            table(("where", "queue", "what", "expected", "found"), rows, words=("queue", "what"))
    if not all(one.ok for one in outcomes):
        raise typer.Exit(1)
