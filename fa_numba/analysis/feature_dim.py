"""How many features a feature map makes of a row: the size of linear attention's state."""

FEATURE_MAPS = ("elu1", "relu", "taylor2", "hedgehog")


def feature_dim(feature_map, head_dim, num_features=None):
    """Length of φ(x) for a row x of length head_dim.

    Parameters
    ----------
    feature_map : one of `FEATURE_MAPS`
    head_dim : int
    num_features : int, default=None
        Of the weights of "hedgehog"; the others have none.

    Returns
    -------
    int
    """
    if feature_map == "hedgehog":
        return num_features
    return 1 + head_dim + head_dim**2 if feature_map == "taylor2" else head_dim
