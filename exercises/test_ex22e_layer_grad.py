"""Grader of ex22e: the attention half of a layer backwards, against float64."""

import numpy as np
import pytest

from fa_numba.workbook.graders.training import (
    expect,
    expect_same,
    functions_of_a_layer,
    random_layer,
)

USUAL = {
    "The residual is missing: x also reaches middle directly.": {"residual": False},
    "The gradient does not pass the norm: normalize_grad.": {"through_norm": False},
    "dw_qkv has x in it; the product is normalize(x) @ w_qkv.": {"normed": False},
    "dout is not dmiddle: between them is the product with w_out.": {"projected": False},
    "w_out is not transposed in dout = dmiddle @ w_out.T.": {"transposed": False},
    "join is not called: it undoes the rotation.": {"joined": False},
    "dmiddle is added twice: normalize_grad adds its third argument.": {"once": False},
    "normalize_grad takes x, the input of the norm, not its result.": {"of_x": False},
    "dw_out is transposed: y = x @ w has dw = x.T @ dy.": {"inner": False},
}
SIZES = [(1, 1, 1, 1, 2), (1, 6, 2, 2, 4), (3, 4, 4, 1, 4), (130, 2, 6, 3, 4)]
EACH = pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes)))


def run(exercise, layer, dmiddle=None):
    dmiddle = layer.dmiddle if dmiddle is None else dmiddle
    given = dmiddle, layer.saved, layer.w_qkv, layer.w_out
    got = exercise.layer_grad(*given, *functions_of_a_layer())
    assert isinstance(got, tuple | list) and len(got) == 3, (
        f"layer_grad must return (dx, dw_qkv, dw_out), got {got!r:.60}"
    )
    return dict(zip(("dx", "dw_qkv", "dw_out"), got, strict=True))


def check(exercise, layer, names, of):
    got, want, plain = run(exercise, layer), layer.gradients(), layer.plain.gradients()
    for name in names:
        mistakes = ((said, layer.gradients(**option)[name]) for said, option in USUAL.items())
        expect(name, got[name], want[name], plain[name], of=of, mistakes=mistakes)


@EACH
def test_out_weights(exercise, sizes):
    """dw_out: the product after attention"""
    check(exercise, random_layer(*sizes), ["dw_out"], "batch {}, seqlen {}".format(*sizes))


@EACH
def test_qkv_weights(exercise, sizes):
    """dw_qkv: through attention to the product before it"""
    check(exercise, random_layer(*sizes), ["dw_qkv"], "batch {}, seqlen {}".format(*sizes))


@EACH
def test_x(exercise, sizes):
    """dx: through attention and norm, and past both"""
    check(exercise, random_layer(*sizes), ["dx"], "batch {}, seqlen {}".format(*sizes))


def test_finite_differences(exercise):
    """dx is the slope of a loss"""
    layer = random_layer(1, 3, 2, 1, 2, seed=1)
    dx = np.asarray(run(exercise, layer)["dx"])
    assert dx.shape == layer.x.shape, f"dx must have the shape {layer.x.shape}, got {dx.shape}"
    for at in np.ndindex(layer.x.shape):
        moved = layer.x.astype(np.float64)
        moved[at] += 1e-5
        up = layer.loss(moved)
        moved[at] -= 2e-5
        slope = (up - layer.loss(moved)) / 2e-5
        assert abs(dx[at] - slope) <= 2e-4 * max(1, abs(slope)), (
            f"dx{list(at)}: the loss changes by {slope:.5f} per unit, got {dx[at]:.5f}"
        )


def test_no_gradient(exercise):
    """dmiddle = 0: all gradients are 0"""
    layer = random_layer()
    for name, got in run(exercise, layer, 0 * layer.dmiddle).items():
        assert not np.any(got), f"{name} must be 0"


def test_a_later_token(exercise):
    """a loss of one token reaches that token and those before it, of its sequence alone"""
    layer = random_layer(2, 4, 2, 1, 4, seed=2)
    dmiddle = np.zeros_like(layer.dmiddle)
    dmiddle[2] = layer.dmiddle[2]
    reached = np.any(run(exercise, layer, dmiddle)["dx"], axis=1).tolist()
    assert reached == [True] * 3 + [False] * 5, (
        f"a gradient at token 2 of sequence 0: dx is not 0 at rows {np.flatnonzero(reached)}, "
        "expected 0, 1 and 2"
    )


def test_inputs_unchanged(exercise):
    """no argument is changed"""
    layer = random_layer(seed=3)
    given = layer.dmiddle, *layer.saved, layer.w_qkv, layer.w_out
    before = [x.copy() for x in given]
    run(exercise, layer)
    names = "dmiddle", "x", "q", "k", "v", "out", "lse", "w_qkv", "w_out"
    for name, now, was in zip(names, given, before, strict=True):
        expect_same(name, now, was)
