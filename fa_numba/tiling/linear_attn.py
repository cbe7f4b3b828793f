"""State size and default form of `linear_attn`."""

FEATURE_MAPS = ("elu1", "relu", "taylor2", "hedgehog")
MAX_GROUP_SIZE = 64  # query heads per K/V head in the recurrent form: a thread keeps a sum of each


def recurrent_by_default(causal, seqlen_q, group_size):
    """True if the recurrent form is the default for these arguments."""
    return causal and seqlen_q == 1 and group_size <= MAX_GROUP_SIZE


def feature_dim(feature_map, head_dim, num_features=None):
    """Length of φ(x) for a row x of length head_dim.

    Parameters
    ----------
    feature_map : one of `FEATURE_MAPS`
    head_dim : int
    num_features : int, default=None
        Columns of the weights of "hedgehog"; the other maps have no weights.
    """
    if feature_map == "hedgehog":
        return num_features
    return 1 + head_dim + head_dim**2 if feature_map == "taylor2" else head_dim
