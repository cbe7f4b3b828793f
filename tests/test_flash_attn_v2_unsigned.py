"""flash_attn_v2_unsigned differs from flash_attn_v2 in its indices, and lacks the user's mask."""

import ast
import difflib
import inspect

from fa_numba.kernels import flash_attn_v2
from fa_numba.on_cuda_cores import flash_attn_v2_unsigned


class Plain(ast.NodeTransformer):
    """Takes away u64(...), docstrings and the name of the step."""

    def visit_Call(self, node):
        self.generic_visit(node)
        return node.args[0] if getattr(node.func, "id", None) == "u64" else node

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.body = [
            x for x in node.body if not isinstance(getattr(x, "value", None), ast.Constant)
        ]
        node.name = node.name.replace("_unsigned", "")
        return node

    def visit_Name(self, node):
        return ast.Name(node.id.replace("_unsigned", ""), node.ctx)


# Its lines in place of those of flash_attn_v2 that take the user's mask, score and sinks, and a V
# with a head_dim of its own.
WITHOUT_OPTIONS = """
    @cuda.jit
    def flash_attn_v2_kernel(q, k, v, out, lse, softmax_scale, alibi_slopes, seed):
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        m_i = NEG_INF
        l_i = float32(0.0)
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    k_tile[r, d] = float32(k[b, n, kv_head, d]) if n < seqlen_k else float32(0.0)
                    v_tile[r, d] = float32(v[b, n, kv_head, d]) if n < seqlen_k else float32(0.0)
            seen = sees(position, n, seqlen_k)
            s_tile[ty, tx] = score(s * softmax_scale, position - n, slope) if seen else NEG_INF
                    if d < HEAD_DIM:
                if d < HEAD_DIM:
"""


def kernel_of(module):
    """The lines of the kernel."""
    for x in ast.walk(Plain().visit(ast.parse(inspect.getsource(module)))):
        if getattr(x, "name", "") == "flash_attn_v2_kernel":
            return ["    " + line for line in ast.unparse(x).splitlines()]
    raise AssertionError("no kernel")


def test_the_difference_is_in_the_indices():
    signed, unsigned = kernel_of(flash_attn_v2), kernel_of(flash_attn_v2_unsigned)
    lines = [x for x in difflib.ndiff(signed, unsigned) if x[:2] in ("+ ", "- ")]
    added = [x[2:] for x in lines if x[0] == "+"]
    assert added == WITHOUT_OPTIONS.strip("\n").splitlines()[1:]
    taken_away = "\n".join(x[2:] for x in lines if x[0] == "-")
    assert len(lines) - len(added) == 20
    for name in ("tile_is_hidden", "sinks", "user_sees", "user_score", "PLAIN", "HEAD_DIM_V"):
        assert name in taken_away


def test_every_index_in_the_loop_is_unsigned():
    (factory,) = (
        x
        for x in ast.parse(inspect.getsource(flash_attn_v2_unsigned)).body
        if getattr(x, "name", "") == "make_flash_attn_v2_unsigned"
    )
    (loop,) = (x for x in ast.walk(factory) if isinstance(x, ast.For) and x.target.id == "n_start")
    indices = []
    for x in ast.walk(loop):
        if isinstance(x, ast.Subscript) and x.value.id not in ("acc", "pv"):  # registers
            indices += x.slice.elts
    assert len(indices) >= 20
    assert all(x.func.id == "u64" for x in indices)
