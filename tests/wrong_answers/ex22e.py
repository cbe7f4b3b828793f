"""ex22e: the attention half of a layer, backwards."""

DW_OUT = "dw_out = out.reshape(x.shape).T @ dmiddle"
DOUT = "dout = (dmiddle @ w_out.T).reshape(out.shape)"
GRAD = "dq, dk, dv = attn_grad(dout, q, k, v, out, lse, causal=True)"
JOIN = "dqkv = join(dq, dk, dv)"
DW_QKV = "dw_qkv = normalize(x).T @ dqkv"
DX = "dx = normalize_grad(dqkv @ w_qkv.T, x, dmiddle)"
RETURN = "return dx, dw_qkv, dw_out"

WRONG = [
    ("no residual", DX, "dx = normalize_grad(dqkv @ w_qkv.T, x, 0 * dmiddle)"),
    ("the residual alone", DX, "dx = dmiddle.copy()"),
    ("past the norm", DX, "dx = dqkv @ w_qkv.T + dmiddle"),
    ("the residual twice", DX, "dx = normalize_grad(dqkv @ w_qkv.T, x, dmiddle) + dmiddle"),
    ("the residual inside of the norm", DX, "dx = normalize_grad(dqkv @ w_qkv.T + dmiddle, x, 0 * dmiddle)"),
    ("the norm of a normalized row", DX, DX.replace(", x,", ", normalize(x),")),
    ("x for normalize(x)", DW_QKV, "dw_qkv = x.T @ dqkv"),
    ("the heads of q", DW_OUT, DW_OUT.replace("out.reshape", "q.reshape")),
    ("dw_out transposed", DW_OUT, "dw_out = dmiddle.T @ out.reshape(x.shape)"),
    ("dw_out after w_out", DW_OUT, "dw_out = (out.reshape(x.shape) @ w_out).T @ dmiddle"),
    ("w_out not transposed", DOUT, DOUT.replace("w_out.T", "w_out")),
    ("dout as rows", DOUT, "dout = dmiddle @ w_out.T"),
    ("no causal", GRAD, GRAD.replace("causal=True", "causal=False")),
    ("causal left out", GRAD, GRAD.replace(", causal=True", "")),
    ("q and k exchanged", GRAD, GRAD.replace("attn_grad(dout, q, k,", "attn_grad(dout, k, q,")),
    ("dout for out", GRAD, GRAD.replace("v, out, lse", "v, dout, lse")),
    ("no lse", GRAD, GRAD.replace("out, lse,", "out, 0 * lse,")),
    ("dk and dv exchanged", JOIN, "dqkv = join(dq, dv, dk)"),
    ("no join", JOIN, "import numpy as np\n    dqkv = np.concatenate([dq, dk, dv], axis=2).reshape(len(x), -1)"),
    ("join twice", JOIN, "import numpy as np\n    dqkv = join(2 * dq, dk, dv)"),
    ("the order of results", RETURN, "return dw_qkv, dx, dw_out"),
    ("dmiddle is changed", DX, "dmiddle += normalize_grad(dqkv @ w_qkv.T, x, dmiddle)\n    dx = dmiddle"),
    ("256 rows at most", DW_OUT, "dw_out = out.reshape(x.shape)[:256].T @ dmiddle[:256]"),
]  # fmt: skip

RIGHT = [
    ("added last", DX, "dx = dmiddle + normalize_grad(dqkv @ w_qkv.T, x, 0 * dmiddle)"),
    ("sums by einsum", [
        (DW_OUT, "import numpy as np\n    dw_out = np.einsum('ri,rj->ij', out.reshape(x.shape), dmiddle)"),
        (DOUT, "dout = np.einsum('rj,ij->ri', dmiddle, w_out).reshape(out.shape)"),
    ]),
    ("dx first", [(DW_QKV + "\n    " + DX, DX + "\n    " + DW_QKV),]),
]  # fmt: skip

EQUIVALENT = []
