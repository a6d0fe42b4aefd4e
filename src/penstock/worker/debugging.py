"""What `breakpoint()` does in a process of a worker, which has no terminal: several threads would share it."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from penstock.errors import HandlerMisuse


def explain_breakpoints() -> None:
    """Makes `breakpoint()` raise an error that says how to debug, instead of one about the end of the input.

    A debugger that PYTHONBREAKPOINT names is used: it may have a terminal of its own.
    """
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = refuse_breakpoint


def refuse_breakpoint(*_: Any, **__: Any) -> NoReturn:
    """Raises an error that says how to debug a handler."""
    raise HandlerMisuse(
        "breakpoint(): the processes of a worker have no terminal",
        hint="Debug with app.drain_inline() or app.run_worker(), or name a remote debugger in PYTHONBREAKPOINT.",
    )
