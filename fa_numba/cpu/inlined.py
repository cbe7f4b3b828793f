"""How Numba compiles a function that compiled code alone calls, never Python.

Numba optimises each function on its own and makes machine code of it; then it links it into its
callers, where both happen again. Here the first is left out, which took most of LLVM's time: the
jobs have some 90 such functions, and nothing is left of them but what is inlined into one.
"""

from numba import _dynfunc
from numba.core import typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, register_pass

# They look for closures, lists, literally(), literal_unroll(), `with`, and expressions of arrays.
WITHOUT_EFFECT = (
    typed_passes.InlineOverloads,
    typed_passes.NopythonRewrites,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.InlineClosureLikes,
    untyped_passes.InlineInlinables,
    untyped_passes.LiteralUnroll,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.WithLifting,
)


class Library(JITCodeLibrary):
    """LLVM's code of a function and of those that it calls, as Numba wrote it."""

    def _optimize_functions(self, module):
        pass

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=False)
class Enter(LoweringPass):
    """Let callers find the function, by an object that Python could not call."""

    _name = "enter_inlined"

    def __init__(self):
        super().__init__()

    def run_pass(self, state):
        descriptor, library = state.cr.fndesc, state.library
        module, name = descriptor.lookup_module(), descriptor.qualname
        function = _dynfunc.make_function(module, name, "", 0, state.cr.env, (library,))
        state.targetctx.insert_user_function(function, descriptor, [library])
        state.cr = state.cr._replace(cfunc=function)
        return True


class Compiler(CompilerBase):
    def define_pipelines(self):
        state = self.state
        state.library = Library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        passes = DefaultPassBuilder.define_nopython_pipeline(state)
        passes.add_pass_after(Enter, typed_passes.NativeLowering)
        passes.passes = [x for x in passes.passes if x[0] not in WITHOUT_EFFECT]
        passes.finalize()
        return [passes]
