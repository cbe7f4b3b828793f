"""Products by tiles with several sums in a thread: comparison, loads from shared memory, types."""

import numpy as np

from fa_numba.workbook.graders.causes import Wrong


def matrices(*shapes, seed=0):
    """Standard normal float32 matrices."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def expect_product(got, a, b, what, *, name="", causes=None, mistakes=()):
    """Fail unless got is a @ b; allowed is twice the error of a float32 loop over k.

    `what` is the case in words, `name` the product's, for the first wrong element. `causes` takes
    the wrong places, (number, 2), and returns a list of likely causes. `mistakes` are sentences,
    each with the product that its mistake makes; they come before `causes`.
    """
    want = a.astype(np.float64) @ b.astype(np.float64)
    plain = np.zeros(want.shape, np.float32)
    for k in range(a.shape[1]):
        plain += np.outer(a[:, k], b[k])
    tolerance = 2 * np.abs(plain - want).max() + 1e-6
    mask = ~(np.abs(got - want) <= tolerance)
    wrong = np.argwhere(mask)
    if len(wrong):
        row, col = wrong[0]
        found = [
            sentence
            for sentence, c in mistakes
            if np.allclose(got, c, rtol=1e-4, atol=10 * tolerance, equal_nan=True)
        ]
        found += [] if causes is None else causes(wrong)
        raise Wrong(
            f"{what}: {len(wrong)} of {want.size} elements are wrong, first {name}[{row}, {col}]: "
            f"want {want[row, col]:.6g}, got {got[row, col]:.6g} (allowed error {tolerance:.1e}). "
            + "".join(found[:1]),
            causes=found,
            wrong=mask,
            axes=("row", "column"),
            where=f"{name or 'element '}[{row}, {col}]",
        )


def product_mistakes(a, b, TILE):
    """(sentence, product) of mistakes with TILE values of k, and of both axes of c, at a time."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    k, K = np.arange(a.shape[1]), a.shape[1]
    for sentence, counted in (
        ("The last tile of k is left out where it is not full: range(0, K, TILE), as many steps as "
         "K / TILE rounded up.", k < K // TILE * TILE),
        ("Only the first tile of k counts: the sum goes on over all of them.", k < TILE),
        ("Only the last tile of k counts: the sum starts at 0 before the loop, not in it.",
         k >= (K - 1) // TILE * TILE),
        ("The last k of each tile is left out: range(TILE).", k % TILE < TILE - 1),
    ):  # fmt: skip
        yield sentence, (a * counted) @ b
    yield (
        "a_tile is read transposed: thread (ty, tx) takes its row ty.",
        turned(np.pad(a, [(0, 0), (0, -K % TILE)]), TILE) @ np.pad(b, [(0, -K % TILE), (0, 0)]),
    )
    yield (
        "b_tile is read transposed: thread (ty, tx) takes its column tx.",
        np.pad(a, [(0, 0), (0, -K % TILE)]) @ turned(np.pad(b, [(0, -K % TILE), (0, 0)]).T, TILE).T,
    )


def turned(x, TILE):
    """x with each TILE x TILE tile transposed; 0 stands beyond its ends."""
    rows, cols = x.shape
    x = np.pad(x, [(0, -rows % TILE), (0, -cols % TILE)])
    tiles = x.reshape(len(x) // TILE, TILE, -1, TILE)
    return tiles.transpose(0, 3, 2, 1).reshape(x.shape)[:rows, :cols]


def shared_loads(trace, *, most, products, rule):
    """Loads from shared memory of a launch; fail if there are more than `most`.

    `products` are the FMAs of the product, `rule` is the statement's budget, in words.
    """
    loads = {name: array.loads for name, array in trace.shared.items()}
    total = sum(loads.values())
    if total > most:
        each = ", ".join(f"{name} {number:,}" for name, number in loads.items())
        name = max(loads, key=loads.get)
        raise Wrong(
            f"{total:,} loads from shared memory ({each}) for {products:,} FMAs are "
            f"{total / products:.3g} for each FMA, allowed are {most / products:.3g}: {rule}",
            causes=[
                f"{name} is loaded most often: load a number into a register once, and use it for "
                "every product that needs it."
            ],
        )
    assert total, "nothing is loaded from shared memory: the tiles are there for the product"
    return total


def expect_float32(trace):
    """Fail with the lines of a launch that compute in float64."""
    lines = [line for line, number in trace.flops.of("float64").by_line.items() if number]
    if lines:
        numbers = " and ".join(f"line {line}" for line in sorted(lines))
        raise Wrong(
            f"{trace.flops.by_dtype['float64']:,} operations are on float64, in {numbers}",
            causes=[f"the first line that computes in float64 is line {min(lines)}."],
            where=f"line {min(lines)}",
        )
