"""The innermost loops over one panel of eight users, in registers.

A large matrix product reaches the processor's speed limit because it copies both operands into panels first; for
many users and few candidates the copying would cost as much as the product. Our inverses are stored in panels, so
only the innermost block is needed. It is written as LLVM vectors, since loops over arrays would keep the sums in
memory instead of registers: 0.92 to 1.02 times the cost of the same arithmetic in a large product, and more than four
times faster than loops for the updates (docs/speed.md).

All operands are addresses of contiguous float64, unless stated otherwise. A panel's row is eight users. The last
three functions give the same bits on every machine: no product and sum are fused, and sums have one order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from coterie.models._kernels.users.registers import REGISTERS, Registers

PANEL = 8  # users in a panel: one cache line of float64

WIDEST = REGISTERS.widest  # candidates in a block
PANELS = REGISTERS.panels  # panels multiplied at once

_number, _word, _index = ir.DoubleType(), ir.IntType(64), ir.IntType(32)
_users = ir.VectorType(_number, PANEL)
_residues = ir.VectorType(ir.FloatType(), PANEL)


@intrinsic  # type: ignore[untyped-decorator]
def multiply(typing: Any, panel: Any, columns: Any, out: Any, stride: Any, length: Any, width: Any) -> Any:
    """out[k, j] = Σ_p panel[p, j] · columns[p, k] for at most WIDEST columns.

    panel is (length, 8), columns (length, width), and the rows of out (width, 8) are `stride` numbers apart.
    """
    return types.void(*[types.intp] * 6), _multiply_each(1)


@intrinsic  # type: ignore[untyped-decorator]
def multiply_many(
    typing: Any, panels: Any, columns: Any, out: Any, stride: Any, length: Any, width: Any
) -> Any:
    """Do what `multiply` does for PANELS panels (PANELS, length, 8) at once; the rows of out are (8·PANELS,)."""
    return types.void(*[types.intp] * 6), _multiply_each(PANELS)


@intrinsic  # type: ignore[untyped-decorator]
def apply_symmetric(typing: Any, packed: Any, vector: Any, out: Any, size: Any) -> Any:
    """out[a, j] = Σ_b P_j[a, b] · vector[b], where packed (pairs, 8) is the upper triangle of each P_j.

    out (size, 8) must be zero.
    """
    return types.void(*[types.intp] * 4), _apply_symmetric


@intrinsic  # type: ignore[untyped-decorator]
def subtract_outer(typing: Any, packed: Any, lost: Any, left: Any, right: Any, on: Any, size: Any) -> Any:
    """P_j −= left_j right_jᵀ for the users with on[j] ≠ 0, compensated: lost (pairs, 8; float32) is added back.

    left and right are (size, 8), on is (8,). If `lost` is 0, the step is plain.
    """
    return types.void(*[types.intp] * 6), _subtract_outer


@intrinsic  # type: ignore[untyped-decorator]
def add_scaled(typing: Any, out: Any, rows: Any, factor: Any, count: Any, minus: Any) -> Any:
    """out[k, j] ±= factor[j] · rows[k, j] for k < count; minus ≠ 0 subtracts.

    factor is (8,) and read before anything is written.
    """
    return types.void(*[types.intp] * 5), _add_scaled


@intrinsic  # type: ignore[untyped-decorator]
def dot_rows(typing: Any, left: Any, right: Any, out: Any, count: Any) -> Any:
    """out[j] = Σ_k left[k, j] · right[k, j] over k < count."""
    return types.void(*[types.intp] * 4), _dot_rows


@intrinsic  # type: ignore[untyped-decorator]
def weigh_rows(typing: Any, rows: Any, weights: Any, out: Any, count: Any) -> Any:
    """out[k] += Σ_j rows[k, j] · weights[j] for k < count."""
    return types.void(*[types.intp] * 4), _weigh_rows


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _offset(builder: Any, address: Any, count: Any, step: int) -> Any:
    """Return the address `count` steps of `step` bytes further on."""
    return builder.add(address, builder.mul(count, ir.Constant(_word, step)))


def _spread(builder: Any, value: Any, lanes: Any) -> Any:
    """Return a vector with `value` everywhere."""
    undefined = ir.Constant(lanes, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_index, 0))
    zeros = ir.Constant(ir.VectorType(_index, lanes.count), [0] * lanes.count)
    return builder.shuffle_vector(first, undefined, zeros)


def _load_users(builder: Any, address: Any) -> Any:
    return builder.load(_at(builder, address, _users), align=8)


def _multiply_each(count: int) -> Callable[..., Any]:
    """Return the function that emits a block for each number of columns, for `count` panels."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *operands, width = arguments
        done = builder.append_basic_block("multiply.done")
        cases = [builder.append_basic_block(f"multiply.{k}") for k in range(1, WIDEST + 1)]
        switch = builder.switch(width, done)
        for k, block in enumerate(cases, start=1):
            switch.add_case(ir.Constant(width.type, k), block)
            builder.position_at_end(block)
            multiply_block(builder, operands, k, count, REGISTERS)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return emit


def multiply_block(
    builder: Any, operands: Sequence[Any], width: int, count: int, registers: Registers
) -> None:
    """Emit the loop for fixed numbers of columns and panels. Each sum has one order, whatever the block.

    The operands are panels, columns, out, stride and length, as of `multiply_many`.
    """
    panels, columns, out, stride, length = operands
    lanes = ir.VectorType(_number, registers.lanes)
    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(lanes, [lanes, lanes, lanes]), f"llvm.fma.v{registers.lanes}f64"
    )

    def at(base: Any, offset: int, kind: Any) -> Any:
        return _at(builder, builder.add(base, ir.Constant(_word, 8 * offset)), kind)

    def add_product(left: Any, right: Any, total: Any) -> Any:
        if registers.fused:
            return builder.call(fma, [left, right, total])
        return builder.fadd(builder.fmul(left, right), total)  # fused would be a library call here

    parts = PANEL // registers.lanes  # registers that hold a row of one panel
    sums = [[cgutils.alloca_once(builder, lanes) for _ in range(width)] for _ in range(count * parts)]
    for row in sums:
        for total in row:
            builder.store(ir.Constant(lanes, [0.0] * registers.lanes), total)
    size = builder.mul(length, ir.Constant(_word, 8 * PANEL))  # bytes of a panel
    with cgutils.for_range(builder, length) as loop:
        base = _offset(builder, panels, loop.index, 8 * PANEL)
        users = []
        for panel in range(count):
            here = builder.add(base, builder.mul(size, ir.Constant(_word, panel)))
            users += [builder.load(at(here, i * registers.lanes, lanes), align=8) for i in range(parts)]
            if count > 1:
                _prefetch(builder, builder.add(here, builder.mul(size, ir.Constant(_word, count))))
        base = _offset(builder, columns, loop.index, 8 * width)
        for k in range(width):
            same = _spread(builder, builder.load(at(base, k, _number)), lanes)
            for part, row in enumerate(sums):
                builder.store(add_product(users[part], same, builder.load(row[k])), row[k])
    for k in range(width):
        base = _offset(builder, out, stride, 8 * k)
        for part, row in enumerate(sums):
            builder.store(builder.load(row[k]), at(base, part * registers.lanes, lanes), align=8)


def _prefetch(builder: Any, address: Any) -> None:
    """Prefetch a cache line. An address behind the array does no harm."""
    byte = ir.IntType(8)
    kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), _index, _index, _index])
    fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, keep, data = (ir.Constant(_index, value) for value in (0, 3, 1))
    builder.call(fetch, [_at(builder, address, byte), read, keep, data])


@contextmanager
def _each_row(builder: Any, size: Any) -> Iterator[tuple[Any, Any]]:
    """Loop over the rows a of a packed upper triangle: a, and where its row would start at b = 0."""
    with cgutils.for_range(builder, size) as loop:
        a = loop.index
        # Row a starts at a·size − a(a−1)/2 with b = a, so b = 0 would lie at a·size − a(a+1)/2.
        half = builder.lshr(builder.mul(a, builder.add(a, ir.Constant(_word, 1))), ir.Constant(_word, 1))
        yield a, builder.sub(builder.mul(a, size), half)


def _apply_symmetric(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    packed, vector, out, size = arguments
    total = cgutils.alloca_once(builder, _users)
    with _each_row(builder, size) as (a, start):
        row = _offset(builder, packed, start, 8 * PANEL)
        own = _offset(builder, out, a, 8 * PANEL)
        factor = _spread(builder, builder.load(_at(builder, _offset(builder, vector, a, 8), _number)), _users)
        diagonal = _load_users(builder, _offset(builder, row, a, 8 * PANEL))
        builder.store(builder.fadd(_load_users(builder, own), builder.fmul(diagonal, factor)), total)
        with cgutils.for_range_slice(
            builder, builder.add(a, ir.Constant(_word, 1)), size, ir.Constant(_word, 1), _word
        ) as (b, _):
            entry = _load_users(builder, _offset(builder, row, b, 8 * PANEL))
            x = _spread(builder, builder.load(_at(builder, _offset(builder, vector, b, 8), _number)), _users)
            builder.store(builder.fadd(builder.load(total), builder.fmul(entry, x)), total)
            other = _offset(builder, out, b, 8 * PANEL)
            more = builder.fadd(_load_users(builder, other), builder.fmul(entry, factor))
            builder.store(more, _at(builder, other, _users), align=8)
        builder.store(builder.load(total), _at(builder, own, _users), align=8)
    return context.get_dummy_value()


def _subtract_outer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    lost = arguments[1]
    with builder.if_else(builder.icmp_signed("!=", lost, ir.Constant(lost.type, 0))) as branches:
        for branch, compensate in zip(branches, (True, False), strict=True):
            with branch:
                _subtract_rows(builder, arguments, compensate)
    return context.get_dummy_value()


def _subtract_rows(builder: Any, arguments: Any, compensate: bool) -> None:
    packed, lost, left, right, on, size = arguments
    nothing = ir.Constant(_users, [0.0] * PANEL)
    learns = builder.fcmp_ordered("!=", _load_users(builder, on), nothing)
    with _each_row(builder, size) as (a, start):
        row = _offset(builder, packed, start, 8 * PANEL)
        residue_row = _offset(builder, lost, start, 4 * PANEL)
        factor = _load_users(builder, _offset(builder, left, a, 8 * PANEL))
        with cgutils.for_range_slice(builder, a, size, ir.Constant(_word, 1), _word) as (b, _):
            entry = _at(builder, _offset(builder, row, b, 8 * PANEL), _users)
            old = builder.load(entry, align=8)
            product = builder.fmul(factor, _load_users(builder, _offset(builder, right, b, 8 * PANEL)))
            if compensate:
                residue = _at(builder, _offset(builder, residue_row, b, 4 * PANEL), _residues)
                was = builder.load(residue, align=4)
                step = builder.fsub(builder.fpext(was, _users), product)
                new = builder.fadd(old, step)
                left_over = builder.fptrunc(builder.fsub(step, builder.fsub(new, old)), _residues)
                builder.store(builder.select(learns, left_over, was), residue, align=4)
            else:
                new = builder.fsub(old, product)
            builder.store(builder.select(learns, new, old), entry, align=8)


def _add_scaled(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    out, rows, factor, count, minus = arguments
    by = _load_users(builder, factor)
    negative = builder.icmp_signed("!=", minus, ir.Constant(minus.type, 0))
    by = builder.select(negative, builder.fsub(ir.Constant(_users, [-0.0] * PANEL), by), by)
    with cgutils.for_range(builder, count) as loop:
        here = _offset(builder, out, loop.index, 8 * PANEL)
        row = _load_users(builder, _offset(builder, rows, loop.index, 8 * PANEL))
        new = builder.fadd(_load_users(builder, here), builder.fmul(by, row))
        builder.store(new, _at(builder, here, _users), align=8)
    return context.get_dummy_value()


def _dot_rows(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    left, right, out, count = arguments
    total = cgutils.alloca_once(builder, _users)
    builder.store(ir.Constant(_users, [0.0] * PANEL), total)
    with cgutils.for_range(builder, count) as loop:
        ours = _load_users(builder, _offset(builder, left, loop.index, 8 * PANEL))
        theirs = _load_users(builder, _offset(builder, right, loop.index, 8 * PANEL))
        builder.store(builder.fadd(builder.load(total), builder.fmul(ours, theirs)), total)
    builder.store(builder.load(total), _at(builder, out, _users), align=8)
    return context.get_dummy_value()


def _weigh_rows(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    rows, weights, out, count = arguments
    by = _load_users(builder, weights)
    with cgutils.for_range(builder, count) as loop:
        part = builder.fmul(by, _load_users(builder, _offset(builder, rows, loop.index, 8 * PANEL)))
        size = PANEL
        while size > 1:  # halves are added until one number is left
            size //= 2
            halves = [
                ir.Constant(ir.VectorType(_index, size), list(range(start, start + size)))
                for start in (0, size)
            ]
            undefined = ir.Constant(part.type, ir.Undefined)
            part = builder.fadd(*(builder.shuffle_vector(part, undefined, half) for half in halves))
        here = _at(builder, _offset(builder, out, loop.index, 8), _number)
        total = builder.extract_element(part, ir.Constant(_index, 0))
        builder.store(builder.fadd(builder.load(here), total), here)
    return context.get_dummy_value()
