"""Calls from threads into an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> None:
    """Lets the loop call a function soon. Any thread can call this; it does nothing if the loop is closed."""
    with suppress(RuntimeError):  # the loop is closed: the thread took so long that its result is no longer needed
        loop.call_soon_threadsafe(callback, *arguments)
