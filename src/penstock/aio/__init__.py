"""This package is the seam for asyncio, and the source of the sync one: `make generate` (scripts/make_sync.py) removes
the awaits from the files here and writes `database`, `hosts` and `queue` beside this package. Edit these files, never
the generated ones.

Code that differs in more than the awaits is written twice by hand: `colour` and `borrowed`.
"""
