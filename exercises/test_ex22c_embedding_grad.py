"""Grader of ex22c: the gradient of a tied embedding, against float64."""

import numpy as np

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.elements import expect_neighbours
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory
from fa_numba.workbook.graders.training import expect

NAMES = "tokens", "dx0", "dlogits", "last"
NUM_THREADS = 64


def case(rows=12, vocabulary=5, width=4, *, seed=0, tokens=None):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocabulary, rows) if tokens is None else np.asarray(tokens)
    rows = len(tokens)
    shapes = (rows, width), (rows, vocabulary), (rows, width)
    return tokens.astype(np.int32), *(rng.standard_normal(shape, np.float32) for shape in shapes)


def run(exercise, tokens, dx0, dlogits, last):
    given = dict(zip(NAMES, (tokens, dx0, dlogits, last), strict=True))
    given["dembedding"] = np.full((dlogits.shape[1], last.shape[1]), np.nan, np.float32)
    got, trace = launched(exercise.kernel, dlogits.shape[1], NUM_THREADS, ("dembedding",), **given)
    return got["dembedding"], trace


def uses(tokens, dx0, dlogits, last, dtype=np.float64):
    """The gradients by the lookup and by the logits."""
    one_hot = (tokens[:, None] == np.arange(dlogits.shape[1])).astype(dtype)
    return one_hot.T @ dx0.astype(dtype), dlogits.T.astype(dtype) @ last.astype(dtype)


def check(exercise, given, of):
    tokens, dx0, dlogits, last = given
    lookup, by_logits = uses(*given)
    once = by_logits.copy()
    once[tokens] += dx0
    mean = by_logits + lookup / np.maximum(1, np.bincount(tokens, minlength=len(lookup)))[:, None]
    mistakes = [
        ("Of rows with the same token one is added: the others are lost.", once),
        ("The gradient by the logits is missing: the embedding is used twice.", lookup),
        ("The gradient by the lookup is missing: the embedding is used twice.", by_logits),
        ("Rows of the same token add up; that is their mean.", mean),
        ("Rows of all tokens are added: of dx0 only those of the thread block's symbol count.",
         by_logits + dx0.astype(np.float64).sum(axis=0)),
        ("The last row takes no part.", sum(uses(*(x[:-1] for x in given)))),
        ("dlogits[row, symbol] is wanted, of the thread block's symbol and not of the row's token.",
         lookup + (dlogits[np.arange(len(tokens)), tokens, None] * last).sum(axis=0)),
    ]  # fmt: skip
    plain = sum(uses(*given, np.float32))
    got, _ = run(exercise, *given)
    expect("dembedding", got, lookup + by_logits, plain, of=of, mistakes=mistakes)


def test_each_token_once(exercise):
    """each token once"""
    check(exercise, case(tokens=[3, 0, 4, 1, 2]), "tokens 3 0 4 1 2")


def test_tokens_again(exercise):
    """tokens that come several times: their rows add up"""
    check(exercise, case(tokens=[1, 1]), "tokens 1 1")
    check(exercise, case(tokens=[2, 0, 2, 2, 0]), "tokens 2 0 2 2 0")


def test_tokens_that_never_come(exercise):
    """a symbol that is not in the batch has the gradient of its logits alone"""
    check(exercise, case(tokens=[0, 4]), "tokens 0 4 of 5")


def test_a_batch(exercise):
    """a batch of 300 tokens; 303 symbols; 650 numbers each"""
    check(exercise, case(300, 5, 7, seed=1), "300 tokens")
    check(exercise, case(3, 303, 5, seed=1), "303 symbols")
    check(exercise, case(4, 3, 650, seed=1), "650 numbers each")


def test_a_product_alone(exercise):
    """dx0 = 0: the gradient of the product"""
    tokens, dx0, dlogits, last = case(seed=2)
    check(exercise, (tokens, 0 * dx0, dlogits, last), "dx0 = 0")


def test_a_lookup_alone(exercise):
    """dlogits = 0: the gradient of the lookup"""
    tokens, dx0, dlogits, last = case(seed=3)
    check(exercise, (tokens, dx0, 0 * dlogits, last), "dlogits = 0")


def test_finite_differences(exercise):
    """the slope of a loss of both uses"""
    tokens, dx0, dlogits, last = case(6, 4, 3, seed=4)
    got, _ = run(exercise, tokens, dx0, dlogits, last)

    def loss(embedding):
        return (dx0 * embedding[tokens]).sum() + (dlogits * (last @ embedding.T)).sum()

    for at in np.ndindex(4, 3):
        moved = np.zeros((4, 3))
        moved[at] = 1e-3
        slope = (loss(moved) - loss(-moved)) / 2e-3
        assert abs(got[at] - slope) <= 1e-4 * max(1, abs(slope)), (
            f"dembedding{list(at)}: the loss changes by {slope:.5f} per unit, got {got[at]:.5f}"
        )


def test_traffic(exercise):
    """dx0 is loaded once, dembedding is stored once, by neighbouring threads"""
    given = case(9, 4, 64, seed=5)
    _, trace = run(exercise, *given)
    expect_at_most(
        trace,
        dx0_loads=(9 * 64, "a row by the thread block of its token"),
        last_loads=(4 * 9 * 64, "once for each symbol"),
        dembedding_loads=(0, "a sum is kept in a register"),
        dembedding_stores=(4 * 64, "once for each element"),
    )
    expect_neighbours(
        trace, ["dembedding", "dx0"], "Neighbouring threads have neighbouring columns."
    )
    expect_chip_memory(trace, allowed="a sum is one register")
    assert not trace.barriers, "no thread reads what another one writes: no barrier"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    gpu_ready(exercise.kernel, (*case(), np.zeros((5, 4), np.float32)))
