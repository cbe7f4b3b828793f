"""One PTX statement as a function that a Numba kernel can call.

Numba has no inline PTX, but an intrinsic may emit any LLVM instruction, and LLVM has inline
assembly. Every instruction of this library is an intrinsic that returns `statement(...)`; only this
module touches LLVM. For example, `ldmatrix_x4(fragment, address)` returns

    statement("ldmatrix.sync.aligned.m8n8.x4.shared.b16 <fragment>, [<address>];",
              fragment=written(fragment, 4), address=types.uint32)

and LLVM gets a text and its constraints, one for each operand, the results first:

    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];
    =r,=r,=r,=r,r,~{memory}

"=r" is a 32-bit register that is written, "r" one that is read (f: float, l: 64 bits). A number, as
for mma's accumulator, is an input in the same register as the result of this number. "~{memory}"
says that memory may change, so that no load or store is moved across.

Numba sees a fragment as a local array: its elements are loaded before the statement and stored
after it. If all its indices are constants once loops are unrolled, LLVM keeps it in registers and
removes these loads and stores; a single other index sends the array to local memory.
"""

from dataclasses import dataclass

from numba.cuda.extending import intrinsic  # isort: skip: without Numba it says so
from llvmlite import ir

from numba_cuda_simulator.without_numba.missing import NameMissingError

try:
    from numba.cuda import cgutils, types
    from numba.cuda.core import errors
except ImportError as error:  # Numba's own numba.cuda, on macOS and Python 3.15
    raise NameMissingError("inline PTX needs numba-cuda, which is not installed") from error

SHARED = 3  # LLVM's number of the address space of shared memory
GLOBAL = 1

# LLVM's letters for a 32-bit, a 64-bit and a float register.
CONSTRAINTS = {types.uint32: "r", types.uint64: "l", types.float32: "f"}


@dataclass(frozen=True)
class Fragment:
    """The first `length` elements of a local array: registers of one operand."""

    array: types.Array
    length: int
    # Both for an accumulator; such an operand is tied: in and out are the same registers
    read: bool = True
    written: bool = False
    # Registers of one instruction, if the statement has several instructions. The text then names
    # <a0>, <a1>, ..., groups of `parts` registers of operand a. 0: <a> alone, all registers.
    parts: int = 0
    # The elements are read as words of 32 bits, whatever their type: two float16, or a float32
    as_words: bool = False

    @property
    def dtype(self):
        """Type of a register."""
        return types.uint32 if self.as_words else self.array.dtype


def read(array, length, *, as_words=False):
    """A fragment that is an input."""
    return Fragment(array, length, as_words=as_words)


def written(array, length):
    """A fragment that is the result."""
    return Fragment(array, length, read=False, written=True)


def tied(array, length):
    """A fragment that is changed in place."""
    return Fragment(array, length, written=True)


def literal(argument):
    """Value of a compile-time constant: a number in the source, or in a closure.

    Raises
    ------
    RequireLiteralValue
        The argument is known only when the kernel runs.
    """
    if not isinstance(argument, types.Literal):  # Numba then tries the literal type
        raise errors.RequireLiteralValue(f"must be a compile-time constant, got {argument}")
    return argument.literal_value


def statement(text, *, result=None, pure=False, **operands):
    """Return an intrinsic's signature, and the code that emits one PTX statement.

    Parameters
    ----------
    text : str
        PTX, with each operand's name in angle brackets: ``"bar.sync <barrier>, <threads>;"``.
        A fragment becomes the list of its registers, ``{$0, $1, $2, $3}``.
    result : numba type, default=None
        Type of the function's result, ``<result>`` in the text.
    pure : bool, default=False
        The statement only computes its result from its operands, so the compiler may move or drop
        it. A statement that is not pure is never moved, and no memory access moves across it.
    **operands
        The intrinsic's parameters in their order: a scalar's type, to which the argument is cast; a
        `Fragment`; or a literal's type, whose value is part of the text already.

    Returns
    -------
    signature, codegen
        The types, and the function that emits LLVM code, as Numba's intrinsics return them.

    Raises
    ------
    KeyError
        An operand is not uint32, uint64, float32 (`CONSTRAINTS`), or a fragment of these.
    """
    outputs, inputs, ties, names = _place_operands(result, operands)
    for name, registers in names.items():
        text = text.replace(f"<{name}>", registers)
    constraints = [f"={CONSTRAINTS[t]}" for t in outputs]
    constraints += [CONSTRAINTS[t] for t in inputs] + [str(i) for i in ties]
    if not pure:
        constraints.append("~{memory}")

    def codegen(context, builder, signature, args):
        pointers, values = _load_operands(context, builder, operands, args)
        returned = [context.get_value_type(t) for t in outputs]
        function = ir.FunctionType(_return_type(returned), [v.type for v in values])
        assembly = ir.InlineAsm(function, text, ",".join(constraints), side_effect=not pure)
        got = builder.call(assembly, values)
        if len(returned) > 1:
            results = [builder.extract_value(got, i) for i in range(len(returned))]
        else:
            results = [got] if returned else []
        value = results.pop(0) if result is not None else context.get_dummy_value()
        for pointer, element in zip(pointers, results, strict=True):
            builder.store(element, pointer)
        return value

    arguments = [x.array if isinstance(x, Fragment) else x for x in operands.values()]
    return (types.void if result is None else result)(*arguments), codegen


def kernel_properties(properties, *arguments):
    """Return an intrinsic's signature, and code that gives the kernel which calls it properties.

    No instruction is emitted. The intrinsic must be called in the kernel's own body.

    Parameters
    ----------
    properties : dict of str to int
        By NVVM's names: "Global property annotation" in NVIDIA's NVVM IR specification.
    *arguments : numba types
        The intrinsic's parameters, constants.
    """

    def codegen(context, builder, signature, args):
        module = builder.module
        annotations = cgutils.get_or_insert_named_metadata(module, "nvvm.annotations")
        for name, value in properties.items():
            pair = ir.MetaDataString(module, name), ir.IntType(32)(value)
            annotations.add(module.add_metadata((builder.function, *pair)))
        return context.get_dummy_value()

    return types.void(*arguments), codegen


def _place_operands(result, operands):
    """Number the registers of a statement: the results first, then the inputs.

    Returns
    -------
    outputs, inputs : lists of numba types
    ties : list of int
        Numbers of the outputs that are inputs, too.
    names : dict
        Registers of each name in the text.
    """
    outputs, inputs, ties, names = [], [], [], {}
    if result is not None:
        names["result"] = "$0"
        outputs.append(result)
    for name, operand in operands.items():
        if isinstance(operand, Fragment) and operand.written:
            first = len(outputs)
            outputs += [operand.dtype] * operand.length
            names[name] = _registers(first, operand.length)
            if operand.read:
                ties += range(first, first + operand.length)
    for name, operand in operands.items():
        position = len(outputs) + len(inputs)
        if isinstance(operand, Fragment):
            if not operand.written:
                inputs += [operand.dtype] * operand.length
                names[name] = _registers(position, operand.length)
                for i in range(operand.length // operand.parts if operand.parts else 0):
                    names[f"{name}{i}"] = _registers(position + i * operand.parts, operand.parts)
        elif not isinstance(operand, types.Literal):
            inputs.append(operand)
            names[name] = f"${position}"
    return outputs, inputs, ties, names


def _load_operands(context, builder, operands, args):
    """Emit the loads of fragments; return pointers to written elements, and values to pass."""
    out_pointers, plain, tied_values = [], [], []
    for operand, arg in zip(operands.values(), args, strict=True):
        if isinstance(operand, Fragment):
            pointers = _element_pointers(context, builder, operand, arg)
            if operand.written:
                out_pointers += pointers
            if operand.read:
                values = [builder.load(p) for p in pointers]
                (tied_values if operand.written else plain).extend(values)
        elif not isinstance(operand, types.Literal):
            plain.append(arg)
    return out_pointers, plain + tied_values


def _return_type(returned):
    """LLVM's type of several results: nothing, the one type, or a struct."""
    if not returned:
        return ir.VoidType()
    return returned[0] if len(returned) == 1 else ir.LiteralStructType(returned)


def _registers(first, length):
    return "{" + ", ".join(f"${i}" for i in range(first, first + length)) + "}"


def _data_pointer(context, builder, array_type, array):
    return cgutils.create_struct_proxy(array_type)(context, builder, value=array).data


def _element_pointers(context, builder, fragment, array):
    data = _data_pointer(context, builder, fragment.array, array)
    if fragment.as_words:
        data = builder.bitcast(data, ir.IntType(32).as_pointer(data.type.addrspace))
    index = ir.IntType(64)
    return [builder.gep(data, [index(i)], inbounds=True) for i in range(fragment.length)]


def _address(space, result):
    def emit(array):
        def codegen(context, builder, signature, args):
            pointer = _data_pointer(context, builder, signature.args[0], args[0])
            pointer = builder.addrspacecast(pointer, pointer.type.pointee.as_pointer(space))
            return builder.ptrtoint(pointer, context.get_value_type(result))

        return result(array), codegen

    return emit


@intrinsic
def shared_address(typingctx, array):
    """32-bit address of the first element of a shared array, as the instructions take it."""
    return _address(SHARED, types.uint32)(array)


@intrinsic
def global_address(typingctx, array):
    """64-bit address of the first element of an array or of a view of it, in global memory."""
    return _address(GLOBAL, types.uint64)(array)


@intrinsic
def opaque(typingctx, x):
    """x, as a number that the compiler knows nothing about: one move.

    The compiler computes values that depend on a loop-invariant number before the loop, and keeps
    them in registers. If there are too few, `opaque` inside the loop hides that it is invariant.
    """
    return statement("mov.b32 <result>, <x>;", result=types.uint32, x=types.uint32)
