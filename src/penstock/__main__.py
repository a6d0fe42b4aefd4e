"""The entry point of the shell: `penstock` and `python -m penstock`. It handles `--version` and Ctrl-C before it
imports the rest."""

from __future__ import annotations

import sys

from penstock import __version__


def main() -> None:
    """Runs the shell."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"{__version__}\n")
        return
    try:
        from penstock import cli  # noqa: PLC0415 - Ctrl-C may interrupt the import
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
