"""Parses nvdisasm's listing of machine code: instructions with a kind and a source line.

A GPU's machine code (SASS) differs from one generation to the next and NVIDIA lists only its
mnemonics, so an instruction is sorted here by its mnemonic alone.
"""

import re
from dataclasses import dataclass
from pathlib import Path

# Kinds in the order of the table's columns. Other instructions are integer arithmetic,
# addresses, moves: "integer".
KINDS = {
    "float32": r"FFMA|FADD|FMUL|FMNMX|FSETP|FSEL|FSET|FCHK|FSWZADD",
    "float64": r"DADD|DMUL|DFMA|DSETP|DMNMX",
    "float16": r"HADD2|HMUL2|HFMA2|HMNMX2|HSETP2|HSET2",
    "tensor": r"[A-Z]*MMA",  # HMMA mma.sync, HGMMA wgmma, UTCHMMA tcgen05; I integer, Q float8
    "special": r"MUFU",  # the unit for exp2, log2, 1/x, 1/√x, sin, cos
    "convert": r"F2F|F2FP|F2I|I2F|I2FP|F2IP|FRND",
    "global": r"LDG|STG|LD|ST|RED|REDG|ATOM|ATOMG|LDGSTS|LDGDEPBAR|U?TMA\w+|UBLKCP|CCTL\w*",
    "shared": r"LDS|STS|LDSM|STSM|ATOMS|REDS",
    "local": r"LDL|STL",
    "barrier": r"BAR|UCGABAR\w*|WARPSYNC|SYNCS|MEMBAR|DEPBAR",
    "shuffle": r"SHFL|VOTE|MATCH|REDUX",
    "branch": r"BRA|BRX|BRXU|JMP|EXIT|CALL|RET|BSSY|BSYNC|BREAK|BMOV|YIELD",
    "integer": r".*",
}
_KIND = {name: re.compile(pattern) for name, pattern in KINDS.items()}

# Loads, stores and copies whose width says how many bytes a thread moves at a time.
_MOVES = re.compile(r"(LDG|STG|LDS|STS|LDL|STL|LD|ST|LDGSTS)$")
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}

_INSTRUCTION = re.compile(
    r"\s*/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;"
)
_LINE = re.compile(r'\s*//## File "(.*?)", line (\d+)')
_LABEL = re.compile(r"^([.$\w]+):$")
_FUNCTION = re.compile(r"^\s*\.section\s+\.text\.")
_HELPER = re.compile(r"\$__internal_\d+_\$__(?:cuda_)?(?:sm\w\w_)?(\w+)")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Attributes
    ----------
    opcode : str
        With its modifiers, as "LDG.E.128.CONSTANT".
    operands, predicate : str
        The predicate register that decides whether it runs; "" if it always runs.
    line : int or None
        Line of the kernel's source file; None for code that the compiler added.
    helper : str or None
        The compiler's routine that it is part of, as "div_s64": 64-bit integer division.
    """

    opcode: str
    operands: str
    predicate: str
    line: int | None
    helper: str | None

    @property
    def mnemonic(self):
        return self.opcode.partition(".")[0]

    @property
    def kind(self):
        """One of `KINDS`."""
        if self.mnemonic == "HFMA2" and "-RZ, RZ" in self.operands:
            return "integer"  # the compiler's way to write a constant to a register
        if self.mnemonic in ("MUFU", "F2F", "F2I", "I2F", "FRND") and re.search(
            r"\.F64|\.\w+64H\b", self.opcode
        ):
            return "float64"
        return next(kind for kind, known in _KIND.items() if known.fullmatch(self.mnemonic))

    @property
    def label(self):
        """The name to count it under: the mnemonic and its important modifiers.

        Widths in bits for loads and stores ("LDS.128"), the function of a MUFU ("MUFU.EX2"), the
        shape of a tensor-core instruction, the target of a CALL ("CALL div_s64").
        """
        mnemonic, *modifiers = self.opcode.split(".")
        if _MOVES.match(mnemonic):
            return f"{mnemonic}.{next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 32)}"
        if self.kind in ("tensor", "special", "float64"):
            return self.opcode
        if mnemonic == "CALL":
            helper = _HELPER.search(self.operands)
            return f"CALL {helper[1]}" if helper else "CALL"
        return mnemonic

    def __str__(self):
        predicate = f"@{self.predicate} " if self.predicate else ""
        return f"{predicate}{self.opcode} {self.operands}".rstrip()


def parse(listing, file):
    """Instructions of a listing by ``nvdisasm --print-code --print-line-info-inline``.

    Parameters
    ----------
    listing : str
    file : str
        The kernel's source file. Code of a device function in another file counts for the line that
        calls it.

    Returns
    -------
    tuple of Instruction
        Without the padding after the last one.
    """
    name = Path(file).name
    found, line, helper, in_comment, last_label = [], None, None, False, None
    for text in listing.splitlines():
        if comment := _LINE.match(text):
            # A run of comments is a chain of inlined calls, the innermost function first.
            if not in_comment:
                line, in_comment = None, True
            if line is None and Path(comment[1]).name == name:
                line = int(comment[2])
            continue
        in_comment = False
        if _FUNCTION.match(text):
            _drop_padding(found)
            line = helper = None
        elif label := _LABEL.match(text):
            last_label = label[1]
            if called := _HELPER.match(last_label):
                line, helper = None, called[1]
        elif match := _INSTRUCTION.match(text):
            predicate, opcode, operands = match.groups()
            if opcode == "BRA" and operands == f"`({last_label})" and not predicate:
                opcode = "NOP"  # padding: a branch to itself after the last EXIT
            found.append(Instruction(opcode, operands, predicate or "", line, helper))
            last_label = None
    _drop_padding(found)
    return tuple(found)


def _drop_padding(instructions):
    while instructions and instructions[-1].opcode == "NOP":
        instructions.pop()
