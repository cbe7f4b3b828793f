"""Models and servers of the serving tests."""

import contextlib
import threading
import time

import numpy as np

from fa_numba.kernels import e4m3
from fa_numba.language_model.model import Config, init_weights
from fa_numba.language_model.server import Engine
from fa_numba.language_model.text import Characters

CHARACTERS = Characters.of("\n abcdefghijklmnopqrstuvwxyz.,ABCDEFGHIJKLMNOPQRSTUVW")
CONFIG = Config(len(CHARACTERS), layers=2, heads=4, kv_heads=2, head_dim=16, context=128)
# Eight times as large as at first: answers then depend on every token before.
WEIGHTS = {name: 8 * x for name, x in init_weights(CONFIG, seed=1).items()}


def make_engine(**options):
    """An engine whose pages are full of NaN, which must not be read."""
    engine = Engine(WEIGHTS, CONFIG, decode=CHARACTERS.decode, **options)
    nothing = e4m3.NAN_BYTE if engine.model.in_8_bits else np.nan
    engine.model.k_caches[:] = engine.model.v_caches[:] = nothing
    for scale in engine.model.scales:
        scale[:] = np.nan
    return engine


def assert_empty(engine):
    """No page is used, in the pool or on the host, and no request runs or waits."""
    schedule = engine.schedule
    assert not schedule.running and not len(schedule.queue) and not list(schedule.queue)
    for pool in (schedule.pool, schedule.host_pool):
        assert pool is None or (pool.num_free == pool.num_pages and not pool.sequences)


def wait_until(condition, seconds=20):
    """Wait for another thread; the time is a limit, and no test passes because of it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come about"
        time.sleep(0.002)


@contextlib.contextmanager
def serving(engine, **options):
    """A web server in a thread, on a port of its own; yields its address."""
    import uvicorn

    from fa_numba.language_model.server.http import make_app

    app = make_app(engine, CHARACTERS, model="tiny", **options)
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def next_tokens(tokens):
    """The three most likely next tokens of `Ledger`."""
    code = _code(tokens)[-1]
    return [(code >> 7) % 9, 9 + (code >> 13) % 9, 18 + (code >> 17) % 9]


def _code(tokens):
    """A number for each token that depends on all tokens up to it, as its keys do."""
    codes, code = [], 1
    for token in tokens:
        code = (code * 1_000_003 + token + 1) % (2**61 - 1)
        codes.append(code)
    return codes


class Ledger:
    """A stand-in for the model: pages of codes, each of which says which prefix belongs there."""

    def __init__(self, engine):
        pool, host = engine.pool, engine.schedule.host_pool
        self.pool = pool
        self.pages = np.zeros((pool.num_pages, pool.page_size), np.int64)
        self.host = np.zeros((host.num_pages, pool.page_size), np.int64)
        self.copied = 0

    def run(self, plan, temperatures, number):
        src, dst = plan.swap_out
        self.host[dst] = self.pages[src]
        src, dst = plan.swap_in
        self.pages[dst] = self.host[src]
        src, dst = plan.copies
        self.pages[dst] = self.pages[src]
        self.copied += len(src)
        slots, chosen = self.pages.reshape(-1), []
        decoding = plan.decoding
        work = [  # branch, end, whether its last token chooses
            *((branch, len(branch.tokens), True) for _, branch in decoding.members),
            *((part.branch, part.stop, part.chosen) for part in plan.parts),
        ]
        codes = [_code(branch.tokens[:stop]) for branch, stop, _ in work]
        sizes = [1] * len(decoding) + [part.stop - part.start for part in plan.parts]
        of = np.repeat(np.arange(len(work)), sizes)  # each row
        for i, token, position, slot in zip(of, *plan.rows(), strict=True):
            assert work[i][0].tokens[position] == token
            if slot >= 0:
                slots[slot] = codes[i][position]
        for (branch, stop, choose), code in zip(work, codes, strict=True):
            pages = self.pool.pages(branch.seq)
            assert self.pages[pages].ravel()[:stop].tolist() == code, "a page of another prefix"
            if choose:
                chosen.append(next_tokens(branch.tokens[:stop]))
        for (_, branch), row in zip(decoding.members, decoding.rows, strict=True):
            pages = self.pool.pages(branch.seq)
            assert self.pool.tokens(branch.seq) == branch.tokens
            assert row["pages"][: len(pages) + 1].tolist() == [*pages, -1]
        tokens = np.array(chosen, np.int32).reshape(-1, 3)
        return np.tile(np.array([0.5, 0.3, 0.2], np.float32), (len(tokens), 1)), tokens
