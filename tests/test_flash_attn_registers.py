"""flash_attn_registers: what test_forward does not ask, every access checked."""

import itertools

import pytest
from cases import check_forward, make_qkv

from fa_numba.on_cuda_cores.flash_attn_registers import flash_attn_registers
from fa_numba.tiling import register_tiling

pytestmark = pytest.mark.usefixtures("checked")


@pytest.mark.parametrize(
    "head_dim, block_m, block_n",
    [(6, 32, 32), (6, 64, 16), (70, 16, 16), (70, 32, 16), (100, 16, 16), (100, 32, 32)],
)
def test_tile_size_does_not_change_the_answer(rng, head_dim, block_m, block_n):
    q, k, v = make_qkv(rng, 1, 50, 70, 2, 1, head_dim)
    check_forward(flash_attn_registers, q, k, v, causal=True, block_m=block_m, block_n=block_n)


@pytest.mark.parametrize("head_dim, block_m, block_n", [(8, 16, 32), (70, 32, 64)])
def test_four_rows_of_a_thread(rng, head_dim, block_m, block_n):
    q, k, v = make_qkv(rng, 1, 50, 70, 2, 1, head_dim)
    tiles = {"block_m": block_m, "block_n": block_n, "rows": 4}
    check_forward(flash_attn_registers, q, k, v, causal=True, **tiles)


def test_there_are_tiles_for_every_head_dim_and_gpu():
    for head_dim, kib in itertools.product(range(1, 257, 15), [64, 99, 163, 227]):
        block_m, block_n = register_tiling.forward_block_sizes(head_dim, 1024 * kib)
        assert register_tiling.forward_fits(head_dim, block_m, block_n, 1024 * kib), (head_dim, kib)


@pytest.mark.parametrize(
    "tiles, message",
    [
        ({"block_m": 48}, "block_m must be 16, 32, 64 or 128, got 48"),
        ({"block_n": 1.0}, "block_n must be an integer, got 1.0"),
        ({"block_m": 128, "block_n": 128}, "block_m and block_n must fit .* got 128 and 128"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(rng, tiles, message):
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attn_registers(*make_qkv(rng, 1, 3, 3, 1, 1, 8), **tiles)
