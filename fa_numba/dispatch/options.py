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
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
    *,
    dropout_p=0.0,
    seed=0,
    deterministic=False,
    score_args_grad=False,
) -> dict:
    """Check the options; return those that differ from their defaults.

    Parameters
    ----------
    q : array, or its facts
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, \
    score_args, sinks, dropout_p, seed, deterministic, score_args_grad
        As for `flash_attn` and `flash_attn_grad`.
    """
    given, _ = checks.check_mask(q, causal, window_size, softcap, alibi_slopes)
    user = checks.check_expressions(q, mask, mask_args, score, score_args, given, alibi_slopes)
    same = checks.as_options(user, given, score, score_args)
    if same is not None:  # more kernels take it
        given, mask, mask_args, score = same, None, (), None
    checks.check_sinks(q, sinks)
    checks.check_softmax_scale(softmax_scale, q.shape[-1])
    dropout_p, _ = checks.check_dropout(dropout_p, seed)
    deterministic = checks.check_flag("deterministic", deterministic)
    score_args_grad = checks.check_score_args_grad(q, score_args_grad, deterministic)
    options = {
        "causal": given.causal or None,
        "window_size": None if given.window_size == (-1, -1) else given.window_size,
        "softcap": given.softcap or None,
        "alibi_slopes": alibi_slopes,
        "softmax_scale": softmax_scale,
        "mask": mask,
        "mask_args": tuple(mask_args) or None,
        "score": score,
        "score_args": tuple(score_args) or None,
        "sinks": sinks,
        "dropout_p": dropout_p or None,
        "seed": seed if dropout_p else None,
        "deterministic": deterministic or None,
        "score_args_grad": score_args_grad or None,
    }
    return {name: value for name, value in options.items() if value is not None}
