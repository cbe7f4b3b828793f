"""The time table of products and softmax: nothing before what it needs, shares as by hand."""

import itertools

import pytest

from fa_numba.analysis.overlap import TENSOR, overlap, tensor_share

WAYS = list(itertools.product((1, 2, 3), (False, True), (0.5, 1.0, 2.0)))


@pytest.mark.parametrize("warpgroups, ahead, exp_time", WAYS)
def test_everything_once_and_after_what_it_needs(warpgroups, ahead, exp_time, num_tiles=5):
    done = overlap(num_tiles, exp_time, warpgroups=warpgroups, ahead=ahead)
    assert len(done) == 3 * num_tiles * warpgroups
    at = {(o.name, o.tile, o.warpgroup): o for o in done}
    for (name, tile, w), o in at.items():
        before = {"S": None, "P": ("S", tile, w), "O": ("P", tile, w)}[name]
        assert before is None or at[before].end <= o.start
        if name == "S" and tile:
            assert at["P", tile - 1, w].end <= o.start  # the registers of s are free
        if name == "P" and tile > 1:
            assert at["O", tile - 2, w].end <= o.start
    for one, two in itertools.combinations(done, 2):  # a unit does one thing at a time
        assert one.unit != two.unit or one.end <= two.start or two.end <= one.start


def test_shares():
    assert tensor_share(overlap(9, 1.0)) == pytest.approx(2 / 3)
    assert tensor_share(overlap(9, 2.0)) == pytest.approx(1 / 2)
    ahead = overlap(100, 1.0, ahead=True)
    assert tensor_share(ahead) > 0.99  # all but the first softmax
    assert [o.name + str(o.tile) for o in ahead if o.unit == TENSOR][:5] == (
        ["S0", "S1", "O0", "S2", "O1"]
    )
    assert tensor_share(overlap(100, 1.0, warpgroups=2)) > 0.98
