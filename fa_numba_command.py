"""What `fa-numba` runs. It is outside the package, whose import takes a second, to see Ctrl-C."""

import sys


def main() -> int:
    """Import the command and run it; returns the exit status."""
    try:
        from fa_numba.workbook import cli

        return cli.main()
    except KeyboardInterrupt:
        print("fa-numba: stopped", file=sys.stderr)
        return 130  # as of a program that SIGINT ended
