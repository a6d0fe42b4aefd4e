"""`penstock simulate`: real commands on small traces, without a database."""

from __future__ import annotations

import signal
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli import tree
from penstock.cli.commands import simulate as cli_simulate
from penstock.cli.commands.simulate import HINDSIGHT
from penstock.errors import PenstockError
from penstock.formatting import format_percent
from penstock.scaler.judge import judge
from penstock.scaler.judge.judge import Score
from penstock.scaler.judge.traces import SYNTHETIC
from penstock.scaler.policy.policies import POLICIES
from shell import COMMAND, each, environment, is_one_block, penstock

SMALL = ("--duration", "20m", "--tasks", "2000")
SVG = "{http://www.w3.org/2000/svg}"


def simulate(*arguments: str) -> tuple[str, ...]:
    return ("simulate", *arguments, *SMALL)


# -- One policy -------------------------------------------------------------------------------------------------------


def test_one_policy() -> None:
    value, shown = each(simulate("--json"), simulate("--policy", "backlog-drain", "--seeds", "2", "--slots", "2"))
    found = value.json
    assert (found["trace"], found["policy"], found["seeds"]) == ("diurnal", "deadline", 1)
    assert found["breach_rate"] == 0.0
    assert 1800 < found["tasks"] < 2200
    assert found["cost_ratio"] == pytest.approx(found["worker_seconds"] / found["bound"]["worker_seconds"])
    assert found["cost_ratio"] > 1
    assert found["bound"]["feasible"]
    assert found["max_workers"] >= 1.5 * found["bound"]["peak"]
    assert found["tasks_per_second"] > 0
    assert {"starts", "flips_per_hour", "p50_wait", "p99_wait", "max_wait", "utilization"} <= {*found}
    assert found["inputs"] == {
        "sla": 30.0,
        "start_latency": 20.0,
        "interval": 5.0,
        "slots": 1,
        "min_workers": 1,
        "max_workers": None,
        "seeds": 1,
        "service": 2.0,
        "cv": 1.0,
        "start": None,
        "duration": 1200.0,
        "tasks": 2000,
    }
    lines = shown.out.splitlines()
    assert lines[0] == "backlog-drain on diurnal, 20m, mean of 2 seeds"
    assert [line.split()[0] for line in lines[1:]] == ["late", "waits", "workers", "changes", "speed"]
    assert lines[1].endswith(" tasks waited longer than 30 s")
    assert "× the least possible" in lines[3]
    assert shown.err == ""


def test_the_same_seed_makes_the_same_result() -> None:
    first, second = each(simulate("--json", "--no-bound"), simulate("--json", "--no-bound"))
    assert {**first.json, "tasks_per_second": 0} == {**second.json, "tasks_per_second": 0}


def test_a_maximum_that_is_too_low_is_reported() -> None:
    ran = penstock(*simulate("--max-workers", "2", "--sla", "10s"))
    assert "of 2 at most" in ran.out
    assert "with any policy" in ran.out


@pytest.fixture
def without_solver(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "scipy.py").write_text("raise ImportError('no', name='scipy')")
    return {"PYTHONPATH": str(tmp_path)}


def test_without_a_solver_there_is_no_cost_ratio(without_solver: dict[str, str]) -> None:
    without, skipped = each(simulate("--json", "--seeds", "2"), simulate("--no-bound", "--json"), env=without_solver)
    assert without.err == (
        "no cost ratio: bound: scipy is not installed. The bound is a linear program: pip install scipy.\n"
    )
    assert skipped.err == ""
    for ran in (without, skipped):
        assert (ran.code, ran.json["cost_ratio"], ran.json["bound"]) == (0, None, None)
        assert 10 <= ran.json["max_workers"] <= 11  # three times the mean load


def test_a_recording(tmp_path: Path) -> None:
    recorded = tmp_path / "calls & <more>.csv"
    minutes = (f"2026-03-01T00:{minute:02}:00Z,{20 + 3 * minute}" for minute in range(20))
    recorded.write_text("period,count\n" + "\n".join(minutes) + "\n")
    plot = tmp_path / "calls.svg"
    own = ("simulate", "--trace", str(recorded), "--no-bound")
    whole, part, later = each(
        (*own, "--json", "--plot", str(plot)),
        (*own, "--json", "--start", "5m", "--duration", "300"),
        (*own, "--json", "--start", "2026-03-01T00:19:00Z"),
    )
    assert whole.json["tasks"] == sum(20 + 3 * minute for minute in range(20))
    assert part.json["tasks"] == sum(20 + 3 * minute for minute in range(5, 10))
    assert (part.json["inputs"]["start"], part.json["inputs"]["duration"]) == (300.0, 300.0)
    assert later.json["tasks"] == 77
    title = ET.parse(plot).getroot().find(f"{SVG}title")
    assert title is not None
    assert title.text == "deadline on calls & <more>: 0.00 % late"


def test_a_second_run_overwrites_the_picture(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    drawn = []
    for policy in ("static", "backlog-drain"):
        ran = penstock(*simulate("--policy", policy, "--plot", str(plot), "--no-bound"))
        assert f"chart    {plot}" in ran.out
        drawn.append(plot.read_text("utf-8"))
        ET.fromstring(drawn[-1])
    assert "static on diurnal" in drawn[0]
    assert "static on diurnal" not in drawn[1]
    assert [one.name for one in tmp_path.iterdir()] == ["plot.svg"]


# -- Many -------------------------------------------------------------------------------------------------------------


def test_all_policies_side_by_side(tmp_path: Path) -> None:
    plot = tmp_path / "frontier.svg"
    value, shown = each(
        simulate("compare", "--trace", "spikes", "--json", "--plot", str(plot)),
        simulate("compare", "--trace", "drift", "--policy", "static", "--policy", "static", "--policy", HINDSIGHT),
    )
    (block,) = value.json["traces"]
    scores = block["scores"]
    assert value.json["overall"] is None
    assert block["trace"] == "spikes"
    assert block["bound"]["worker_seconds"] > 0
    assert {one["policy"] for one in scores} == {*POLICIES, HINDSIGHT}
    order = [(one["breach_rate"], one["cost_ratio"]) for one in scores]
    assert order == sorted(order)
    for one in scores:
        better = [
            other
            for other in scores
            if other["breach_rate"] <= one["breach_rate"] and other["worker_seconds"] < one["worker_seconds"]
        ]
        if one["frontier"]:
            assert not better
    assert any(one["frontier"] for one in scores)
    assert len(ET.parse(plot).getroot().findall(f".//{SVG}circle")) > 5
    lines = shown.out.splitlines()
    assert lines[0].startswith("drift: ")
    assert lines[1].split()[:3] == ["policy", "late", "cost"]
    assert lines[2].split()[:2] == ["*", HINDSIGHT]
    assert lines[3].split()[0] == "static"
    assert lines[5].startswith("* no other is cheaper")


def test_several_traces_have_means() -> None:
    chosen = ("--trace", "steps", "--trace", "on-off", "--policy", "static", "--policy", "hybrid", "--seeds", "2")
    value, shown = each(simulate("compare", *chosen, "--json"), simulate("compare", *chosen, "--no-bound"))
    found = {block["trace"]: {one["policy"]: one for one in block["scores"]} for block in value.json["traces"]}
    assert list(found) == ["steps", "on-off"]
    together = {one["policy"]: one for one in value.json["overall"]["scores"]}
    for policy in ("static", "hybrid"):
        mean = (found["steps"][policy]["cost_ratio"] + found["on-off"][policy]["cost_ratio"]) / 2
        assert together[policy]["cost_ratio"] == pytest.approx(mean)
    assert "all 2 traces: means" in shown.out
    assert shown.out.count("\n\n") == 3


def test_the_names_of_traces() -> None:
    listed, shown = each(("simulate", "traces", "--json"), ("simulate", "traces"))
    assert [one["name"] for one in listed.json] == list(SYNTHETIC)
    assert [line.split()[0] for line in shown.out.splitlines()] == ["trace", *SYNTHETIC]


# -- Refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("--trace diurnl", 2, "Did you mean diurnal?"),
        ("--trace missing.csv", 2, "trace: there is no file 'missing.csv'"),
        ("--trace empty.csv", 2, "empty.csv: it is empty"),
        ("--policy dedline", 3, "Did you mean deadline?"),
        ("--plot nowhere/out.svg", 2, "plot: 'nowhere/out.svg': No such file or directory"),
        ("--plot .", 2, "plot: '.': Is a directory"),
        ("--sla 0", 3, "sla: 0.0"),
        ("--min-workers 5 --max-workers 4", 3, "min_workers: 5 is more than max_workers, 4"),
        ("--seeds 0", 2, "seeds: 0"),
        ("--tasks 0", 2, "tasks: 0"),
        ("--cv nan", 2, "cv: nan"),
        ("--start 2h", 2, "start: diurnal is synthetic"),
        ("--sla 10s compare", 2, "sla: --sla belongs after compare"),
        ("compare --policy hybird", 3, "Did you mean hybrid?"),
        ("compare --trace steps --trace stepps", 2, "Did you mean steps?"),
    ],
)
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, code: int, said: str) -> None:
    """It is refused before anything is simulated: the whole day of the default trace would take longer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_simulate, "run", pytest.fail)
    monkeypatch.setattr(judge, "simulate", pytest.fail)
    (tmp_path / "empty.csv").touch()
    with pytest.raises(PenstockError) as refused:
        tree()(["simulate", *arguments.split()], standalone_mode=False)
    error = refused.value
    assert (error.exit_code, said in f"{error.message} {error.hint}") == (code, True)
    assert [one.name for one in tmp_path.iterdir()] == ["empty.csv"]


def test_refused_in_one_block(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "out.svg"
    plot, near, missing = each(
        ("simulate", "--plot", str(nowhere)), ("simulate", "compar"), ("simulate", "--trace", "missing.csv")
    )
    assert "No such file or directory" in plot.err
    assert "Did you mean 'compare'?" in near.err
    assert "there is no file 'missing.csv'" in missing.err
    assert all((ran.code, ran.out, is_one_block(ran.err)) == (2, "", True) for ran in (plot, near, missing))


def test_help() -> None:
    one, many = each(("simulate", "--help"), ("simulate", "compare", "--help"))
    assert "Example: penstock simulate --trace spikes" in one.out
    assert "compare" in one.out
    assert "Example: penstock simulate compare" in many.out


def test_interrupted(without_solver: dict[str, str]) -> None:
    """The line about the solver shows that it is at work."""
    process = subprocess.Popen(
        [*COMMAND, "simulate", "compare", "--seeds", "50"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(more=without_solver),
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"no cost ratio")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, b"", b"")


# -- Functions --------------------------------------------------------------------------------------------------------


def test_one_late_task_among_many_is_not_none() -> None:
    assert [format_percent(share) for share in (0.0, 1e-7, 0.0001, 0.5)] == ["0.00 %", "< 0.01 %", "0.01 %", "50.00 %"]


def test_a_policy_as_good_as_the_best_is_on_the_frontier() -> None:
    one = Score("t", "a", 1, 10, 0.0, 0.0, 1.5, 150.0, 0.5, 1, 0, 0, 0, 0, 3, 9)
    scores = [one, replace(one, policy="b"), replace(one, policy="c", worker_seconds=160.0, cost_ratio=1.6)]
    assert [each.policy for each in judge.find_frontier(scores)] == ["a", "b"]
