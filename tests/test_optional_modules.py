"""What needs a missing package of an extra, a test file or a test, is skipped; a typo is not."""

import sys

import pytest


@pytest.mark.parametrize(
    "source, outcome, said",
    [
        ("import hypothesis", "skipped", "Skipped: needs hypothesis"),
        ("from hypothesis.stateful import x", "skipped", "Skipped: needs hypothesis"),
        ("import hypothesys", "failed", "hypothesys"),
        ("import fa_numba.nothing", "failed", "fa_numba.nothing"),
        ("import numpy", "passed", "None"),
    ],
)
def test_a_missing_module(request, tmp_path, monkeypatch, source, outcome, said):
    for name in [name for name in sys.modules if name.partition(".")[0] == "hypothesis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    path = tmp_path / "test_of_this.py"
    path.write_text(source)
    module = pytest.Module.from_parent(request.session, path=path)
    report = request.config.hook.pytest_make_collect_report(collector=module)
    assert report.outcome == outcome and said in str(report.longrepr)
    # The same import in a test
    call = pytest.CallInfo.from_call(lambda: exec(source, {}), "call")
    report = request.config.hook.pytest_runtest_makereport(item=request.node, call=call)
    assert report.outcome == outcome and said in str(report.longrepr)
