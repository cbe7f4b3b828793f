"""few_cases picks few cases that meet all that is to be met."""

import os
from itertools import product
from types import SimpleNamespace

import pytest
from few_cases import cover, mark_thorough, pairs

AXES = range(7), "abc", (True, False), (0, {"window": 5})


def test_pairs_tell_places_apart():
    assert pairs(1, 1, 2) == [((0, 1), (1, 1)), ((0, 1), (2, 2)), ((1, 1), (2, 2))]
    assert pairs(1, 2) != pairs(2, 1)


def test_every_pair_is_met_by_few_cases_the_same_ones_each_time():
    sets = [set(map(repr, pairs(*case))) for case in product(*AXES)]
    chosen = cover(sets)
    assert set().union(*(sets[i] for i in chosen)) == set().union(*sets)
    assert 21 <= len(chosen) <= 24 < len(sets) and chosen == cover(sets) == sorted(chosen)
    assert cover([]) == [] and cover([{1}, {1, 2}, {2}]) == [1]


def test_the_cases_that_are_left_out_are_thorough():
    marks = {}

    def case(number, parity):
        name = f"test_x.py::test[{number}-{parity}]"
        return SimpleNamespace(
            nodeid=name,
            callspec=SimpleNamespace(params={"number": number, "parity": parity}),
            get_closest_marker=lambda mark: SimpleNamespace(args=(lambda parity: [parity],)),
            add_marker=lambda mark: marks.setdefault(name, mark.name),
        )

    mark_thorough([case(n, n % 2) for n in range(4)])
    assert marks == {"test_x.py::test[2-0]": "thorough", "test_x.py::test[3-1]": "thorough"}


@pytest.fixture
def conftest(pytestconfig):
    (found,) = (
        plugin
        for plugin in pytestconfig.pluginmanager.get_plugins()
        if hasattr(plugin, "mark_thorough") and hasattr(plugin, "pytest_configure")
    )
    return found


@pytest.mark.parametrize(
    "given, used",
    [
        ("gpu", "(gpu) and not thorough"),
        ("gpu or mpi", "(gpu or mpi) and not thorough"),
        ("gpu and thorough", "gpu and thorough"),
        ("", ""),
    ],
)
def test_thorough_cases_run_where_they_are_named(conftest, given, used):
    config = SimpleNamespace(option=SimpleNamespace(markexpr=given))
    conftest.pytest_configure(config)
    assert config.option.markexpr == used


def test_each_worker_begins_with_long_tests(conftest, request):
    """In this run, as xdist's worksteal divides it; so each file's fixtures are made once."""
    items, begin = request.session.items, 0
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    files = {item.path for item in items if conftest.LONG.search(item.nodeid)}
    for worker in range(min(workers, len(files))):
        assert conftest.LONG.search(items[begin].nodeid)
        begin += (len(items) - begin) // (workers - worker)
