"""What Numba's compilers compute again and again, remembered: the same code in less time.

Importing this module shortens the part of Numba before libNVVM, which is most of the work:

- For each ``+`` in a kernel Numba tries up to 40 implementations to find the type of the result.
- It compares its options one by one, by properties, some 10,000 times for a kernel.
- After each of nine passes over a function it looks for variables that live at the start of each
  block, which only generators ask.
- Before each function it looks through 40 registries for implementations that are new.
"""

import functools

from numba.core import targetconfig
from numba.core.types.functions import BaseFunction

get_call_type, call_types = BaseFunction.get_call_type, {}


def remembered_call_type(function, context, args, kws):
    """The signature of a call of a function that Numba implements by rules of types alone.

    An overload or an intrinsic is asked each time: Numba then also notes what it has compiled.
    """
    key = function, context, tuple(args)
    signature = None if kws else call_types.get(key)
    if signature is None:
        signature = get_call_type(function, context, args, kws)
        if kws or function._impl_keys[signature.args] is not function.typing_key:
            return signature
        call_types[key] = signature
    function._impl_keys[signature.args] = function.typing_key
    return signature


def values(options):
    """All options of a `TargetConfig`, those that are not set too."""
    return {**defaults(type(options)), **options._values}


@functools.cache
def defaults(kind):
    return {name: option.default for name, option in kind.options.items()}


BaseFunction.get_call_type, targetconfig.TargetConfig.values = remembered_call_type, values

try:
    from numba.cuda.core import postproc, targetconfig, transforms
    from numba.cuda.target import CUDATargetContext, CUDATypingContext
except ImportError:  # no numba-cuda, or its simulator: nothing is compiled for a GPU
    pass
else:
    post_process = postproc.PostProcessor.run
    refresh, refresh_types = CUDATargetContext.refresh, CUDATypingContext.refresh

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

    def has_grown(context):
        """Whether the registries of a context have more than when it was last refreshed."""
        loaders = context._registries.items()
        number = sum(len(getattr(x, name)) for x, y in loaders for name in y.registry_items)
        known, context._registered = getattr(context, "_registered", None), number
        return number != known

    def refresh_what_grew(context):
        if has_grown(context):
            refresh(context)
        else:
            context.typing_context.refresh()

    def refresh_types_that_grew(context):
        if has_grown(context):
            refresh_types(context)

    targetconfig.TargetConfig.values = values
    postproc.PostProcessor.run = post_process_blocks
    CUDATargetContext.refresh = refresh_what_grew
    CUDATypingContext.refresh = refresh_types_that_grew
