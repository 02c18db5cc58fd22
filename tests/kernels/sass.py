"""Tests of what machine code says of itself, as `nvdisasm -c` prints it, and Triton's code before it of barriers."""

import re

STATEMENT = re.compile(r"^([.$\w]+):|/\*[0-9a-f]{4,5}\*/ +(@!?U?P\w+ +)?([\w.]+) *([^;]*?) *;", re.MULTILINE)
KEPT = "R2UR"  # brings back what was put by in another register: loops do that with addresses that stay


def strays(assembly: str) -> list[str]:
    """Return what reads uniform registers to which nothing was written on some way through the kernel, and products that
    find the address of an operand in registers that different instructions have written on different ways.

    ptxas 12.8, which Triton 3.6 and 3.7 bring along, computes such an address before one product and uses it in others, also
    where the first one is skipped or the address is another: Mamba-2's outputs with (N, P) = (64, 32) read states from
    anywhere, a forward program of forgetting attention with its queries in one of two places read other queries."""
    statements: list[tuple[str, str]] = []
    places: dict[str, int] = {}
    written: list[set[int]] = []
    read: list[set[int]] = []
    jumps: list[tuple[int, str]] = []
    before: list[list[int]] = [[-1]]  # statements from which control comes; -1: the kernel's beginning
    for label, guard, operation, operands in STATEMENT.findall(assembly):
        here = len(statements)
        if label:
            places[label] = here
            continue
        target, _, sources = re.sub(r"^(U?PT?\d*, )+", "", operands).partition(",")
        register = re.fullmatch(r"UR(\d+)", target)
        if register and not operation.startswith("UISETP"):
            size = 4 if ".128" in operation else 2 if ".64" in operation or "WIDE" in operation else 1
        else:
            size, sources = 0, operands
        # Descriptors of both operands in shared memory, two registers each; the first is unused if that operand is not.
        used = {"": range(1), "gdesc[": range(2, 4) if re.match(r"R\d+, R\d+, ", operands) else range(4)}
        statements.append((operation, operands))
        written.append({int(register[1]) + i for i in range(size)} if register else set())
        read.append({int(n) + i for kind, n in re.findall(r"(gdesc\[)?\bUR(\d+)", sources) for i in used[kind]})
        if not operation.startswith(("BSSY", "RET")):
            jumps += [(here, name) for name in re.findall(r"[.$][.$\w]+", operands)]
        leaves = operation.startswith(("EXIT", "CALL", "RET", "BRX")) or (operation.startswith("BRA") and operands[0] == "`")
        before.append([] if leaves and not guard else [here])
    for here, name in jumps:
        if name in places:
            before[places[name]].append(here)
    calls, returns = ([i for i, done in enumerate(statements) if done[0].startswith(name)] for name in ("CALL", "RET"))
    for here in calls:
        before[here + 1] += returns

    def origins(n: int, place: int) -> set[str]:
        found, seen, ahead = set(), set(), [*before[place]]
        while ahead:
            i = ahead.pop()
            if i in seen:
                continue
            seen.add(i)
            if i < 0:
                found.add("nothing")
            elif n in written[i]:
                found.add(statements[i][0])
            else:
                ahead += before[i]
        return found

    astray = []
    for i, (operation, operands) in enumerate(statements):
        for n in read[i]:
            found = origins(n, i)
            if "nothing" in found or ("gdesc" in operands and len(found - {KEPT}) > 1):
                astray.append(f"{operation} {operands}: UR{n} by {sorted(found)}")
    return astray


def idle_barriers(ttgir: str) -> list[str]:
    """Barriers that are begun and never used. To Triton they are dead from there on, and their place is given to what comes
    next; but what begins a barrier may be written there later, as nothing but mbarrier.inval ends one. The backward pass of
    head size 128 took arguments of its copying warp from there: now and then, beside another program on the GPU, an address
    was a barrier."""
    idle = []
    for name in re.findall(r"(%[\w.]+) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(?:\d+x)+i64,", ttgir):
        names, begun, used = {name}, False, False
        for line in ttgir.splitlines():
            target, _, rest = line.strip().partition(" = ")
            if not target.startswith("%"):  # what an operation without a result is given, with attributes = values behind it
                target, rest = "", line.strip()
            if not names & set(re.findall(r"%[\w.]+", rest)):
                continue
            if rest.startswith("ttg.memdesc_index"):
                names.add(target)
            elif rest.startswith("ttng.init_barrier"):
                begun = True
            else:
                used = True
        if begun and not used:
            idle.append(name)
    return idle
