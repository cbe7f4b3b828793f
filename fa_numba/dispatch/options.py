"""Checks the options of attention, and keeps those that differ from their defaults.

A candidate is given only these: one that lacks an option can run if nobody asks for it.
"""

from fa_numba import checks


def options_of(
    q,
    causal,
    window_size,
    softcap,
    alibi_slopes,
    softmax_scale,
    *,
    dropout_p=0.0,
    seed=0,
    deterministic=False,
) -> dict:
    """Check the options; return those that differ from their defaults.

    Parameters
    ----------
    q : array, or its facts
    causal, window_size, softcap, alibi_slopes, softmax_scale, dropout_p, seed, deterministic
        As for `flash_attn` and `flash_attn_grad`.
    """
    mask, _ = checks.check_mask(q, causal, window_size, softcap, alibi_slopes)
    checks.check_softmax_scale(softmax_scale, q.shape[-1])
    dropout_p, _ = checks.check_dropout(dropout_p, seed)
    options = {
        "causal": mask.causal or None,
        "window_size": None if mask.window_size == (-1, -1) else mask.window_size,
        "softcap": mask.softcap or None,
        "alibi_slopes": alibi_slopes,
        "softmax_scale": softmax_scale,
        "dropout_p": dropout_p or None,
        "seed": seed if dropout_p else None,
        "deterministic": checks.check_flag("deterministic", deterministic) or None,
    }
    return {name: value for name, value in options.items() if value is not None}
