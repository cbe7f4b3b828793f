"""The loss of a model and its gradients, written out: the forward pass, then each step backwards.

For a product y = x · w:      dx = dy · wᵀ      dw = xᵀ · dy

The forward pass stores the results of products and of attention; the backward pass recomputes the
norms and the squared ReLU from them, which takes less time than a product.
"""

from typing import NamedTuple

import numpy as np

from fa_numba import checks
from fa_numba.language_model import latent, model, products, rows
from fa_numba.language_model.jobs import flash_attn, flash_attn_grad, softmax
from fa_numba.runtime import arrays

FLOAT16_SCALE = 2.0**14  # of gradients in float16, which would round small ones to 0


class Kernels(NamedTuple):
    """The kernels of a model that a caller may replace, by a learner's own for example."""

    attn: object = flash_attn  # callable; ``attn(q, k, v, causal=True)`` returns (out, lse)
    # Callable; ``attn_grad(dout, q, k, v, out, lse, causal=True)`` returns (dq, dk, dv)
    attn_grad: object = flash_attn_grad
    softmax: object = softmax  # callable; ``softmax(x)`` of a float32 array (rows, cols)


class Saved(NamedTuple):
    """The results of a layer that its gradients need."""

    x: object
    q: object
    k: object
    v: object
    out: object
    lse: object
    middle: object  # x with the attention's part added
    up: object


def loss_and_grads(weights, config, tokens, targets, *, grads=None, **kernels):
    """Cross-entropy of the next tokens, and its gradients with respect to the weights.

    Parameters
    ----------
    weights : dict
        As from `init_weights`: float32; or float16, in CuPy.
    config : Config
    tokens, targets : arrays of shape (batch, n), int32 or int64
        The target of a token is the token that follows it.
    grads : dict, optional
        Float32 arrays of the weights' shapes, to write the gradients to.
    **kernels
        Those of `Kernels`.

    Returns
    -------
    loss : array of shape (), float32
        Mean over the tokens, in nats.
    grads : dict of str to array
        Float32, of the names and shapes of the weights.
    """
    checks.check_model_tokens(config, weights, tokens, targets)
    kernels, xp = Kernels(**kernels), arrays.module_of(tokens)
    if grads is None:
        grads = {name: xp.empty(w.shape, np.float32) for name, w in weights.items()}
    scale = FLOAT16_SCALE if weights["embedding"].dtype == np.float16 else 1.0
    positions = model.positions_of(tokens)
    weights = products.factors(weights)

    def put(name, x, dy, *, add=False):
        """grads[name] = xᵀ · dy / scale; with `add`, add that to it."""
        products.product(x.T, dy, out=grads[name], scale=1 / scale, add=add)

    x, saved = model.embed(weights, tokens.reshape(-1)), []
    for layer in range(config.layers):
        heads = model.qkv(weights, config, layer, x, positions)
        q, k, v = model.as_sequences(tokens, *heads)
        out, lse = kernels.attn(q, k, v, causal=True)
        middle = x + out.reshape(x.shape) @ weights[f"{layer}.out"]
        up = rows.normalize(middle) @ weights[f"{layer}.up"]
        saved.append(Saved(x, q, k, v, out, lse, middle, up))
        x = middle + rows.square_relu(up) @ weights[f"{layer}.down"]

    last = rows.normalize(x)
    loss, dlogits = rows.cross_entropy(
        last @ weights["embedding"].T, targets.reshape(-1), softmax=kernels.softmax, scale=scale
    )
    dx = rows.normalize_grad(dlogits @ weights["embedding"], x, xp.zeros_like(x))
    for layer in reversed(range(config.layers)):
        s = saved.pop()
        put(f"{layer}.down", rows.square_relu(s.up), dx)
        dup = rows.square_relu_grad(dx @ weights[f"{layer}.down"].T, s.up)
        put(f"{layer}.up", rows.normalize(s.middle), dup)
        dx = rows.normalize_grad(dup @ weights[f"{layer}.up"].T, s.middle, dx)

        put(f"{layer}.out", s.out.reshape(dx.shape), dx)
        dout = (dx @ weights[f"{layer}.out"].T).reshape(s.out.shape)
        dheads = kernels.attn_grad(dout, s.q, s.k, s.v, s.out, s.lse, causal=True)
        normalized = rows.normalize(s.x)
        if config.latent_dim:
            table = model.rotary_table_for(config, x)
            dqkv, *factors = latent.gradients(
                weights, config, layer, normalized, positions, table, dheads
            )
            put(f"{layer}.kv", *factors)
        else:
            dqkv = _rotate_back(config, positions, *dheads)
        put(f"{layer}.qkv", normalized, dqkv)
        dx = rows.normalize_grad(dqkv @ weights[f"{layer}.qkv"].T, s.x, dx)

    # The embedding is used twice: for the logits, and for the first x, as one_hot(tokens) · it.
    put("embedding", dlogits, last)
    first = rows.one_hot(tokens.reshape(-1), config.vocabulary, dx.dtype)
    put("embedding", first, dx, add=True)
    return loss, grads


def _rotate_back(config, positions, dq, dk, dv):
    """Gradients of `model.qkv`'s product, (rows, columns of qkv), from those of its results."""
    heads = config.heads + 2 * config.kv_heads, config.head_dim
    dqkv = arrays.module_of(dq).empty((len(positions), *heads), dq.dtype)
    to_q, to_k, to_v = model.split_heads(config, dqkv)
    table = model.rotary_table_for(config, dqkv)
    for d, part in ((dq, to_q), (dk, to_k)):
        rows.rotate(d.reshape(part.shape), positions, *table, out=part, back=True)
    to_v[:] = dv.reshape(to_v.shape)
    return dqkv.reshape(len(dqkv), -1)


def loss_of(weights, config, tokens, targets, **kernels):
    """The loss alone: see `loss_and_grads`.

    Parameters
    ----------
    weights, config, tokens, targets
        As for `loss_and_grads`.
    **kernels
        Those of `Kernels`.

    Returns
    -------
    array of shape (), float32
    """
    checks.check_model_tokens(config, weights, tokens, targets)
    kernels = Kernels(**kernels)
    logits = model.forward(weights, config, tokens, attn=kernels.attn)
    logits = logits.reshape(-1, config.vocabulary)
    loss, _ = rows.cross_entropy(logits, targets.reshape(-1), softmax=kernels.softmax, scale=1)
    return loss
