"""copy_pages on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import check_copies, pages, strided

from fa_numba import copy_pages, simt
from fa_numba.kv_cache.copy_pages import copy_pages_kernel

pytestmark = pytest.mark.usefixtures("checked")


def caches(rng, *shape):
    return [rng.standard_normal(shape, dtype=np.float32) for _ in range(2)]


@pytest.mark.parametrize("page_size", [1, 2, 7, 16])
def test_page_sizes(rng, page_size):
    check_copies(copy_pages, *caches(rng, 7, page_size, 2, 8), pages(5, 0, 3), pages(1, 6, 4))


@pytest.mark.parametrize("num_kv_heads, head_dim", [(1, 1), (3, 33), (1, 59), (9, 111), (1, 256)])
def test_page_shapes(rng, num_kv_heads, head_dim):
    check_copies(copy_pages, *caches(rng, 4, 3, num_kv_heads, head_dim), pages(2, 0), pages(3, 1))


def test_no_copies(rng):
    check_copies(copy_pages, *caches(rng, 3, 4, 2, 8), pages(), pages())


def test_one_page_to_many(rng):
    check_copies(copy_pages, *caches(rng, 5, 4, 2, 8), pages(3, 3, 3), pages(0, 4, 1))


def test_strided_views(rng):
    views = [strided(x) for x in caches(rng, 6, 4, 2, 8)]
    numbers = np.array([5, 2, 3, 0], np.int32)
    numbers.flags.writeable = False
    check_copies(copy_pages, *views, numbers[::2], numbers[1::2])


def test_a_page_that_is_source_and_destination_would_be_a_race(rng):
    k, v = caches(rng, 4, 4, 2, 8)
    trace = simt.trace(copy_pages_kernel, 2, (32, 8), k, v, k, v, pages(0, 1), pages(1, 2))
    assert {race.kind for race in trace.races} <= {"RAW", "WAR"} and trace.races
    with pytest.raises(ValueError, match="no page in common"):
        copy_pages(k, v, pages(0, 1), pages(1, 2))
