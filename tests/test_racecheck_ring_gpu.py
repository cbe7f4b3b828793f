"""What benchmarks/racecheck_ring.py says about its three forms, on a GPU: `pytest -m gpu`."""

import pytest
from gpu_cases import ON_A_GPU
from numba import cuda

pytestmark = ON_A_GPU
if not cuda.is_available() or cuda.get_current_device().compute_capability[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from benchmarks import racecheck_ring  # noqa: E402


@pytest.mark.parametrize("form", ["named", "every"])
def test_a_ring_that_is_ordered_never_gives_a_later_row(form):
    bad, total = racecheck_ring.wrong(form, 200, 132)
    assert bad == 0 and total > 6e6


def test_the_unordered_ring_does():
    bad, total = racecheck_ring.wrong("nothing", 200, 132)
    assert bad > total / 100
