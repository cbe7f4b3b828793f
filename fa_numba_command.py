"""The entry point of `fa-numba`, outside the package: it catches Ctrl-C during the import too."""

import sys


def main() -> int:
    """Import the command and run it; returns the exit status."""
    try:
        from fa_numba.workbook import cli

        return cli.main()
    except KeyboardInterrupt:
        print("fa-numba: stopped", file=sys.stderr)
        return 130  # as of a program that SIGINT ended
