"""swap_pages on the CPU engine, with its device arrays in place of GPU arrays."""

import numpy as np
import pytest
from cases import pages, strided, to_host
from numba import cuda

from fa_numba import reference, swap_pages
from fa_numba.runtime import arrays

pytestmark = [
    pytest.mark.usefixtures("checked"),
    pytest.mark.skipif(arrays.gpu_available(), reason="test_gpu.py has these cases"),
]
SOURCE, TARGET = pages(5, 0, 3, 3), pages(1, 4, 0, 2)


def caches(rng, *shape):
    return [rng.standard_normal(shape, dtype=np.float32) for _ in range(2)]


def check(source, target, src, dst, *, on_device=(False, False)):
    want = reference.swap_pages(*source, *target, src, dst)
    before = [x.copy() for x in source]
    if on_device[0]:
        source = [cuda.to_device(x) for x in source]
    if on_device[1]:
        target = [cuda.to_device(x) for x in target]
    assert swap_pages(*source, *target, src, dst) is None
    for x, x_ref in zip([*source, *target], [*before, *want], strict=True):
        np.testing.assert_array_equal(to_host(x), x_ref, strict=True)


@pytest.mark.parametrize("on_device", [(True, False), (False, True), (False, False), (True, True)])
@pytest.mark.parametrize("page_shape", [(1, 1, 1), (4, 2, 8), (7, 9, 33)])
def test_directions(rng, page_shape, on_device):
    source, target = caches(rng, 6, *page_shape), caches(rng, 5, *page_shape)
    check(source, target, SOURCE, TARGET, on_device=on_device)


@pytest.mark.parametrize("on_device", [(True, False), (False, True)])
def test_no_pages(rng, on_device):
    source, target = caches(rng, 6, 4, 2, 8), caches(rng, 5, 4, 2, 8)
    check(source, target, pages(), pages(), on_device=on_device)


def test_strided_views(rng):
    source, target = caches(rng, 6, 4, 2, 8), caches(rng, 5, 4, 2, 8)
    check([strided(x) for x in source], [strided(x) for x in target], SOURCE, TARGET)
    check(source, [strided(x) for x in target], SOURCE, TARGET, on_device=(True, False))


def test_there_and_back(rng):
    k, v = caches(rng, 6, 4, 2, 8)
    on_gpu, host = [cuda.to_device(x) for x in (k, v)], caches(rng, 3, 4, 2, 8)
    swap_pages(*on_gpu, *host, pages(4, 1), pages(2, 0))
    swap_pages(*host, *on_gpu, pages(0, 2), pages(1, 4))
    for x, y in zip(on_gpu, (k, v), strict=True):
        np.testing.assert_array_equal(x.copy_to_host(), y)
