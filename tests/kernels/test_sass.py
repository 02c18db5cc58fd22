"""Faults of machine code are found where control can reach them, and nothing else is."""

import pytest

from tests.kernels.sass import idle_barriers, strays

PRODUCT = "/*0030*/ HGMMA.64x64x16.F32 R24, R8, gdesc[UR4], R24 ;"
WHOLE = "/*0000*/ UMOV UR6, 0x1 ;\n/*0010*/ UMOV UR7, 0x2 ;"


@pytest.mark.parametrize(
    ("before", "found"),
    [
        (WHOLE, []),
        ("/*0000*/ UMOV UR6, 0x1 ;", ["UR7 by ['nothing']"]),
        (f"/*0000*/ @P0 BRA `(.L_1) ;\n{WHOLE}\n.L_1:", ["UR6 by ['UMOV', 'nothing']", "UR7 by ['UMOV', 'nothing']"]),
        (f"{WHOLE}\n/*0020*/ @P0 BRA `(.L_1) ;\n/*0028*/ UIADD3 UR6, UR6, 0x2, URZ ;\n.L_1:", ["UR6 by ['UIADD3', 'UMOV']"]),
        (f"{WHOLE}\n.L_1:\n{PRODUCT}\n/*0038*/ R2UR UR6, R9 ;\n/*003c*/ @P0 BRA `(.L_1) ;", []),
        (f"/*0000*/ BRA `(.L_1) ;\n.L_2:\n/*0008*/ EXIT ;\n.L_1:\n{WHOLE}", []),
    ],
    ids=[
        "whole",
        "never written",
        "written in a branch",
        "of two origins",
        "put by and brought back",
        "reached past an exit",
    ],
)
def test_registers_astray_are_found(before, found):
    assert [stray.partition(": ")[2] for stray in strays(f"{before}\n{PRODUCT}\n/*0040*/ EXIT ;")] == found


def test_idle_barriers_are_found():
    """%own waits in the kernel itself, %full goes to another warp; %idle is begun, and %never not even that."""
    barrier = "!ttg.memdesc<2x1xi64, #shared3, #smem, mutable>"
    begin = [
        line
        for n, name in enumerate(("own", "full", "idle"))
        for line in (
            f"%{name} = ttg.local_alloc : () -> {barrier}",
            f"%{n} = ttg.memdesc_index %{name}[%c0]",
            f"ttng.init_barrier %{n}, 1",
        )
    ]
    use = [
        "ttng.wait_barrier %0, %c0",
        "ttg.warp_specialize(%q, %full) attributes {registers = 24}",
        f"%never = ttg.local_alloc : () -> {barrier}",
    ]
    assert idle_barriers("\n".join(begin + use)) == ["%idle"]
    assert idle_barriers("\n".join(begin)) == ["%own", "%full", "%idle"]
