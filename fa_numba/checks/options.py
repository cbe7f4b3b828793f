"""The options that functions of attention share: names and defaults, for all their signatures."""

import inspect

from fa_numba.checks.argument_names import refuses_other_names

PLAIN = {
    "causal": False,
    "window_size": (-1, -1),
    "softcap": 0.0,
    "alibi_slopes": None,
    "softmax_scale": None,
}
NO_SLOPES = {name: default for name, default in PLAIN.items() if name != "alibi_slopes"}
FUNCTIONS = {"mask": None, "mask_args": (), "score": None, "score_args": ()}
SCORES = PLAIN | FUNCTIONS | {"sinks": None}  # those of `check_scores`
DECODING = {"block_table": None} | SCORES | {"num_splits": 0}
DROPOUT = {"dropout_p": 0.0, "seed": 0}


def takes(shared: dict):
    """Decorate a function whose `**options` are these, which it passes on.

    Its signature has them, in their order, before its own options; another name is an error that
    says the right one. Put it under ``@arrays.replayed``, as `refuses_other_names`.

    Parameters
    ----------
    shared : dict of str to object
        Defaults by name. An option that the function has itself may be among them.
    """

    def decorate(function):
        own = dict(inspect.signature(function).parameters)
        *_, options = own
        del own[options]
        by_name = inspect.Parameter.KEYWORD_ONLY
        by_position = [x for x in own.values() if x.kind is not by_name]
        given = {name: inspect.Parameter(name, by_name, default=x) for name, x in shared.items()}
        given |= {name: x for name, x in own.items() if x.kind is by_name}
        function.__signature__ = inspect.Signature([*by_position, *given.values()])
        return refuses_other_names(function)

    return decorate
