"""Pictures that move: their numbers are the kernels' own, their words and controls are there."""

import functools
import importlib.util
import re
from html import escape, unescape

import numpy as np
import pytest
from colours import contrast
from matplotlib.colors import to_rgb
from numba import cuda

import fa_numba
from fa_numba import simt
from fa_numba.analysis.ring_pipeline import run_ring
from fa_numba.distributed import LAYOUTS, numpy_attn, ring_attn, run_ranks, shard
from fa_numba.figures.steps import flash_attn, steps
from fa_numba.figures.steps.butterfly import butterfly_steps
from fa_numba.figures.steps.mbarrier_ring import mbarrier_ring_steps
from fa_numba.figures.steps.page_pool import frame_of, page_pool_steps
from fa_numba.figures.steps.ring import ring_steps
from fa_numba.figures.steps.splits import split_steps
from fa_numba.kv_cache import PagePool, Scheduler
from fa_numba.workbook import own
from fa_numba.workbook.catalog import find_one

# --- FlashAttention-2, line by line


def learner_s(tmp_path, change=("", "")):
    """A learner's ex07d, our solution with one change, as lessons call it."""
    source = find_one("ex07d").solution.read_text(encoding="utf-8")
    assert change[0] in source
    path = tmp_path / "ex07d_learner.py"
    path.write_text(source.replace(*change), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("ex07d_learner", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return functools.partial(own.JOBS["ex07d"].call, module)


def after_each_tile(attn):
    """The numbers of query 0 at the last line of each tile."""
    found = flash_attn.states(flash_attn.recorded_lines(attn))
    return {int(state["n_start"]): state for _, state in found if state["n_start"] is not None}


def truth():
    """Scores and values of query 0, in float64."""
    given = []
    attn = fa_numba.flash_attn_v2
    flash_attn.recorded_lines(lambda *args, **kw: given.extend(args) or attn(*args, **kw))
    q, k, v = (x[0, :, 0].astype(np.float64) for x in given)
    return q[0] @ k.T / np.sqrt(flash_attn.D), v


@pytest.mark.parametrize("whose", ["package", "learner"])
def test_flash_attn_shows_the_kernel_s_own_numbers(whose, tmp_path):
    attn = fa_numba.flash_attn_v2 if whose == "package" else learner_s(tmp_path)
    scores, v = truth()
    m_before = -np.inf
    tiles = after_each_tile(attn)
    assert list(tiles) == [0, 4, 8]
    for n_start, state in tiles.items():
        seen = scores[: n_start + 4]
        p = np.exp(seen - seen.max())
        np.testing.assert_allclose(state["m_i"], seen.max(), rtol=1e-6)
        np.testing.assert_allclose(state["l_i"], p.sum(), rtol=1e-5)
        np.testing.assert_allclose(state["acc"], p @ v[: len(seen)], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state["alpha"], np.exp(m_before - seen.max()), rtol=1e-5)
        np.testing.assert_allclose(state["s_tile"], seen[-4:], rtol=1e-5)
        np.testing.assert_allclose(state["p_tile"], p[-4:], rtol=1e-5)
        m_before = seen.max()
    p = np.exp(scores - scores.max())
    np.testing.assert_allclose(state["out"], p @ v / p.sum(), rtol=1e-4)
    np.testing.assert_allclose(state["lse"], scores.max() + np.log(p.sum()), rtol=1e-6)
    assert np.diff([state["m_i"] for state in tiles.values()]).max() > 1, "nothing is rescaled"


def test_flash_attn_shows_a_learner_s_mistake(tmp_path):
    """Without alpha the sum grows: the picture shows what this kernel computes."""
    right, wrong = (
        after_each_tile(learner_s(tmp_path, change))
        for change in (("", ""), ("l_i *= alpha", "l_i *= float32(1.0)"))
    )
    assert wrong[0]["l_i"] == right[0]["l_i"]
    assert wrong[4]["l_i"] > 1.2 * right[4]["l_i"]
    assert wrong[4]["m_i"] == right[4]["m_i"]


def test_flash_attn_names_the_lines_that_ran(tmp_path):
    picture = flash_attn.flash_attn_steps(learner_s(tmp_path))
    said = picture.describe().splitlines()
    (rescaled,) = (x for x in said if "keys of tile 1" in x and "acc[i] *= alpha" in x)
    (before,) = (x for x in said if "keys of tile 1" in x and "l_i += p_tile" in x)
    assert rescaled.split("acc ")[1] != before.split("acc ")[1]
    assert "m −∞, l 0.00" in said[1]
    for step in picture.steps:
        number, source = re.search(r"line (\d+), (.*) →", step.words).groups()
        assert picture.code[step.line].split()[0] == number
        assert source in picture.code[step.line]


# --- The other pictures


FULL = 0xFFFFFFFF


@cuda.jit
def warp_sum(x, history):
    value, offset = x[cuda.threadIdx.x], 16
    for step in range(5):
        value += cuda.shfl_xor_sync(FULL, value, offset)
        history[step, cuda.threadIdx.x] = value
        offset //= 2


@cuda.jit
def shifted_sum(x, history):
    """No butterfly: each lane adds its neighbour's value."""
    value = x[cuda.threadIdx.x]
    for step in range(5):
        value += cuda.shfl_sync(FULL, value, (cuda.threadIdx.x + 1) % 32)
        history[step, cuda.threadIdx.x] = value


def run(kernel, x):
    history = np.zeros((5, 32), np.float32)
    simt.run(kernel, 1, 32, x, history)
    return history


def butterfly():
    return butterfly_steps(lambda x: run(warp_sum, x), np.arange(32, dtype=np.float32))


def test_a_butterfly_says_whose_values_a_lane_has():
    said = butterfly().describe().splitlines()
    partners = [int(re.search(r"value of lane (\d+)", line)[1]) for line in said[1:]]
    assert partners == [5 ^ 16, 5 ^ 8, 5 ^ 4, 5 ^ 2, 5 ^ 1]
    assert said[2].endswith(f"and holds {5 + 21 + 13 + 29}: that of 4 lanes")
    with pytest.raises(ValueError, match="pairs that differ in one bit"):
        butterfly_steps(lambda x: run(shifted_sum, x), np.ones(32, np.float32))


def labels_in_a_ring(comm):
    """Only the owner's number travels: the owners of a rank's keys."""
    x, seen = np.array([comm.rank]), []
    for _ in range(comm.world_size):
        seen.append(int(x[0]))
        x = comm.send_recv(x, (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size)
    return seen


def ring():
    owners, found = np.array(run_ranks(labels_in_a_ring, 4).results), {}
    for name in LAYOUTS:
        tokens = shard(np.arange(16), name, 4, axis=0)
        rank_of, step_of = np.zeros(16, int), np.full((16, 16), -1)
        for rank in range(4):
            rank_of[tokens[rank]] = rank
            for step, owner in enumerate(owners[rank]):
                step_of[np.ix_(tokens[rank], tokens[owner])] = step
        found[name] = rank_of, np.where(np.tri(16, dtype=bool), step_of, -1)
    return ring_steps(owners.T, found)


def test_pairs_of_ranks_are_those_that_a_ring_counts():
    lines = []
    for name in LAYOUTS:
        x = np.zeros((1, 16, 1, 4), np.float32)
        parts = [shard(x, name, 4)] * 3
        ran = run_ranks(ring_attn, 4, *parts, layout=name, causal=True, attn=numpy_attn)
        lines += [
            f"{name}, step {step}: pairs of ranks 0 to 3: {' '.join(map(str, pairs))}"
            for step, pairs in enumerate(ran.pairs.T)
        ]
    assert [step.words for step in ring().steps] == lines
    with pytest.raises(ValueError, match="at most 4 ranks, got 5"):
        ring_steps(np.zeros((5, 5), int))


def page_pool():
    scheduler = Scheduler(PagePool(12, 4, share_prefixes=False))
    asked = [(9, 10), (5, 22), (10, 6), (3, 20), (6, 9), (2, 5)]  # tokens of prompt and answer
    requests = [scheduler.submit([1] * n) for n, _ in asked]
    frames = []
    while scheduler.running or scheduler.waiting:
        scheduler.step()
        queue = [requests.index(request) for request in scheduler.waiting]
        gone = [i for i in queue if len(requests[i].tokens) > asked[i][0]]
        seqs = {requests.index(request): request.seq for request in scheduler.running}
        frames.append(frame_of(scheduler.pool, seqs, queue, gone))
        for request in list(scheduler.running):
            request.tokens.append(1)
            if len(request.tokens) == sum(asked[requests.index(request)]):
                scheduler.finish(request)
    return page_pool_steps(frames, 12, 4)


def test_pages_of_a_server_are_those_of_its_pool():
    words = [step.words for step in page_pool().steps]
    assert words[0] == "after step 1: A A A B B C C C D · · ·; in the queue E F"
    assert words[4] == "after step 5: A A A B B C C C · B C A; in the queue [D] E F"
    assert words[-1] == "after step 27: · · · F · · · · · F · ·"


def test_a_shared_page_has_all_its_owners():
    pool = PagePool(4, 2)
    first = pool.allocate([1, 2, 3])[0]
    second = pool.fork(first)
    frame = frame_of(pool, {0: first, 2: second, 3: None}, queue=[1])
    assert frame["pages"] == {0: ([0, 2], 2), 1: ([0, 2], 1)}
    (step,) = page_pool_steps([frame], 4, 2).steps
    assert step.words == "after step 1: AC AC · ·; in the queue B"
    assert ">AC</text>" in step.drawing


def programs(num_tiles, num_stages, parity=1):
    uses = [(tile, *divmod(tile, num_stages)) for tile in range(num_tiles)]
    producer, consumer = [], []
    for tile, use, stage in uses:
        producer += [("wait", "empty", stage, (use + parity) % 2), ("load", stage, tile)]
        consumer += [("wait", "full", stage, use % 2), ("read", stage, tile), ("arrive", stage)]
    return producer, [consumer]


def mbarriers():
    ran = run_ring(*programs(4, 2), 2, times=lambda who, tile: 3 if who else 5)
    return mbarrier_ring_steps(ran, 2)


def test_mbarriers_follow_the_ring_s_clock():
    said = {step.words.split(":")[0]: step for step in mbarriers().steps}
    assert list(said) == [f"time {t}" for t in (0, 5, 8, 11, 13, 16, 19)]
    assert said["time 5"].words.endswith("stage 0 is read: tile 0; stage 1 has tile 1")
    phases = re.findall(r"(?:full|empty): phase \d", said["time 13"].drawing)
    assert phases == ["full: phase 2", "empty: phase 1", "full: phase 1", "empty: phase 1"]
    with pytest.raises(ValueError, match="got a deadlock"):
        mbarrier_ring_steps(run_ring(*programs(4, 2, parity=0), 2), 2)


def splits():
    return split_steps({"one": [("head 0", 8)], "two": [("head 0", 4), ("head 1", 4)]}, 2)


def test_splits_are_scheduled():
    assert [step.words for step in splits().steps] == [
        "one: 1 thread blocks, done at 8, 50% busy",
        "two: 2 thread blocks, done at 4, 100% busy",
    ]


# --- What all of them share

PICTURES = (
    lambda: flash_attn.flash_attn_steps(fa_numba.flash_attn_v2),
    butterfly, ring, page_pool, mbarriers, splits,
)  # fmt: skip


@pytest.mark.parametrize("make", PICTURES)
def test_each_step_has_a_drawing_words_and_fits(make):
    picture = make()
    html, (width, height) = picture._repr_html_(), picture.size
    count = len(picture.steps)
    assert count > 1 and html.count("<svg") == html.count("<li>") == count
    assert html.count('class="fa-step"') == 1 + html.count(" hidden>") == count
    assert f'max="{count - 1}"' in html and html.count("<button") == html.count("</button>") == 3
    assert "http" not in html and "<script" not in html
    assert len(html) < 420_000, "it is in every saved notebook"
    assert repr(picture).startswith(picture.subject) and picture.subject.endswith(".")
    assert len(picture.describe().splitlines()) == count
    assert len({(step.drawing, step.line) for step in picture.steps}) == count, "nothing moves"
    assert width <= 345, "a phone is 360 wide"
    for step in picture.steps:
        assert step.words in repr(picture) and f"<li>{escape(step.words)}</li>" in html
        for x, y, wide, high in re.findall(
            r'<rect [^>]*x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', step.drawing
        ):
            assert float(x) + float(wide) <= width and float(y) + float(high) <= height
        for x, y, anchor, size, words in re.findall(
            r'x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)" font-size="(\d+)">([^<]*)<',
            step.drawing,
        ):
            space = 0.54 * float(size) * len(unescape(words)) * (0.5 if anchor == "middle" else 1)
            assert float(x) + space <= width and float(y) <= height, words


@pytest.mark.parametrize("page", [steps.LIGHT_PAGE, steps.DARK_PAGE])
def test_colours_stand_out_in_both_themes(page):
    colours = {name: np.array(to_rgb(colour)) for name, colour in page.items()}
    for name in ("ink", "grey"):
        assert contrast(colours[name], colours["paper"]) >= 4.5
    assert contrast(colours["ink"], colours["pale"]) >= 4.5
    for name in steps.COLOURS:
        assert contrast(colours["paper"], colours[name]) >= 4.5
        faint = 0.3 * colours[name] + 0.7 * colours["paper"]
        assert contrast(colours["ink"], faint) >= 4.5


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="steps must be at least one, got"):
        steps.Steps("Nothing.", [], (10, 10))
