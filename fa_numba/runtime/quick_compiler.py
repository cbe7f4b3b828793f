"""What Numba's compilers compute again and again, remembered: the same code in less time.

Importing this module shortens the part of Numba before libNVVM, which is most of the work:

- For each ``+`` in a kernel Numba tries up to 40 implementations to find the type of the result.
- It compares its options one by one, by properties, some 10,000 times for a kernel.
- Before each function it looks through 40 registries for implementations that are new.
- It asks LLVM for the size of a type at each variable, in a module of its own.
- It makes the signature of each implementation that it finds, to look for a parameter ``loc``.
- For a GPU, after each of nine passes over a function it looks for variables that live at the start
  of each block, which generators ask alone; and it writes down where all variables end before it
  looks for closures and lists, which hardly a kernel has. It asks each part of an instruction in
  turn what it is, to list the variables; and for each variable of a function it looks through a
  block for its assignments.

A function of Numba is replaced only where the digest of its source is known, and of the source that
the new function relies on. numba 0.68 with numba-cuda 0.30 has all of these sources; most are the
same since numba 0.61. The environment variable FA_NUMBA_QUICK_COMPILER=0 replaces none.
"""

import functools
import hashlib
import inspect
import os
import types
from collections import Counter

from numba.core import base, cpu, targetconfig, typing
from numba.core.types.functions import BaseFunction

MOST_CALL_TYPES = 20_000  # remembered
KNOWN = {  # name of a function of Numba -> digest of its source
    "numba.core.types.functions.BaseFunction.get_call_type": "202109a80ec4d468",
    "numba.core.base._has_loc": "a36125186f3db5bb",
    "numba.core.base.BaseContext.get_abi_sizeof": "d62321a8ccf39a59",
    "numba.core.targetconfig.TargetConfig.values": "12a29dc810f6a91b",
    "numba.core.base.BaseContext.refresh": "c392290fdbd440d4",
    "numba.core.typing.context.BaseContext.refresh": "e448c6004bfdc030",
    "numba.cuda.core.base._has_loc": "35e2d21ceed768cd",
    "numba.cuda.core.base.BaseContext.get_abi_sizeof": "d62321a8ccf39a59",
    "numba.cuda.core.inline_closurecall.InlineClosureCallPass.run": "395dcb869c51c730",
    "numba.cuda.core.ir.Inst._rec_list_vars": "043539bffabcfcb1",
    "numba.cuda.core.ir_utils.compat_list_vars_stmt": "a8793dc08d4b9417",
    "numba.cuda.lowering.Lower._find_singly_assigned_variable": "c3b499f765172885",
    "numba.cuda.core.targetconfig.TargetConfig.values": "824f3c925f1cf992",
    "numba.cuda.core.base.BaseContext.refresh": "7a952860def95a09",
    "numba.cuda.typing.context.BaseContext.refresh": "5663223c5bf08c7f",
    "numba.cuda.core.postproc.PostProcessor.run": "b56ef981eaa220fa",
}
replaced = {}  # name in KNOWN -> (class or module, attribute, the function of Numba)
get_call_type, call_types = BaseFunction.get_call_type, {}


def replace(owner, name, new, *relies_on):
    """Replace a function if its source, with that of `relies_on`, has the known digest."""
    old = getattr(owner, name)
    full_name = f"{old.__module__}.{old.__qualname__}"
    try:
        text = "".join(map(inspect.getsource, (old, *relies_on)))
    except (OSError, TypeError):  # there is no text
        return
    if hashlib.sha256(text.encode()).hexdigest()[:16] == KNOWN.get(full_name):
        setattr(owner, name, new)
        replaced[full_name] = owner, name, old


def remembered_call_type(function, context, args, kws):
    """The signature of a call of a function that Numba implements by rules of types alone.

    Overloads and intrinsics are resolved each time: that also records what was compiled.
    """
    key = function, context, tuple(args)
    signature = None if kws else call_types.get(key)
    if signature is None:
        signature = get_call_type(function, context, args, kws)
        if kws or function._impl_keys[signature.args] is not function.typing_key:
            return signature
        if len(call_types) >= MOST_CALL_TYPES:
            call_types.clear()
        call_types[key] = signature
    function._impl_keys[signature.args] = function.typing_key
    return signature


def values(options):
    """All options of a `TargetConfig`, those that are not set too."""
    return {**defaults(type(options)), **options._values}


@functools.cache
def defaults(kind):
    return {name: option.default for name, option in kind.options.items()}


def quicken_refresh(kind, otherwise):
    """Let contexts look for new implementations where a registry has more than the last time."""
    refresh = kind.refresh

    def lists_of(context):
        """The lists of implementations of all registries: they only grow."""
        number, lists = context.__dict__.get("_lists", (0, ()))
        if number != len(context._registries):
            loaders = context._registries.items()
            lists = [getattr(x, name) for x, y in loaders for name in y.registry_items]
            context._lists = len(context._registries), lists
        return lists

    def refresh_what_grew(context):
        if sum(map(len, lists_of(context))) != getattr(context, "_registered", None):
            refresh(context)
            context._registered = sum(map(len, lists_of(context)))
        else:
            otherwise(context)

    replace(kind, "refresh", refresh_what_grew, kind.install_registry)


def quicken_sizes(kind):
    """Let contexts remember the sizes of LLVM's types, by their text."""
    get_abi_sizeof = kind.get_abi_sizeof

    def remembered_sizeof(context, llvm_type):
        sizes = context.__dict__.setdefault("_sizes", {})
        size = sizes.get(key := str(llvm_type))
        if size is None:
            size = sizes[key] = get_abi_sizeof(context, llvm_type)
        return size

    replace(kind, "get_abi_sizeof", remembered_sizeof)


def quicken_loc(base):
    """Let an implementation's code say that it has no parameter ``loc``, as most have none."""
    has_loc = base._has_loc

    def may_have_loc(function):
        if type(function) is types.FunctionType and not function.__dict__:  # it wraps no other
            if "loc" not in function.__code__.co_varnames:
                return False
        return has_loc(function)

    replace(base, "_has_loc", may_have_loc)


def quicken(base, targetconfig, target_context, typing_context):
    quicken_loc(base)
    quicken_sizes(target_context)
    replace(targetconfig.TargetConfig, "values", values)
    quicken_refresh(target_context, lambda context: context.typing_context.refresh())
    quicken_refresh(typing_context, lambda context: None)


def quicken_cpu():
    replace(BaseFunction, "get_call_type", remembered_call_type, BaseFunction.__init__)
    quicken(base, targetconfig, cpu.CPUContext, typing.Context)


def quicken_gpu():
    try:
        from numba.cuda import target
        from numba.cuda.core import (
            analysis,
            base,
            inline_closurecall,
            ir,
            ir_utils,
            postproc,
            targetconfig,
            transforms,
        )
        from numba.cuda.lowering import Lower
    except ImportError:  # no numba-cuda, or its simulator: nothing is compiled for a GPU
        return
    post_process = postproc.PostProcessor.run

    def post_process_blocks(self, emit_dels=False, extend_lifetimes=False):
        """Leave it to `VariableLifetime` to compute what somebody asks."""
        function = self.func_ir
        if function.is_generator:
            return post_process(self, emit_dels, extend_lifetimes)
        function.blocks = transforms.canonicalize_cfg(function.blocks)
        function.variable_lifetime = postproc.VariableLifetime(function.blocks)
        function.generator_info = None
        if emit_dels:
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)

    inline_closures = inline_closurecall.InlineClosureCallPass.run

    def is_inlined(value):
        """Whether a closure, a list, or functools.reduce, for which the pass looks."""
        if isinstance(value, ir.expr_types):
            lists = "make_function", "build_list"
            return value.op in lists or (value.op == "getattr" and value.attr == "reduce")
        return getattr(value, "value", None) is functools.reduce

    def inline_closures_if_any(self):
        for block in self.func_ir.blocks.values():
            if any(is_inlined(x.value) for x in block.body if isinstance(x, ir.assign_types)):
                return inline_closures(self)

    plain = str, int, float, bool, ir.Loc, types.NoneType, types.BuiltinFunctionType
    list_variables, list_compatible = ir.Inst._rec_list_vars, ir_utils.compat_list_vars_stmt

    def variables_in(instruction, value):
        """The variables in a value, by its type: that of numba-cuda, or another one."""
        kind = type(value)
        if kind is ir.Var:
            return [value]
        if kind in plain:
            return []
        if kind is dict or kind is tuple or kind is list:
            parts, found = value.values() if kind is dict else value, []
            for part in parts:
                kind = type(part)
                if kind is ir.Var:
                    found.append(part)
                elif kind not in plain:
                    found += variables_in(instruction, part)
            return found
        return list_variables(instruction, value)

    def variables_of(statement):
        if type(statement) is ir.Assign and type(statement.value) in (ir.Var, ir.Expr):
            return statement.list_vars()
        return list_compatible(statement)

    find_assigned_once = Lower._find_singly_assigned_variable

    def count_assignments(self):
        """Note the variables of one assignment which no block has from another one."""
        if self.func_ir.func_id.is_generator:
            return find_assigned_once(self)
        blocks = self.func_ir.blocks
        use_defs = analysis.compute_use_defs(blocks)
        others = analysis.must_use_alloca(blocks).union(*use_defs.usemap.values())
        defined = set().union(*use_defs.defmap.values()) - others
        assigned = Counter(
            x.target.name
            for block in blocks.values()
            for x in block.body
            if isinstance(x, ir.assign_types)
        )
        self._singly_assigned_vars = {name for name in defined if assigned[name] == 1}
        self._blk_local_varmap = {}

    replace(ir.Inst, "_rec_list_vars", variables_in)
    replace(ir_utils, "compat_list_vars_stmt", variables_of, ir_utils.visit_vars_stmt)
    replace(Lower, "_find_singly_assigned_variable", count_assignments)
    replace(postproc.PostProcessor, "run", post_process_blocks, postproc.VariableLifetime)
    replace(inline_closurecall.InlineClosureCallPass, "run", inline_closures_if_any)
    quicken(base, targetconfig, target.CUDATargetContext, target.CUDATypingContext)


if os.environ.get("FA_NUMBA_QUICK_COMPILER") != "0":
    quicken_cpu()
    quicken_gpu()
