"""Traffic of linear attention."""

from fa_numba.analysis.traffic.counts import Traffic
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.linear_attn import feature_dim, recurrent_by_default


def linear_attn(problem, *, feature_map="elu1", num_features=None, form=None, chunk_size=16):
    """Traffic of all kernels of `fa_numba.linear_attn`.

    Parameters
    ----------
    problem : Problem
    feature_map : "elu1", "relu", "taylor2" or "hedgehog", default="elu1"
    num_features : int, default=None
        Columns of the weights of "hedgehog".
    form : "recurrent" or "chunked", default=the form that the function chooses
    chunk_size : int, default=16

    Returns
    -------
    Traffic
        x, w and phi are those of φ(q) and φ(k) together. In the recurrent form every thread reads
        phi_q and phi_k.
    """
    problem.refuse("linear_attn", "window_size", "alibi", "block_m", "block_n")
    features = feature_dim(feature_map, problem.head_dim, num_features)
    columns = problem.head_dim + 1
    rows_q, rows_k = problem.rows, problem.kv_rows
    x = (rows_q + rows_k) * problem.head_dim
    loads = {"x": x, "w": x * features if feature_map == "hedgehog" else 0}
    stores = {"phi": (rows_q + rows_k) * features, "out": rows_q * problem.head_dim}
    state = problem.batch * problem.num_kv_heads * features * columns

    if form is None:
        recurrent = recurrent_by_default(problem.causal, problem.seqlen_q, problem.group_size)
        form = "recurrent" if recurrent else "chunked"
    if form == "recurrent":
        loads |= {
            "phi_q": rows_q * features * columns,
            "phi_k": rows_k * features * columns,
            "v": rows_k * problem.head_dim,
            "state_in": state,
            "state": state * problem.seqlen_k,
        }
        return Traffic(loads, stores | {"state": state + state * problem.seqlen_k})

    num_chunks = ceil_div(problem.seqlen_q, chunk_size)
    # Keys of its own chunk, which each query head reads again
    keys = problem.heads * problem.seqlen_k if problem.causal else 0
    states = problem.heads * num_chunks * features * columns
    loads |= {
        "phi_q": rows_q * features,
        "phi_k": rows_k * features * ceil_div(columns, 16) + keys * features,
        "v": rows_k * problem.head_dim * ceil_div(features, 16) + keys * problem.head_dim,
        "state_in": state,
        "states": states,
    }
    return Traffic(loads, stores | {"state": state, "states": state * num_chunks * problem.causal})
