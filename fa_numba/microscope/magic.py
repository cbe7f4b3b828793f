"""``%%trace``: the reports on all launches of a notebook's cell.

%load_ext fa_numba.workbook
"""

from __future__ import annotations

import argparse
import shlex

from IPython.core.error import UsageError
from IPython.display import display

from fa_numba import analysis, simt
from fa_numba.microscope import command, report


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"%%trace: {message}")


def _parser():
    parser = _Parser(prog="%%trace", add_help=False)
    command.add_report_options(parser)
    parser.add_argument("--draw", action="store_true", help="show the drawings below the report")
    return parser


def trace(line, cell):
    """Run the cell, then show the report on each of its launches.

    ``%%trace --device T4 --draw`` compiles and computes for another GPU, and shows drawings.
    Kernels run on the CPU engine, with or without a GPU.
    """
    from IPython import get_ipython

    options = _parser().parse_args(shlex.split(line))
    try:
        gpu = analysis.device(options.device)
    except ValueError as error:
        raise UsageError(f"%%trace: {error}") from None
    with command.launches_on_the_engine(), simt.tracing() as traces:
        get_ipython().run_cell(f"# %%trace\n{cell}")  # the magic's line counts in line numbers
    if not traces:
        print("%%trace: this cell launched no kernel to its end on NumPy arrays")
        return
    reports = report.LaunchReports.of(traces, device=gpu)
    display(reports)
    if options.draw:
        for one in reports:
            for _, drawing in one.figures():
                display(drawing)
    if options.figures:
        for path in reports.write_figures(options.figures):
            print(path)


def register(ipython):
    """Make the magic known to an IPython shell."""
    ipython.register_magic_function(trace, magic_kind="cell", magic_name="trace")
