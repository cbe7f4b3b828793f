"""pytest --simt: run a project's GPU tests on the CPU, with every access checked.

The tests find a GPU, which is the engine. A race, a wrong index, a read of shared memory that
nobody wrote and a barrier that some threads miss fail the test, with lines and threads.

A module of its own, outside the package, so that a run of pytest without --simt imports nothing.
"""

import collections

import pytest

CHECKS = "races", "uninitialised", "divergence"


def pytest_addoption(parser):
    group = parser.getgroup("simt", "GPU kernels on the CPU, checked")
    group.addoption("--simt", action="store_true", help="run Numba CUDA kernels on the CPU engine")
    group.addoption(
        "--simt-negative",
        action="store_true",
        help="refuse computed indices that are negative, which Numba counts from the end",
    )
    group.addoption("--simt-device", metavar="NAME", help="the GPU to be, as T4 or H100")
    group.addoption(
        "--simt-ignore",
        metavar="CHECKS",
        default="",
        help=f"checks to leave out, with commas between: {', '.join(CHECKS)}",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Enable the engine before a conftest.py or a test imports a kernel."""
    options = early_config.known_args_namespace
    if not options.simt:
        return
    import numba_cuda_simulator as simt

    ignored = [name for name in options.simt_ignore.split(",") if name]
    for name in ignored:
        if name not in CHECKS:
            raise pytest.UsageError(f"--simt-ignore takes {', '.join(CHECKS)}; got {name!r}")
    simt.options(wrap=not options.simt_negative, **dict.fromkeys(ignored, False))
    if options.simt_device:
        try:
            simt.options(device=options.simt_device)
        except simt.errors.LaunchError as error:
            raise pytest.UsageError(f"--simt-device: {error.message}") from None
    simt.enable(as_gpu=True)


def pytest_configure(config):
    if config.option.simt:
        config.pluginmanager.register(Report(), "simt-report")


class Report:
    """Counts by kind what the engine says of failed tests."""

    def __init__(self):
        self.refused, self.found = collections.Counter(), collections.Counter()

    def pytest_report_header(self):
        import numba_cuda_simulator as simt

        return f"simt: CUDA kernels run on the CPU, as on {simt.options().previous.device}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        error = call.excinfo and kernel_error(call.excinfo.value)
        if error is not None and report.failed:
            kind = "refused" if type(error).__name__ in REFUSALS else "found"
            said = "simt", (kind, type(error).__name__, error.message)
            report.user_properties.append(said)
            item.user_properties.append(said)  # for --junitxml, which takes them at the end
        return report

    def pytest_runtest_logreport(self, report):
        for name, value in report.user_properties:
            if name == "simt" and report.failed:
                kind, error, message = value
                (self.refused if kind == "refused" else self.found)[error, message] += 1

    def pytest_terminal_summary(self, terminalreporter):
        for title, counts in (
            ("the engine found errors in kernels", self.found),
            ("the engine does not run these kernels", self.refused),
        ):
            if counts:
                terminalreporter.section(f"simt: {title}")
            for (error, message), count in counts.most_common():
                terminalreporter.line(f"{count} x {error}: {message}")


REFUSALS = "UnsupportedError", "FieldError"


def kernel_error(error):
    """Return the KernelError that an error is, or that it was raised from; None without one."""
    from numba_cuda_simulator.errors import KernelError

    while error is not None and not isinstance(error, KernelError):
        error = error.__cause__ or error.__context__
    return error
