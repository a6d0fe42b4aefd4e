"""The text that is stored for an error: its message, then a bounded traceback without the values of variables. One line
of it is for the log."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

from penstock.model import TRACEBACK, split_error

FRAMES = 12  # the innermost frames that are kept of each exception
CHAIN = 4  # the number of earlier exceptions that are kept
LONGEST_MESSAGE = 2000  # characters
LONGEST_ERROR = 6000
CUT = "… (cut)"
OURS = tuple(str(Path(__file__).parents[1] / package) for package in ("worker", "backlog", "spark"))
LAYERS = str(Path(__file__).with_name("chain.py"))
LONGEST_LOGGED = 300  # characters of a message in one line of the log
SUMMARY = "summary"  # the extra of a log record with that line; Penstock's own log shows it on a terminal only


def error_text(error: BaseException, *, keep_traceback: bool = True) -> str:
    """Returns the message of an error, followed by its traceback."""
    text = shortened(message_of(error), LONGEST_MESSAGE)
    if not keep_traceback:
        return text
    where = "".join(traceback_lines(error)).rstrip("\n")
    room = LONGEST_ERROR - len(text) - 1
    if len(where) > room:  # the innermost frames are the most useful
        where = f"{TRACEBACK}\n  {CUT}\n{where[len(TRACEBACK) + len(CUT) + 4 - room :].partition(chr(10))[2]}"
    return f"{text}\n{where}" if where else text


def message_of(error: BaseException) -> str:
    """Returns the message of an error, even if its `__str__` raises."""
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001 - __str__ is the user's code
        return f"<{type(error).__name__}>"


def summarize(error: str | None, error_class: str | None = None) -> str | None:
    """Returns class and message of a stored error as one line for the log."""
    message, _ = split_error(error)
    if not message or message == error_class:
        return error_class
    line = " ".join(message.split())
    short = line if len(line) <= LONGEST_LOGGED else line[: LONGEST_LOGGED - 1] + "…"
    return short if error_class is None else f"{error_class}: {short}"


def shortened(text: str, longest: int) -> str:
    """Returns the text, cut to this length."""
    return text if len(text) <= longest else text[: longest - len(CUT)] + CUT


def traceback_lines(error: BaseException) -> Iterator[str]:
    """Yields the traceback as Python prints it, without the last line.

    The class and the message are stored separately. The notes of the error are kept.
    """
    chain = [*causes(error)]
    for earlier, link in reversed(chain):
        yield from frames(earlier)
        yield f"{type(earlier).__name__}: {shortened(message_of(earlier), 500)}\n\n{link}\n\n"
    yield from frames(error)
    for note in getattr(error, "__notes__", ()):
        yield f"{shortened(str(note), 500)}\n"


def causes(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yields the exceptions that led to this one, nearest first, each with the sentence that links it to the next."""
    seen = {id(error)}
    for _ in range(CHAIN):
        cause, link = error.__cause__, "The above exception was the direct cause of the following exception:"
        if cause is None and not error.__suppress_context__:
            cause, link = error.__context__, "During handling of the above exception, another exception occurred:"
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause, link
        error = cause


def frames(error: BaseException) -> Iterator[str]:
    """Yields the frames of the application. The worker's frames that call it are left out, and those that call its
    middleware."""
    found = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != LAYERS]
    first = next((n for n, one in enumerate(found) if not one.filename.startswith(OURS)), len(found))
    theirs = found[first:]
    if not theirs:
        return
    yield f"{TRACEBACK}\n"
    if len(theirs) > FRAMES:
        yield f"  … {len(theirs) - FRAMES} frames\n"
    yield from traceback.format_list(theirs[-FRAMES:])
