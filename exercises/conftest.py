"""`pytest exercises/` grades your files; `--impl=solutions` grades ours by the same checks."""

from fa_numba.workbook.pytest_plugin import *  # noqa: F403
