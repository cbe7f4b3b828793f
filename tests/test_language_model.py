"""The language model: its gradients, its training, its files, its text."""

import ctypes
import dataclasses
import functools
import io
import json
import math
import re
import tracemalloc
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from cases import thorough

import fa_numba
from fa_numba.analysis.machine_code import compile_kernel, compiler_available
from fa_numba.language_model import (
    adamw,
    checkpoint,
    generate,
    gradients,
    kernel_choice,
    model,
    products,
    row_kernels,
    rows,
    text,
)
from fa_numba.language_model.model import Config
from fa_numba.language_model.server.paged_model import PagedModel
from fa_numba.language_model.train import Recipe, Trainer
from fa_numba.runtime import arrays
from fa_numba.runtime.replacing import replacing

SMALL = Config(13, layers=2, heads=4, kv_heads=2, head_dim=8, context=12)
LATENT = dataclasses.replace(SMALL, latent_dim=6)
CORPUS = "the cat sat on the mat, and the rat sat on the cat. " * 20
CHARACTERS = text.Characters.of(CORPUS)


def large_weights(config, seed=0):
    """Weights ten times those that training begins with: attention is then far from a mean."""
    return {name: 10 * w for name, w in model.init_weights(config, seed).items()}


def random_tokens(rng, config, batch=3, more=0):
    return rng.integers(0, config.vocabulary, (batch, config.context + more)).astype(np.int32)


def trainer(steps=10, **options):
    config = Config(len(CHARACTERS), layers=2, heads=2, kv_heads=1, head_dim=16, context=16)
    parts = text.split(CHARACTERS.encode(CORPUS))
    return Trainer(config, Recipe(steps=steps, batch=8, **options), *parts)


# The model in float64, written another way, for autograd


def oracle_loss(weights, config, tokens, targets):
    """The loss by plain attention in float64, in the functions of autograd's own NumPy."""
    import autograd.numpy as anp

    batch, n = tokens.shape
    x = weights["embedding"][tokens]
    rotated = config.rotary_dim
    frequency = config.rotary_base ** (-np.arange(0, rotated, 2) / rotated)
    turn = np.exp(1j * np.outer(np.arange(n), frequency))[:, None]
    hidden = np.triu(np.full((n, n), -np.inf), 1)

    def norm(x):
        return x / anp.sqrt(anp.mean(x**2, axis=-1, keepdims=True) + 1e-5)

    def rotary(x):
        left, right = anp.split(x, 2, axis=-1)
        return anp.concatenate(
            [left * turn.real - right * turn.imag, left * turn.imag + right * turn.real], axis=-1
        )

    def heads_of(x, layer):
        y = norm(x) @ weights[f"{layer}.qkv"]
        if config.latent_dim:
            q, c, k_r = anp.split(y, [config.width, config.width + config.latent_dim], axis=-1)
            q = anp.reshape(q, (batch, n, config.heads, config.head_dim))
            w = anp.reshape(weights[f"{layer}.kv"], (config.latent_dim, config.heads, -1))
            both = anp.einsum("bnc,chd->bnhd", norm(c), w)
            plain = config.head_dim - rotated
            k_r = anp.repeat(rotary(k_r[:, :, None]), config.heads, axis=2)
            q = anp.concatenate([q[..., :plain], rotary(q[..., plain:])], axis=-1)
            return q, anp.concatenate([both[..., :plain], k_r], axis=-1), both[..., plain:]
        heads = anp.reshape(y, (batch, n, -1, config.head_dim))
        q = rotary(heads[:, :, : config.heads])
        k = rotary(heads[:, :, config.heads : -config.kv_heads])
        group = config.heads // config.kv_heads
        return q, *(anp.repeat(a, group, axis=2) for a in (k, heads[:, :, -config.kv_heads :]))

    for layer in range(config.layers):
        q, k, v = heads_of(x, layer)
        s = anp.einsum("bmhd,bnhd->bhmn", q, k) / np.sqrt(config.head_dim) + hidden
        e = anp.exp(s - anp.max(s, axis=-1, keepdims=True))
        p = e / anp.sum(e, axis=-1, keepdims=True)
        out = anp.reshape(anp.einsum("bhmn,bnhd->bmhd", p, v), x.shape)
        x = x + out @ weights[f"{layer}.out"]
        x = x + anp.maximum(norm(x) @ weights[f"{layer}.up"], 0) ** 2 @ weights[f"{layer}.down"]
    z = norm(x) @ weights["embedding"].T
    z = z - anp.max(z, axis=-1, keepdims=True)
    log_p = z - anp.log(anp.sum(anp.exp(z), axis=-1, keepdims=True))
    return -anp.mean(anp.sum(log_p * np.eye(config.vocabulary)[targets], axis=-1))


@pytest.mark.parametrize(
    "kv_heads, latent_dim", ((2, 0), (4, 6), *(thorough(n, 0) for n in (1, 4)))
)
def test_loss_and_gradients_equal_those_of_autograd(rng, kv_heads, latent_dim):
    import autograd

    config = dataclasses.replace(SMALL, kv_heads=kv_heads, latent_dim=latent_dim)
    weights, tokens = large_weights(config), random_tokens(rng, config, more=1)
    loss, grads = gradients.loss_and_grads(weights, config, tokens[:, :-1], tokens[:, 1:])
    exact = {name: w.astype(np.float64) for name, w in weights.items()}
    value_and_grad = autograd.value_and_grad(oracle_loss)
    want_loss, want = value_and_grad(exact, config, tokens[:, :-1], tokens[:, 1:])
    assert abs(loss - want_loss) < 1e-5 * want_loss
    for name, grad in grads.items():
        assert grad.dtype == np.float32
        assert np.linalg.norm(grad - want[name]) < 1e-5 * np.linalg.norm(want[name]), name


def test_gradients_equal_finite_differences(rng):
    weights, tokens = large_weights(SMALL), random_tokens(rng, SMALL, more=1)
    tokens, targets = tokens[:, :-1], tokens[:, 1:]
    _, grads = gradients.loss_and_grads(weights, SMALL, tokens, targets)
    for _ in range(20):
        name = rng.choice([*weights])
        at = tuple(int(rng.integers(0, n)) for n in weights[name].shape)
        losses = []
        for change in (0.01, -0.01):
            changed = weights | {name: weights[name].copy()}
            changed[name][at] += change
            losses.append(float(gradients.loss_of(changed, SMALL, tokens, targets)))
        assert abs((losses[0] - losses[1]) / 0.02 - grads[name][at]) < 2e-4 + 0.01 * abs(
            grads[name][at]
        ), (name, at)


def test_gradients_are_written_where_asked(rng):
    weights, tokens = large_weights(SMALL), random_tokens(rng, SMALL, more=1)
    loss, want = gradients.loss_and_grads(weights, SMALL, tokens[:, :-1], tokens[:, 1:])
    together = np.full(SMALL.num_weights, np.nan, np.float32)
    grads = model.unflatten(SMALL, together)
    gradients.loss_and_grads(weights, SMALL, tokens[:, :-1], tokens[:, 1:], grads=grads)
    assert np.array_equal(together, model.flatten(want))
    assert np.array_equal(
        model.flatten(weights), np.concatenate([w.ravel() for w in weights.values()])
    )


# The forward pass


def test_everything_is_float32(rng):
    weights, tokens = large_weights(SMALL), random_tokens(rng, SMALL)
    x = model.embed(weights, tokens.reshape(-1))
    q, k, v = model.qkv(weights, SMALL, 0, x, model.positions_of(tokens))
    assert q.shape == (36, 4, 8) and k.shape == v.shape == (36, 2, 8)
    after = model.after_attention(weights, SMALL, 0, x, q)
    logits = model.forward(weights, SMALL, tokens)
    assert logits.shape == (3, 12, 13)
    assert {a.dtype for a in (x, q, k, v, after, logits)} == {np.dtype(np.float32)}


def test_a_token_does_not_change_what_comes_before_it(rng):
    weights, tokens = large_weights(SMALL), random_tokens(rng, SMALL)
    want = model.forward(weights, SMALL, tokens)
    changed = tokens.copy()
    changed[:, 7] = (changed[:, 7] + 1) % SMALL.vocabulary
    got = model.forward(weights, SMALL, changed)
    assert np.array_equal(got[:, :7], want[:, :7])
    assert (np.abs(got[:, 7:] - want[:, 7:]).max(axis=-1) > 1e-3).all()


def test_rotary_scores_depend_on_distance_alone(rng):
    config = dataclasses.replace(SMALL, context=100)
    q, k = rng.standard_normal((2, 1, 1, 8), dtype=np.float32)

    def score(m, n):
        turned = []
        for x, position in ((q, m), (k, n)):
            x = x.copy()
            rows.rotate(x, np.array([position], np.int32), *model.rotary_table_for(config, x))
            turned.append(x)
        return float((turned[0] * turned[1]).sum())

    for m, n in ((5, 3), (40, 12), (99, 98)):
        assert abs(score(m, n) - score(m - n, 0)) < 1e-4
    assert abs(score(40, 12) - score(12, 40)) > 1e-2, "the sign of the distance counts"


def test_gqa_equals_repeated_heads(rng):
    weights, tokens = large_weights(SMALL), random_tokens(rng, SMALL)
    repeated = dict(weights)
    for layer in range(SMALL.layers):
        columns = weights[f"{layer}.qkv"].reshape(SMALL.width, -1, SMALL.head_dim)
        q, k, v = np.split(columns, [4, 6], axis=1)
        every = [q, k.repeat(2, axis=1), v.repeat(2, axis=1)]
        repeated[f"{layer}.qkv"] = np.concatenate(every, axis=1).reshape(SMALL.width, -1)
    want = model.forward(repeated, dataclasses.replace(SMALL, kv_heads=4), tokens)
    assert np.abs(model.forward(weights, SMALL, tokens) - want).max() < 1e-5


@pytest.mark.parametrize("config", (SMALL, LATENT), ids=("gqa", "latent"))
def test_cached_logits_equal_those_of_the_whole_sequence(rng, config):
    weights, tokens = large_weights(config), random_tokens(rng, config, batch=1)
    want = model.forward(weights, config, tokens)[0]
    for first in (1, 5, 12):
        cache = generate.Cache(weights, config)
        got = [cache.append(weights, config, tokens[0, :first])]
        got += [cache.append(weights, config, [token]) for token in tokens[0, first:]]
        assert np.abs(np.array(got) - want[first - 1 :]).max() < 1e-5


def test_a_cache_of_latents_has_one_row_for_each_token():
    for config, numbers in ((SMALL, 2 * 2 * 8), (LATENT, 6 + 4)):
        cache = generate.Cache(model.init_weights(config), config)
        assert cache.bytes_per_token == 4 * config.layers * numbers


def test_a_model_with_latents_learns_and_is_stored(tmp_path):
    config = Config(len(CHARACTERS), layers=1, heads=2, head_dim=8, context=16, latent_dim=12)
    made = Trainer(config, Recipe(steps=60, batch=8), *text.split(CHARACTERS.encode(CORPUS)))
    before = made.validate()
    while made.steps_done < 60:
        made.step()
    assert made.validate() < 0.8 * before
    checkpoint.save(tmp_path / "m.npz", made, CHARACTERS, "")
    assert checkpoint.load(tmp_path / "m.npz").config == config


def test_same_sizes_and_seed_same_weights():
    first, again, other = (model.flatten(model.init_weights(SMALL, s)) for s in (3, 3, 4))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert len(first) == SMALL.num_weights
    assert 700_000 < Config(103).num_weights < 900_000


# Kernels of rows, as on a GPU


@pytest.mark.parametrize("dtype", (np.float32, np.float16))
def test_kernels_of_rows_equal_numpy(rng, dtype):
    x, dy, added = rng.standard_normal((3, 23, 96)).astype(dtype)
    exact = [a.astype(np.float32) for a in (x, dy, added)]
    allowed = {"rtol": 2e-3, "atol": 2e-3} if dtype == np.float16 else {"rtol": 1e-5, "atol": 1e-6}

    def compare(kernel, want, *inputs, per_row=False):
        y = np.full(x.shape, np.nan, dtype)
        if per_row:
            rows._launch_rows(kernel, *inputs, y, rows.EPSILON)
        else:
            rows._launch_numbers(kernel, x.size, *(a.reshape(-1) for a in (*inputs, y)))
        np.testing.assert_allclose(y, want, **allowed)

    compare(row_kernels.normalize_kernel, rows.normalize(exact[0]), x, per_row=True)
    want = rows.normalize_grad(exact[1], exact[0], exact[2])
    compare(row_kernels.normalize_grad_kernel, want, dy, x, added, per_row=True)
    compare(row_kernels.square_relu_kernel, rows.square_relu(exact[0]), x)
    want = rows.square_relu_grad(exact[1], exact[0])
    compare(row_kernels.square_relu_grad_kernel, want, dy, x)

    config = dataclasses.replace(SMALL, head_dim=32, context=23)
    positions = np.arange(23, dtype=np.int32)
    heads, want = x.reshape(23, 3, 32), exact[0].reshape(23, 3, 32)
    table = model.rotary_table_for(config, want)
    rows.rotate(want[:, :2], positions, *table)
    other = heads.copy()
    for out in (other, heads):  # to another array, then in place
        inputs = heads[:, :2], out[:, :2], positions, *table, np.float32(1)
        arrays.launch(row_kernels.rotate_kernel, (23,), row_kernels.BLOCK, *inputs)
        np.testing.assert_allclose(out, want, **allowed)


@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
@pytest.mark.parametrize("name", [x for x in vars(row_kernels) if x.endswith("_kernel")])
def test_kernels_of_rows_compile_within_their_budgets(name):
    kernel, one = getattr(row_kernels, name), np.float32(1)
    x, table = np.zeros((8, 64), np.float16), np.zeros((9, 32), np.float32)
    numbers, weights = x.reshape(-1), np.zeros(9, np.float32)
    heads = np.zeros((8, 6, 64), np.float16)[:, :4]
    arguments = {
        "normalize_kernel": (x, x, one),
        "normalize_grad_kernel": (x, x, x, x, one),
        "rotate_kernel": (heads, heads, np.zeros(8, np.int32), table, table, one),
        "square_relu_kernel": (numbers, numbers),
        "square_relu_grad_kernel": (numbers, numbers, numbers),
        "sum_of_squares_kernel": (weights, weights),
        "adamw_kernel": (*[weights] * 6, one),
    }
    code = compile_kernel(kernel, arguments[name], cc=(9, 0, "a"))
    budget = re.search(r"budget +(\d+) registers, (\d+) bytes shared", kernel.py_func.__doc__)
    assert code.registers <= int(budget[1])
    assert code.spill_bytes == code.local_bytes == 0 and code.shared_bytes == int(budget[2])
    assert code.float64_instructions == 0


def test_kernels_of_adamw_equal_numpy(rng):
    numbers = adamw.numbers_of(3, Recipe(clip=2.0))
    want = rng.standard_normal((4, 200_003), dtype=np.float32)
    want[2] = abs(want[2])
    got = want.copy()
    adamw.update(*want, numbers)
    adamw.update_by_kernels(*got, numbers)
    np.testing.assert_allclose(got[:3], want[:3], rtol=1e-5, atol=1e-6)


# Products, as cuBLAS gets them


class FakeBlas:
    """cublasGemmEx on host memory, by its documentation: matrices have contiguous columns."""

    def cublasSetStream_v2(self, handle, stream):
        return 0

    def cublasGemmEx(
        self, handle, op_a, op_b, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type,
        ldc, compute, algorithm,
    ):  # fmt: skip
        def matrix(address, kind, rows, columns, step):
            dtype = np.dtype({0: np.float32, 2: np.float16}[kind])
            assert step >= rows
            data = ctypes.c_char * (((columns - 1) * step + rows) * dtype.itemsize)
            flat = np.frombuffer(data.from_address(address), dtype)
            return np.lib.stride_tricks.as_strided(
                flat, (rows, columns), (dtype.itemsize, step * dtype.itemsize), writeable=True
            )

        a = matrix(a, a_type, k, m, lda).T if op_a else matrix(a, a_type, m, k, lda)
        b = matrix(b, b_type, n, k, ldb).T if op_b else matrix(b, b_type, k, n, ldb)
        c = matrix(c, c_type, m, n, ldc)
        product = alpha._obj.value * (a.astype(np.float32) @ b.astype(np.float32))
        c[:] = product + (beta._obj.value * c if beta._obj.value else 0)
        return 0


@pytest.mark.parametrize("dtype", (np.float32, np.float16))
def test_products_reach_cublas_in_any_layout(rng, dtype):
    def layouts(rows, columns):
        x = rng.standard_normal((rows, columns)).astype(dtype)
        wide = np.zeros((rows, columns + 3), dtype)
        wide[:, 1:-2] = x
        return x, np.asfortranarray(x), wide[:, 1:-2], np.repeat(x, 2, axis=1)[:, ::2]

    for m, k, n in ((5, 7, 3), (1, 4, 6), (6, 1, 2), (4, 3, 1)):
        for a in layouts(m, k):
            for b in layouts(k, n):
                want = 0.5 * (a.astype(np.float32) @ b.astype(np.float32))
                out = np.full((m, n), np.nan, np.float32)
                products.call_gemm((FakeBlas(), None), a, b, out, 0.5, False)
                np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-3)
                products.call_gemm((FakeBlas(), None), a, b, out, 0.5, True)
                np.testing.assert_allclose(out, 2 * want, rtol=1e-3, atol=1e-3)


def test_plain_products(rng):
    a, b = rng.standard_normal((4, 5), np.float32), rng.standard_normal((5, 3), np.float32)
    out = np.ones((4, 3), np.float32)
    assert products.product(a, b, out=out) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-6)
    products.product(a, b, out=out, scale=2.0, add=True)
    np.testing.assert_allclose(out, 3 * (a @ b), rtol=1e-5)
    np.testing.assert_allclose(products.product(a, b, scale=2.0), 2 * (a @ b), rtol=1e-6)


# Training


def test_the_loss_falls():
    run = trainer(60)
    for _ in range(60):
        run.step()
    losses = run.losses_as_floats()
    assert losses[0] == pytest.approx(np.log(len(CHARACTERS)), abs=0.1)
    assert losses[-1] < 1.3 and run.validate() < 1.3


def test_lesson_kernels_have_the_same_losses():
    losses = []
    for name in ("fastest", "lesson"):
        run = trainer()
        run.kernels = kernel_choice.by_name(name)
        for _ in range(3):
            run.step()
        losses.append(run.losses_as_floats())
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_learners_kernels_have_the_same_gradients(rng):
    kernels = kernel_choice.by_name("solutions")
    config = dataclasses.replace(SMALL, layers=1, context=5)
    weights, tokens = large_weights(config), random_tokens(rng, config, batch=1, more=1)
    _, want = gradients.loss_and_grads(weights, config, tokens[:, :-1], tokens[:, 1:])
    _, got = gradients.loss_and_grads(
        weights, config, tokens[:, :-1], tokens[:, 1:], **kernels._asdict()
    )
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-6)


def test_a_resumed_run_has_the_same_losses_to_the_bit(tmp_path):
    whole, first = trainer(), trainer()
    for _ in range(10):
        whole.step()
    for _ in range(4):
        first.step()
    first.validate()
    checkpoint.save(tmp_path / "m.npz", first, CHARACTERS, "hash")
    stored = checkpoint.load(tmp_path / "m.npz")
    assert stored.config == first.config and stored.recipe == first.recipe
    assert stored.characters == CHARACTERS and stored.text_sha256 == "hash"
    second = trainer()
    second.continue_from(stored.state, stored.losses, stored.validation_losses)
    for _ in range(6):
        second.step()
    assert second.losses_as_floats() == whole.losses_as_floats()
    assert all(np.array_equal(second.state[name], whole.state[name]) for name in whole.state)
    assert second.validation_losses == first.validation_losses
    weights = stored.weights()
    assert all(np.array_equal(weights[name], w) for name, w in first.weights.items())


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.npz"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and [*tmp_path.iterdir()] == [path]


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "m.npz"
    checkpoint.save(path, trainer(), CHARACTERS, "")
    whole = path.read_bytes()
    for damaged in (b"", b"no zip", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(text.Damaged, match="m.npz"):
            checkpoint.load(path)


def about(**fields):
    """A change of a file's description."""

    def change(parts):
        parts["about"] |= fields

    return change


def size(**fields):
    def change(parts):
        parts["about"]["config"] |= fields

    return change


def numbers(name, value):
    def change(parts):
        parts[name][3] = value

    return change


CONTRADICTIONS = {
    "a billion layers": (size(layers=10**9), "weights must be float32 of shape"),
    "a huge number of layers": (size(layers=10**400), "weights must be float32 of shape"),
    "no layers": (size(layers=0), "layers must be at least 1"),
    "layers of text": (size(layers="4"), "layers must be an integer"),
    "context": (size(context=10**9), "context must be at most 131072"),
    "one more size": (size(depth=3), "depth"),
    "format": (about(format=2), "its format is 2, not 1"),
    "fewer characters": (about(characters="ab"), "characters must be the"),
    "equal characters": (about(characters="a" * len(CHARACTERS)), "must differ"),
    "unsorted characters": (about(characters=CHARACTERS.symbols[::-1]), "in the order"),
    "a list of characters": (about(characters=list(CHARACTERS.symbols)), "must be a str"),
    "a number of characters": (about(characters=5), "must be a str"),
    "half a pair": (about(characters="\ud800"), "surrogates"),
    "losses of text": (about(losses=["a"]), "losses must be a number"),
    "losses in a text": (about(losses="abc"), "losses must be a list"),
    "a loss that is no number": (about(losses=[float("nan")]), "losses must be finite"),
    "validation": (about(validation_losses=[[0, "a"]]), "validation_losses must be a number"),
    "late validation": (about(validation_losses=[[9, 1.0]]), "of steps 0 to 0, got 9"),
    "NaN weights": (numbers("weights", np.nan), "weights must be finite"),
    "infinite averages": (numbers("averages", np.inf), "averages must be finite"),
    "negative squares": (numbers("squares", -1), "squares at least 0"),
    "float64": (lambda parts: parts.update(weights=parts["weights"].astype(float)), "float64"),
    "fewer weights": (lambda parts: parts.update(weights=parts["weights"][1:]), "of shape"),
    "objects": (lambda parts: parts.update(weights=np.array([{}])), "object"),
    "no squares": (lambda parts: parts.pop("squares"), "squares.npy"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, name):
    change, said = CONTRADICTIONS[name]
    path = tmp_path / "m.npz"
    checkpoint.save(path, trainer(), CHARACTERS, "")
    with np.load(path) as stored:
        parts = dict(stored)
    parts["about"] = json.loads(str(parts["about"]))
    change(parts)
    np.savez(path, **parts | {"about": np.array(json.dumps(parts["about"]))})
    with pytest.raises(text.Damaged, match=re.escape(said)):
        checkpoint.load(path)


@pytest.mark.parametrize("way", ["header", "compressed"])
def test_a_small_file_takes_little_memory(tmp_path, way):
    """Arrays of 12 GB in a file of some KB: in a header, or as zeros that were compressed."""
    path, wide = tmp_path / "m.npz", tmp_path / "wide.npz"
    checkpoint.save(path, trainer(), CHARACTERS, "")
    config = dataclasses.replace(SMALL, vocabulary=len(CHARACTERS), layers=10**6)
    header = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": (config.num_weights,)}
    np.lib.format.write_array_header_1_0(header, described)
    with np.load(path) as stored:
        fields = json.loads(str(stored["about"]))
    fields["config"] = dataclasses.asdict(config)
    kind = zipfile.ZIP_DEFLATED if way == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(wide, "w", kind) as file:
        for name in ("weights", "averages", "squares"):
            file.writestr(f"{name}.npy", header.getvalue() + bytes(10**6))
        packed = io.BytesIO()
        np.save(packed, np.array(json.dumps(fields)))
        file.writestr("about.npy", packed.getvalue(), zipfile.ZIP_STORED)
    tracemalloc.start()
    try:
        with pytest.raises(text.Damaged, match="compressed|another number of bytes"):
            checkpoint.load(wide)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_the_number_of_weights_is_that_of_the_shapes():
    for config in (SMALL, LATENT, Config(103), Config(7, 3, 6, 2, 10, 9)):
        assert config.num_weights == sum(a * b for a, b in config.shapes.values())


def test_control_characters_are_not_sent_to_a_terminal():
    assert text.shown("a\n\tb\x1b[2J\r\x7f\x9b漢") == "a\n\tb␛[2J␍␡\ufffd漢"


def test_learning_rate():
    recipe = Recipe(steps=110, warm_up=10, learning_rate=1.0, last_rate=0.1)
    rates = [recipe.learning_rate_at(step) for step in range(111)]
    assert rates[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert rates[10] == 1 and rates[60] == pytest.approx(0.55) and rates[110] == pytest.approx(0.1)


def test_gradients_are_clipped_and_weights_decay():
    recipe = Recipe(warm_up=0, learning_rate=0.1, weight_decay=0.5, clip=1.0)
    w, m, s = np.ones(4, np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32)
    grads = np.array([300, 0, 0, -400], np.float32)
    adamw.update(w, m, s, grads, adamw.numbers_of(0, recipe))
    np.testing.assert_allclose(m, [0.06, 0, 0, -0.08], rtol=1e-5)  # (1 − β₁) · (0.6, …, −0.8)
    np.testing.assert_allclose(w, [0.85, 0.95, 0.95, 1.05], rtol=1e-5)  # −0.05 of decay, ∓0.1


# Text


def test_the_shipped_text():
    topics = text.topics()
    characters = text.Characters.of(topics)
    assert len(topics) == 465_048 and len(characters) == 103
    tokens = characters.encode(topics)
    assert tokens.dtype == np.int32 and characters.decode(tokens[:2000]) == topics[:2000]
    train, validation = text.split(tokens)
    assert len(train) == 418_543 and len(train) + len(validation) == len(topics)


def test_own_text(tmp_path):
    (tmp_path / "a").write_text("äöü", encoding="utf-8")
    (tmp_path / "b").write_text("€𝄞", encoding="utf-8")
    read = text.read_files([tmp_path / "a", tmp_path / "b"])
    characters = text.Characters.of(read)
    assert characters.symbols == "\näöü€𝄞"
    assert characters.decode(characters.encode(read)) == read


# Generation


def test_generation_goes_on_past_the_context():
    run = trainer()
    prompt = CHARACTERS.encode("the ")
    call = functools.partial(generate.generate, run.weights, run.config, prompt, 40)
    once, again, greedy = [*call(seed=1)], [*call(seed=1)], [*call(temperature=0)]
    assert len(once) == len(greedy) == 40 and once == again != greedy
    tokens = [*prompt, *greedy]
    for at in (4, 10, 15):  # the context is not full yet: the likeliest token of a whole pass
        logits = model.forward(run.weights, run.config, np.array([tokens[:at]], np.int32))
        assert tokens[at] == logits[0, -1].argmax()


def test_samples_follow_the_softmax():
    rng, logits = np.random.default_rng(0), np.log(np.array([0.5, 0.2, 0.3], np.float32))
    drawn = np.array([generate.sample(logits, 1.0, 3, rng) for _ in range(600)])
    assert np.bincount(drawn) / 600 == pytest.approx([0.5, 0.2, 0.3], abs=0.08)
    assert {generate.sample(logits, 1.0, 2, rng) for _ in range(50)} == {0, 2}


def test_the_largest_random_number_draws_the_last_token():
    """Less than 1, but 1 as a float32: times the sum of all, it is that sum."""
    rng = SimpleNamespace(random=lambda: math.nextafter(1.0, 0.0))
    logits = np.log(np.array([0.5, 0.2, 0.3], np.float32))
    assert generate.sample(logits, 1.0, 3, rng) == 1


# Refused arguments

CONFIG = functools.partial(Config, 10)
BAD = {
    "kv_heads must divide the 4 heads, got 3": lambda: CONFIG(kv_heads=3),
    "vocabulary must be at least 1, got 0": lambda: Config(0),
    "vocabulary must be at most 1048576, got 2097152": lambda: Config(2**21),
    "layers must be an integer, got 2.0": lambda: CONFIG(layers=2.0),
    "head_dim must be even": lambda: CONFIG(head_dim=7),
    "most 256, got 258": lambda: CONFIG(head_dim=258),
    "context must be at least 1, got 0": lambda: CONFIG(context=0),
    "rotary_base must be above 1, got 1": lambda: CONFIG(rotary_base=1),
    "latent_dim must be at least 0, got -1": lambda: CONFIG(latent_dim=-1),
    "latent_dim must be at most 256 - head_dim / 2, so": lambda: CONFIG(latent_dim=241),
    "head_dim must be a multiple of 4 with latent_dim": lambda: CONFIG(head_dim=6, latent_dim=8),
    "latent_dim must be 0 in a server with fp8, got 6": lambda: PagedModel(
        model.init_weights(LATENT), LATENT, fa_numba.PagePool(9, 4), kv_dtype="fp8"
    ),
    "steps must be at least 1, got 0": lambda: Recipe(steps=0),
    "learning_rate must be above 0, got -1": lambda: Recipe(learning_rate=-1),
    "learning_rate must be a number, got 'x'": lambda: Recipe(learning_rate="x"),
    "clip must be above 0, got nan": lambda: Recipe(clip=float("nan")),
    "beta2 must be from 0 to 0.9999, got 1": lambda: Recipe(beta2=1),
    "float16 must be True or False, got 1": lambda: Recipe(float16=1),
    "float16 must be False for NumPy": lambda: trainer(float16=True),
    "train must have at least 17 tokens, got 3": lambda: Trainer(
        CONFIG(context=16), Recipe(), np.zeros(3, np.int32), np.zeros(99, np.int32)
    ),
    "tokens must have between 1 and 12 tokens in a row": lambda: forward(np.zeros((1, 13), int)),
    "tokens must be int32 or int64, got float32": lambda: forward(np.zeros((1, 2), np.float32)),
    "tokens must have axes (batch, tokens)": lambda: forward(np.zeros(3, np.int32)),
    "tokens must be at least 0 and less than the vocabulary, 13": lambda: forward(
        np.full((1, 2), 13)
    ),
    "targets must have the shape of tokens, (1, 2), got (1, 3)": lambda: gradients.loss_of(
        model.init_weights(SMALL), SMALL, np.zeros((1, 2), int), np.zeros((1, 3), int)
    ),
    "text must have only the 14 characters that the model knows, got 'Z'": lambda: (
        CHARACTERS.encode("Z")
    ),
    "prompt must have at least one token": lambda: continue_prompt([]),
    "prompt must have tokens from 0 to 12, got 13": lambda: continue_prompt([13]),
    "temperature must be at least 0, got -1": lambda: continue_prompt([1], temperature=-1),
    "top_k must be at most 32": lambda: continue_prompt([1], top_k=33),
    "length must be at least 0, got -1": lambda: continue_prompt([1], length=-1),
    "without ex07d_flash_attn_v2.py": lambda: kernel_choice.by_name("docs"),
}


def forward(tokens):
    return model.forward(model.init_weights(SMALL), SMALL, tokens)


def continue_prompt(prompt, length=1, **options):
    return [*generate.generate(model.init_weights(SMALL), SMALL, prompt, length, **options)]


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments_are_named(message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        BAD[message]()


def test_arrays_of_two_libraries_are_refused():
    class Fake:
        pass

    with pytest.raises(TypeError, match="tokens must be a NumPy array"):
        forward(Fake())


def test_public_attention_is_the_default():
    assert gradients.Kernels() == (fa_numba.flash_attn, fa_numba.flash_attn_grad, fa_numba.softmax)
