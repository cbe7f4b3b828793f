"""analysis.sass: a listing of machine code, read."""

from collections import Counter

import pytest

from fa_numba.analysis.sass import KINDS, Instruction, parse

# As nvdisasm writes it: an inlined call within an inlined call, a division routine, padding.
LISTING = """
	.section	.text._Z6kernel,"ax",@progbits
.text._Z6kernel:
	//## File "/home/me/kernels.py", line 10
        /*0000*/                   MOV R1, c[0x0][0x28] ;
	//## File "/home/me/library.py", line 4 inlined at "/home/me/kernels.py", line 7
	//## File "/home/me/kernels.py", line 7 inlined at "/home/me/kernels.py", line 12
	//## File "/home/me/kernels.py", line 12
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/                   HMMA.16816.F32 R8, R4, R6, RZ ;
.L_x_1:
	//## File "/home/me/kernels.py", line 13
        /*0030*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_s64) ;
        /*0040*/                   BRA `(.L_x_1) ;
        /*0050*/                   EXIT ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_2);
        /*0070*/                   NOP;
        .type           $__internal_0_$__cuda_sm20_div_s64,@function
$__internal_0_$__cuda_sm20_div_s64:
        /*0080*/                   I2F.U64.RP R0, R2 ;
        /*0090*/                   RET.REL.NODEC R8 `(_Z6kernel) ;
.L_x_3:
        /*00a0*/                   BRA `(.L_x_3);
        /*00b0*/                   NOP;
"""


def instruction(opcode, operands="R0, R1"):
    return Instruction(opcode, operands, "", None, None)


def test_lines_are_those_of_the_kernels_file():
    found = parse(LISTING, "/home/me/kernels.py")
    lines = Counter(i.line for i in found if i.opcode != "NOP")
    assert lines == {10: 1, 7: 2, 13: 3, None: 2}
    assert [str(i) for i in found[:2]] == [
        "MOV R1, c[0x0][0x28]",
        "@!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64]",
    ]


def test_routines_are_named_and_padding_is_dropped():
    found = parse(LISTING, "/home/me/kernels.py")
    assert [i.opcode for i in found if i.helper == "div_s64"] == ["I2F.U64.RP", "RET.REL.NODEC"]
    assert found[-1].opcode == "RET.REL.NODEC"
    assert "CALL div_s64" in [i.label for i in found]


@pytest.mark.parametrize(
    "opcode, kind, label",
    [
        ("FFMA.FTZ", "float32", "FFMA"),
        ("DFMA", "float64", "DFMA"),
        ("F2F.F64.F32", "float64", "F2F.F64.F32"),
        ("MUFU.RCP64H", "float64", "MUFU.RCP64H"),
        ("MUFU.EX2", "special", "MUFU.EX2"),
        ("F2I.FTZ.U32.TRUNC.NTZ", "convert", "F2I"),
        ("HFMA2", "float16", "HFMA2"),
        ("HMMA.16816.F32", "tensor", "HMMA.16816.F32"),
        ("HGMMA.64x128x16.F32", "tensor", "HGMMA.64x128x16.F32"),
        ("LDG.E", "global", "LDG.32"),
        ("LDG.E.U16.CONSTANT", "global", "LDG.16"),
        ("LDGSTS.E.BYPASS.LTC128B.128", "global", "LDGSTS.128"),
        ("UTMALDG.3D", "global", "UTMALDG"),
        ("STG.E.64", "global", "STG.64"),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU", "global", "RED"),
        ("LDS.U.128", "shared", "LDS.128"),
        ("STS", "shared", "STS.32"),
        ("LDSM.16.M88.4", "shared", "LDSM"),
        ("LDL.LU", "local", "LDL.32"),
        ("BAR.SYNC.DEFER_BLOCKING", "barrier", "BAR"),
        ("SHFL.BFLY", "shuffle", "SHFL"),
        ("BRA", "branch", "BRA"),
        ("IMAD.WIDE.U32", "integer", "IMAD"),
    ],
)
def test_kind_and_label(opcode, kind, label):
    assert (instruction(opcode).kind, instruction(opcode).label) == (kind, label)
    assert kind in KINDS


def test_a_constant_written_by_hfma2_is_no_arithmetic():
    assert instruction("HFMA2.MMA", "R7, -RZ, RZ, 0, 0").kind == "integer"
