"""The CPU engine computes what one greenlet per thread computes, for every kernel of the zoo."""

import greenlet_oracle
import numpy as np
import pytest
from simt_kernels import ZOO

import numba_cuda_simulator as simt

IDS = [launch.name for launch in ZOO]
BATCHES = (1, 64, 1000)  # lanes per batch of thread blocks: one block, a few, some of an odd number


@pytest.fixture(scope="module", params=ZOO, ids=IDS)
def case(request):
    """A launch and what the oracle makes of it, computed once."""
    launch = request.param
    return launch, run_oracle(launch)


def run_oracle(launch, **options):
    args = launch.arguments()
    options["shared_bytes"] = launch.shared_bytes
    greenlet_oracle.launch(launch.kernel, launch.grid, launch.block, *args, **options)
    return args


def assert_same(launch, got, want):
    """Every argument agrees, inputs included: nobody may write to them."""
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        message = f"{launch.name}, argument {position}"
        if launch.rtol:
            np.testing.assert_allclose(a, b, launch.rtol, launch.rtol, err_msg=message)
        else:
            np.testing.assert_array_equal(a, b, err_msg=message)


def test_zoo_does_not_depend_on_the_order_of_threads(case):
    launch, want = case
    assert_same(launch, run_oracle(launch, order=lambda threads: threads[::-1]), want)


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "plain"])
def test_run(case, checked):
    launch, want = case
    args = launch.arguments()
    options = dict(shared_bytes=launch.shared_bytes, checked=checked)
    simt.run(launch.kernel, launch.grid, launch.block, *args, **options)
    assert_same(launch, args, want)


def test_trace(case):
    launch, want = case
    args = launch.arguments()
    trace = simt.trace(
        launch.kernel, launch.grid, launch.block, *args, shared_bytes=launch.shared_bytes
    )
    assert_same(launch, args, want)
    assert trace.races == [] and trace.uninitialised == []


@pytest.mark.parametrize("lanes", BATCHES)
def test_batches_of_blocks(case, lanes, monkeypatch):
    """How many blocks run at once changes nothing."""
    launch, want = case
    monkeypatch.setattr("numba_cuda_simulator.launch.LANES_PER_BATCH", lanes)
    args = launch.arguments()
    simt.run(launch.kernel, launch.grid, launch.block, *args, shared_bytes=launch.shared_bytes)
    assert_same(launch, args, want)
