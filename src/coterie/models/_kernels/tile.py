"""The innermost product: one panel of eight users against up to `WIDEST` columns, in registers.

A large matrix product reaches the arithmetic's limit because it copies both operands into panels first; for many
users and few candidates the copying would cost as much as the product. Our inverses live in panels already, so all
that is missing is the innermost block. It is written as LLVM vectors, since loops over arrays would keep the sums
in memory instead of registers: 0.92 to 1.02 times the cost of the same arithmetic in a large product (docs/speed.md).
"""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

PANEL = 8  # users in a panel: one cache line of float64

_features = llvm.get_host_cpu_features()
_LANES = 8 if _features.get("avx512f") else 4 if _features.get("avx") else 2  # float64 in a register
_PARTS = PANEL // _LANES  # registers that hold one panel
# Sums kept in registers are _PARTS * WIDEST; the rest of the 32 (or 16) registers hold the operands.
WIDEST = 13 if _LANES == 8 else 6 if _LANES == 4 else 3


@intrinsic  # type: ignore[untyped-decorator]
def multiply(typing: Any, panel: Any, columns: Any, out: Any, stride: Any, length: Any, width: Any) -> Any:
    """out[k, j] = Σ_p panel[p, j] · columns[p, k], all given as addresses; `width` columns, at most WIDEST.

    panel is (length, PANEL) and columns (length, width), contiguous float64; out is (width, PANEL), its rows
    `stride` numbers apart.
    """
    return types.void(*[types.intp] * 6), _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    panel, columns, out, stride, length, width = arguments
    done = builder.append_basic_block("tile.done")
    cases = [builder.append_basic_block(f"tile.{k}") for k in range(1, WIDEST + 1)]
    switch = builder.switch(width, done)
    for k, block in enumerate(cases, start=1):
        switch.add_case(ir.Constant(width.type, k), block)
        builder.position_at_end(block)
        _block(builder, panel, columns, out, stride, length, k)
        builder.branch(done)
    builder.position_at_end(done)
    return context.get_dummy_value()


def _block(builder: Any, panel: Any, columns: Any, out: Any, stride: Any, length: Any, width: int) -> None:
    """Emit the loop for one fixed number of columns."""
    number, word, index = ir.DoubleType(), length.type, ir.IntType(32)
    lanes = ir.VectorType(number, _LANES)
    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(lanes, [lanes, lanes, lanes]), f"llvm.fma.v{_LANES}f64"
    )
    undefined = ir.Constant(lanes, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(index, _LANES), [0] * _LANES)
    zero = ir.Constant(lanes, [0.0] * _LANES)

    def at(base: Any, offset: int, kind: Any) -> Any:
        return builder.inttoptr(builder.add(base, ir.Constant(word, 8 * offset)), kind.as_pointer())

    sums = [[cgutils.alloca_once(builder, lanes) for _ in range(width)] for _ in range(_PARTS)]
    for row in sums:
        for total in row:
            builder.store(zero, total)
    with cgutils.for_range(builder, length) as loop:
        base = builder.add(panel, builder.mul(loop.index, ir.Constant(word, 8 * PANEL)))
        users = [builder.load(at(base, part * _LANES, lanes), align=8) for part in range(_PARTS)]
        base = builder.add(columns, builder.mul(loop.index, ir.Constant(word, 8 * width)))
        for k in range(width):
            one = builder.insert_element(undefined, builder.load(at(base, k, number)), ir.Constant(index, 0))
            same = builder.shuffle_vector(one, undefined, everywhere)
            for part in range(_PARTS):
                total = sums[part][k]
                builder.store(builder.call(fma, [users[part], same, builder.load(total)]), total)
    for k in range(width):
        base = builder.add(out, builder.mul(stride, ir.Constant(word, 8 * k)))
        for part in range(_PARTS):
            builder.store(builder.load(sums[part][k]), at(base, part * _LANES, lanes), align=8)
