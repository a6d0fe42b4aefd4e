"""The seam for asyncio, and the source of the other one: `database` and `queue` beside this package are made from the
files here by `make generate` (scripts/make_sync.py), which takes the awaits out. Edit these, never those.

What differs by nature and not by colour is written twice, by hand: `colour`, `borrowed`.
"""
