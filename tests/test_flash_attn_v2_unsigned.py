"""flash_attn_v2_unsigned differs from flash_attn_v2 in its indices, and in nothing else."""

import ast
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


def functions(module):
    tree = ast.parse(inspect.getsource(module))
    return [ast.dump(Plain().visit(x)) for x in tree.body if isinstance(x, ast.FunctionDef)]


def test_the_difference_is_in_the_indices():
    signed, unsigned = functions(flash_attn_v2), functions(flash_attn_v2_unsigned)
    assert len(signed) == 2 and signed == unsigned


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
