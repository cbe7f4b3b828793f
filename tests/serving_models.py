"""Models and servers of the serving tests."""

import contextlib
import dataclasses
import itertools
import threading
import time

import numpy as np

from fa_numba.kernels import e4m3
from fa_numba.language_model.model import Config, init_weights
from fa_numba.language_model.server import Engine, Options
from fa_numba.language_model.text import Characters

CHARACTERS = Characters.of("\n abcdefghijklmnopqrstuvwxyz.,ABCDEFGHIJKLMNOPQRSTUVW")
CONFIG = Config(len(CHARACTERS), layers=2, heads=4, kv_heads=2, head_dim=16, context=128)
# Eight times as large as at first: answers then depend on every token before.
WEIGHTS = {name: 8 * x for name, x in init_weights(CONFIG, seed=1).items()}


LATENT = dataclasses.replace(CONFIG, kv_heads=4, latent_dim=24)
LATENT_WEIGHTS = {name: 8 * x for name, x in init_weights(LATENT, seed=1).items()}


def make_engine(weights=WEIGHTS, config=CONFIG, **options):
    """An engine whose pages are full of NaN, which must not be read."""
    engine = Engine(weights, config, decode=CHARACTERS.decode, **options)
    nothing = e4m3.NAN_BYTE if engine.model.in_8_bits else np.nan
    engine.model.k_caches[:] = engine.model.v_caches[:] = nothing
    for scale in engine.model.scales:
        scale[:] = np.nan
    return engine


def submit_or_cancel(engine, rng, live, stems, *, most, chance, longest):
    """Perhaps add a request to `live`, perhaps cancel one of them. A page has 4 tokens.

    Its prompt begins as one of `stems`; its answer has fewer than `longest` tokens.
    """
    if len(live) < most and rng.random() < chance:
        stem = stems[rng.integers(4)][: rng.integers(1, 16)]
        prompt = stem + rng.integers(0, 9, rng.integers(3)).tolist()
        kinds = {"temperature": 0}, {"n": int(rng.integers(1, 4))}, {"beams": 2}
        options = Options(max_tokens=int(rng.integers(1, longest)), **kinds[rng.integers(3)])
        if options.width * -(-(len(prompt) + options.max_tokens) // 4) <= engine.pool.num_pages:
            live.append(engine.submit(prompt, options))
    if live and rng.random() < 0.05:
        engine.cancel(live[rng.integers(len(live))])


def assert_empty(engine):
    """No page is used, in the pool or on the host, and no request runs or waits."""
    schedule = engine.schedule
    assert not schedule.running and not len(schedule.queue) and not list(schedule.queue)
    for pool in (schedule.pool, schedule.host_pool):
        assert pool is None or (pool.num_free == pool.num_pages and not pool.sequences)


def wait_until(condition, seconds=20):
    """Wait for another thread or process; the time is a limit, and no test passes because of it."""
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
    return _after(_codes(tokens)[-1])


def _after(code):
    return [(code >> 7) % 9, 9 + (code >> 13) % 9, 18 + (code >> 17) % 9]


def _add(code, token):
    return (code * 1_000_003 + token + 1) % (2**61 - 1)


def _codes(tokens):
    """A number for each token that depends on all tokens up to it, as its keys do."""
    return list(itertools.accumulate(tokens, _add, initial=1))[1:]


def _codes_of_rows(part):
    """The number of each row of a part."""
    codes = _codes(part.branch.tokens[: part.stop])[part.start :]
    if part.draft:
        for token, parent in zip(part.draft.tokens, part.draft.parents, strict=True):
            codes.append(_add(codes[parent], token))
    return codes


class Ledger:
    """A stand-in for the model: pages of codes, each of which says which prefix belongs there."""

    def __init__(self, engine):
        pool, host = engine.pool, engine.schedule.host_pool
        self.pool = pool
        self.pages = np.zeros((pool.num_pages, pool.page_size), np.int64)
        self.host = np.zeros((host.num_pages, pool.page_size), np.int64)
        self.copied = self.moved = 0

    def keep(self, src, dst):
        slots = self.pages.reshape(-1)
        slots[dst] = slots[src]
        self.moved += len(src)

    def run(self, plan, temperatures, number):
        src, dst = plan.swap_out
        self.host[dst] = self.pages[src]
        src, dst = plan.swap_in
        self.pages[dst] = self.host[src]
        src, dst = plan.copies
        self.pages[dst] = self.pages[src]
        self.copied += len(src)
        slots, chosen = self.pages.reshape(-1), []
        work = [  # branch, numbers of its rows, tokens that it has, how many rows choose
            *((b, _codes(b.tokens)[-1:], len(b.tokens), 1) for _, b in plan.decoding.members),
            *(
                (p.branch, _codes_of_rows(p), p.start + 1 if p.draft else p.stop, p.choices)
                for p in plan.parts
            ),
        ]
        codes = [code for _, found, *_ in work for code in found]
        for code, slot in zip(codes, plan.rows()[2], strict=True):
            if slot >= 0:
                slots[slot] = code
        for branch, found, known, choices in work:
            pages, code = self.pool.pages(branch.seq), _codes(branch.tokens[:known])
            assert self.pages[pages].ravel()[:known].tolist() == code, "a page of another prefix"
            chosen += map(_after, found[len(found) - choices :])
        tokens = [b.tokens[-1:] for _, b in plan.decoding.members] + [
            p.tokens() for p in plan.parts
        ]
        assert list(itertools.chain(*tokens)) == plan.rows()[0].tolist()
        decoding = plan.decoding
        for (_, branch), row in zip(decoding.members, decoding.rows, strict=True):
            pages = self.pool.pages(branch.seq)
            assert self.pool.tokens(branch.seq) == branch.tokens
            assert row["pages"][: len(pages) + 1].tolist() == [*pages, -1]
        tokens = np.array(chosen, np.int32).reshape(-1, 3)
        return np.tile(np.array([0.5, 0.3, 0.2], np.float32), (len(tokens), 1)), tokens
