"""Backtests: what a promise would have cost with other policies and other knobs."""

from penstock.pipeline.backtest.knobs import contenders
from penstock.pipeline.backtest.question import (
    Answer,
    Contender,
    Coverage,
    Promise,
    Question,
    Verdict,
    format_cost,
    format_late,
)
from penstock.pipeline.backtest.run import backtest
from penstock.pipeline.backtest.stratified import Recording

__all__ = [
    "Answer",
    "Contender",
    "Coverage",
    "Promise",
    "Question",
    "Recording",
    "Verdict",
    "backtest",
    "contenders",
    "format_cost",
    "format_late",
]
