"""Models and servers of the serving tests."""

import contextlib
import threading
import time

import numpy as np

from fa_numba.language_model.model import Config, init_weights
from fa_numba.language_model.server import Engine
from fa_numba.language_model.text import Characters

CHARACTERS = Characters.of("\n abcdefghijklmnopqrstuvwxyz.,ABCDEFGHIJKLMNOPQRSTUVW")
CONFIG = Config(len(CHARACTERS), layers=2, heads=4, kv_heads=2, head_dim=16, context=128)
# Eight times as large as at first: answers then depend on every token before.
WEIGHTS = {name: 8 * x for name, x in init_weights(CONFIG, seed=1).items()}


def make_engine(**options):
    """An engine whose pages are full of NaN, which nobody may read."""
    engine = Engine(WEIGHTS, CONFIG, decode=CHARACTERS.decode, **options)
    engine.model.k_caches[:] = engine.model.v_caches[:] = np.nan
    return engine


def assert_empty(engine):
    """No page is used, in the pool or on the host, and nobody is served or waits."""
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
def serving(engine):
    """A web server in a thread, on a port of its own; yields its address."""
    import uvicorn

    from fa_numba.language_model.server.http import make_app

    app = make_app(engine, CHARACTERS, model="tiny")
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
