"""Models that lessons run: heads with attention sinks (16), a head that looks things up (20)."""

import math

import numpy as np
import pytest

from fa_numba.workbook import attention_sinks, induction_head


def test_two_kept_tokens_repair_a_head_that_looks_near_and_no_other():
    near, without, everywhere = attention_sinks.sink_errors().values()
    assert near[0] > 1 and near[2] < 0.1, "wrong by more than its size, then right"
    assert without[0] < 0.1 and abs(without[2] - without[0]) < 0.02, "there was nothing to repair"
    assert everywhere[2] > 0.1


def test_what_stays_grows_as_the_dropped_weight_says():
    everything, alone, both = attention_sinks.sink_weights().values()
    dropped = everything[np.isnan(alone)].sum()
    assert dropped > 0.8
    np.testing.assert_allclose(alone[~np.isnan(alone)].sum(), 1, rtol=1e-5)
    stays = ~np.isnan(alone)
    np.testing.assert_allclose(alone[stays] / everything[stays], 1 / (1 - dropped), rtol=1e-4)
    assert np.nansum(both[:2]) > 0.5


def test_gradient_of_the_learned_map_is_the_difference():
    q, k, _ = induction_head.head(1)
    p = induction_head.softmax_weights(q, k)
    for phi in (induction_head.both_signs, induction_head.one_sign):
        w = induction_head.untrained(3)
        _, gradient = induction_head.loss_and_gradient(q, k, w, p, phi)
        for index in ((0, 0, 0), (1, 15, 2)):
            step = np.zeros_like(w)
            step[index] = 1e-6
            up, down = (
                induction_head.loss_and_gradient(q, k, w + sign * step, p, phi)[0]
                for sign in (1, -1)
            )
            assert math.isclose(gradient[index], (up - down) / 2e-6, rel_tol=1e-4, abs_tol=1e-8)


def test_arguments_of_the_head_are_named():
    with pytest.raises(ValueError, match="start"):
        induction_head.head(0)
    with pytest.raises(ValueError, match="signs"):
        induction_head.trained(32, 3)
