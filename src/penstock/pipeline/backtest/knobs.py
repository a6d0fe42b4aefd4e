"""Contenders: policies with values for their knobs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

from penstock.errors import ValidationError, shown
from penstock.pipeline.backtest.question import Contender
from penstock.scaler.policy import policies
from penstock.scaler.policy.decision import Policy


def contenders(
    names: Sequence[str], grid: Sequence[str] = (), sets: Sequence[Mapping[str, Any]] = ()
) -> list[Contender]:
    """Returns the policies of these names with every combination of the grid's values (`z=0.5,1` or `deadline:z=0.5,1`)
    for the knobs that they have; and those of complete sets of knobs, `{"policy": "deadline", "z": 1.5}`."""
    chosen = {name: policies.find(name) for name in names}
    axes = [parse_axis(text, chosen) for text in grid]
    found = [one for name, policy in chosen.items() for one in combine(name, policy, axes)]
    for n, given in enumerate(sets):
        found.append(parse_set(given, n))
    return [*{one.label: one for one in found}.values()]


KnobAxis = tuple[set[str], str, list[str]]  # of which policies, knob, values


def parse_axis(text: str, chosen: Mapping[str, Policy]) -> KnobAxis:
    name, equals, values = text.partition("=")
    policy, colon, knob = name.strip().rpartition(":")
    if not equals or not knob or not all(value.strip() for value in values.split(",")):
        hint = "Write z=0.5,1,2 or deadline:z=0.5,1,2."
        raise ValidationError(f"grid: {shown(text)} is not a knob and its values", hint=hint, field="grid")
    if colon and policy not in chosen:
        raise ValidationError(f"grid: {shown(text)}: {policy} is not among the policies", field="grid")
    having = {one for one, its in chosen.items() if knob in list_knobs(its) and (not colon or one == policy)}
    if not having:
        all_knobs = sorted({one for its in chosen.values() for one in list_knobs(its)})
        near = get_close_matches(knob, all_knobs, 1, cutoff=0.4)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(all_knobs)}."
        raise ValidationError(f"grid: {shown(knob)} is a knob of none of them", hint=hint, field="grid")
    return having, knob, [value.strip() for value in values.split(",")]


def list_knobs(policy: object, prefix: str = "") -> dict[str, Any]:
    """Returns the numbers and switches of a policy. Nested ones are named like `numbers.window`."""
    found: dict[str, Any] = {}
    for one in fields(policy) if is_dataclass(policy) else ():
        value = getattr(policy, one.name)
        if isinstance(value, (bool, int, float)):
            found[prefix + one.name] = value
        elif is_dataclass(value):
            found |= list_knobs(value, f"{prefix}{one.name}.")
    return found


def combine(name: str, policy: Policy, axes: Sequence[KnobAxis]) -> Iterator[Contender]:
    own = [(knob, values) for having, knob, values in axes if name in having]
    for values in itertools.product(*(values for _, values in own)):
        yield turn_knobs(name, policy, dict(zip((knob for knob, _ in own), values, strict=True)))


def parse_set(given: Mapping[str, Any], n: int) -> Contender:
    if not isinstance(given, dict) or not isinstance(given.get("policy"), str):
        hint = 'Write [{"policy": "deadline", "z": 1.5}, …].'
        raise ValidationError(f"knobs[{n}]: {shown(given)} does not name a policy", hint=hint, field="knobs")
    values = {knob: value for knob, value in given.items() if knob != "policy"}
    return turn_knobs(given["policy"], policies.find(given["policy"]), values)


def turn_knobs(name: str, policy: Policy, values: Mapping[str, Any]) -> Contender:
    """Returns a policy with other values of some of its knobs."""
    there, made, knobs = list_knobs(policy), policy, dict[str, Any]()
    for knob, value in values.items():
        if knob not in there:
            near = get_close_matches(knob, there, 1, cutoff=0.4)
            hint = f"Did you mean {near[0]}?" if near else f"It has {', '.join(there) or 'none'}."
            raise ValidationError(f"knobs: {shown(knob)} is no knob of {name}", hint=hint, field="knobs")
        knobs[knob] = parse_knob(knob, value, there[knob])
        made = set_knob(made, knob.split("."), knobs[knob])
    said = " ".join(
        f"{knob}={value:g}" if isinstance(value, float) else f"{knob}={value}" for knob, value in knobs.items()
    )
    return Contender(made, f"{name} {said}".strip(), knobs)


def parse_knob(knob: str, value: Any, usual: Any) -> Any:
    words = {"true": True, "false": False}
    try:
        if isinstance(usual, bool):
            return value if isinstance(value, bool) else words[str(value).lower()]
        found = float(value)
    except (KeyError, TypeError, ValueError):
        found = math.nan
    whole = isinstance(usual, int)
    if isinstance(value, bool) or not math.isfinite(found) or (whole and found != int(found)):
        kind = "true or false" if isinstance(usual, bool) else "a whole number" if whole else "a number"
        raise ValidationError(f"knobs: {knob}: {shown(value)} is not {kind}", field="knobs")
    return int(found) if whole else found


def set_knob(made: Any, path: Sequence[str], value: Any) -> Any:
    first, *rest = path
    return replace(made, **{first: set_knob(getattr(made, first), rest, value) if rest else value})
