"""The language model on CuPy arrays: the same numbers as on NumPy arrays."""

import functools

import numpy as np
import pytest

import fa_numba
from fa_numba.language_model import adamw, generate, gradients, model, products, rows, text
from fa_numba.language_model.model import Config
from fa_numba.language_model.train import Recipe, Trainer

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

NANOGPT = Config(65, layers=6, heads=6, kv_heads=6, head_dim=64, context=256)
ALLOWED = {"float32": 1e-5, "float16": 8e-3}


@pytest.fixture(autouse=True, params=["0", "1"], ids=["CuPy's products", "cuBLAS"])
def way(request, monkeypatch):
    """Each test runs with the products of CuPy, and with cuBLAS called directly."""
    monkeypatch.setenv("FA_NUMBA_CUBLAS", request.param)
    products.cublas.cache_clear()
    yield request.param
    products.cublas.cache_clear()


def host(x):
    return cupy.asnumpy(x).astype(np.float32)


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize("shape", ((13, 96), (1000, 384), (3, 50)))
def test_rows(rng, dtype, shape):
    x, dy, added = (2 * rng.standard_normal((3, *shape))).astype(dtype)
    on_gpu = [cupy.asarray(a) for a in (x, dy, added)]
    x, dy, added = (a.astype(np.float32) for a in (x, dy, added))
    close = functools.partial(np.testing.assert_allclose, rtol=ALLOWED[dtype], atol=ALLOWED[dtype])
    close(host(rows.normalize(on_gpu[0])), rows.normalize(x))
    got = rows.normalize_grad(on_gpu[1], on_gpu[0], on_gpu[2])
    assert got.dtype == dtype
    close(host(got), rows.normalize_grad(dy, x, added))
    close(host(rows.square_relu(on_gpu[0])), rows.square_relu(x))
    close(host(rows.square_relu_grad(on_gpu[1], on_gpu[0])), rows.square_relu_grad(dy, x))


@pytest.mark.parametrize("dtype", ALLOWED)
def test_rotate(rng, dtype):
    x, positions = rng.standard_normal((100, 6, 64)).astype(dtype), rng.integers(0, 256, 100)
    on_gpu, x = cupy.asarray(x), x.astype(np.float32)
    for back in (False, True):
        for a in (on_gpu, x):
            at = cupy.asarray(positions) if a is on_gpu else positions
            rows.rotate(a[:, :5], at, *model.rotary_table_for(NANOGPT, a), back=back)
        np.testing.assert_allclose(host(on_gpu), x, rtol=ALLOWED[dtype], atol=ALLOWED[dtype])


def test_adamw(rng):
    numbers = rng.standard_normal((4, 100_003), dtype=np.float32)
    numbers[2] = abs(numbers[2])
    on_gpu = cupy.asarray(numbers)
    of_step = adamw.numbers_of(3, Recipe())
    adamw.update(*numbers, of_step)
    adamw.update(*on_gpu, cupy.asarray(of_step))
    np.testing.assert_allclose(host(on_gpu[:3]), numbers[:3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype, allowed", (("float32", 1e-5), ("float16", 5e-3)))
def test_products(rng, way, dtype, allowed):
    assert (products.cublas(cupy.cuda.Device().id) is not None) == (way == "1")
    a, b = (
        rng.standard_normal((300, 129)).astype(dtype),
        rng.standard_normal((129, 77)).astype(dtype),
    )
    want = a.astype(np.float64) @ b.astype(np.float64)
    for on_gpu in (cupy.asarray(a), cupy.asfortranarray(cupy.asarray(a))):
        out = cupy.full((300, 77), np.nan, np.float32)
        products.product(on_gpu, cupy.asarray(b), out=out, scale=0.5)
        products.product(on_gpu, cupy.asarray(b.T.copy()).T, out=out, scale=0.5, add=True)
        for got in (out, on_gpu @ products.Factor(cupy.asarray(b))):
            assert np.abs(host(got) - want).max() < allowed * np.sqrt(129)


@pytest.mark.parametrize("dtype, allowed", (("float32", 2e-4), ("float16", 3e-2)))
@pytest.mark.parametrize(
    "config",
    (Config(65), NANOGPT, Config(65, kv_heads=4, latent_dim=48)),
    ids=("default", "nanoGPT", "latents"),
)
def test_gradients(rng, config, dtype, allowed):
    weights = {name: 3 * w for name, w in model.init_weights(config).items()}
    tokens = rng.integers(0, 65, (4, config.context + 1)).astype(np.int32)
    loss, want = gradients.loss_and_grads(weights, config, tokens[:, :-1], tokens[:, 1:])
    weights, tokens = {n: cupy.asarray(w, dtype) for n, w in weights.items()}, cupy.asarray(tokens)
    got_loss, got = gradients.loss_and_grads(weights, config, tokens[:, :-1], tokens[:, 1:])
    assert abs(float(got_loss) - loss) < allowed / 5
    for name in want:
        assert got[name].dtype == np.float32
        error = np.linalg.norm(host(got[name]) - want[name]) / np.linalg.norm(want[name])
        assert error < allowed, (name, error)


def trainer(xp=cupy, graph=True, latent_dim=0, **options):
    topics = text.topics()
    characters = text.Characters.of(topics)
    parts = text.split(characters.encode(topics))
    deterministic = functools.partial(fa_numba.flash_attn_grad, deterministic=True)
    sizes = {"kv_heads": 4, "latent_dim": latent_dim} if latent_dim else {}
    config, recipe = Config(len(characters), **sizes), Recipe(steps=12, **options)
    return Trainer(config, recipe, *parts, xp=xp, graph=graph, attn_grad=deterministic)


@pytest.mark.parametrize("latent_dim", [0, 48])
def test_losses_are_those_of_numpy(latent_dim):
    losses = []
    for options in ({"xp": np}, {}, {"float16": True}):
        run = trainer(latent_dim=latent_dim, **options)
        for _ in range(12):
            run.step()
        losses.append(run.losses_as_floats())
    assert losses[1] == pytest.approx(losses[0], abs=5e-3)
    assert losses[2] == pytest.approx(losses[0], abs=5e-2)
    prompt, greedy = [1, 2, 3], []
    for weights in (run.weights, {n: w.get() for n, w in run.weights.items()}):
        greedy.append([*generate.generate(weights, run.config, prompt, 100, temperature=0)])
    assert greedy[0] == greedy[1]


@pytest.mark.parametrize("float16", (False, True))
def test_a_graph_has_the_losses_of_its_launches(way, float16):
    """Also while others allocate and write memory."""
    if way == "0":
        pytest.skip("CuPy's products cannot be captured")
    runs = [trainer(float16=float16, graph=graph) for graph in (False, True)]
    for _ in range(12):
        for run in runs:
            run.step()
            others = [cupy.full(n, np.nan, np.float32) for n in (1000, 10**6, 3 * 10**6)]
    assert len(others) == 3 and runs[1]._run.__self__._graph is not None
    assert runs[0].losses_as_floats() == runs[1].losses_as_floats()
    assert (runs[0].state["weights"] == runs[1].state["weights"]).all()


@pytest.mark.parametrize("float16", (False, True))
def test_a_resumed_run_has_the_same_losses_to_the_bit(float16):
    whole, first, second = (trainer(float16=float16) for _ in range(3))
    for _ in range(12):
        whole.step()
    for _ in range(6):
        first.step()
    state = {name: x.get() for name, x in first.state.items()}
    second.continue_from(state, first.losses_as_floats(), {})
    for _ in range(6):
        second.step()
    assert second.losses_as_floats() == whole.losses_as_floats()
