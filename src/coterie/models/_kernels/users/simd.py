"""The innermost loops over one panel of eight users, in registers.

A large matrix product reaches the processor's speed limit because it copies both operands into panels first; for
many users and few candidates the copying would cost as much as the product. Our inverses are stored in panels, so
only the innermost block is needed. It is written as LLVM vectors, since loops over arrays would keep the sums in
memory instead of registers: 0.92 to 1.02 times the cost of the same arithmetic in a large product, and more than four
times faster than loops for the updates (docs/speed.md).

All operands are addresses of contiguous float64, unless stated otherwise. A panel's row is eight users. The last
three functions give the same bits on every machine: no product and sum are fused, and sums have one order.

The functions in Python say what the LLVM code does, to the bit. They run until the loops are compiled.
"""

import ctypes
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import _Intrinsic
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.models._kernels.users.registers import REGISTERS, Registers

PANEL = 8  # users in a panel: one cache line of float64

WIDEST = REGISTERS.widest  # candidates in a block
PANELS = REGISTERS.panels  # panels multiplied at once

_number, _word, _index = ir.DoubleType(), ir.IntType(64), ir.IntType(32)
_users = ir.VectorType(_number, PANEL)
_residues = ir.VectorType(ir.FloatType(), PANEL)


Function = TypeVar("Function", bound=Callable[..., None])


class _Emitted(_Intrinsic):  # type: ignore[misc]
    """LLVM code for compiled loops, and the same in Python for loops that are not compiled."""

    def __call__(self, *addresses: Any, **_: Any) -> None:  # type: ignore[override]
        self.in_python(*addresses)


def _emitted(emit: Callable[..., Any]) -> Callable[[Function], Function]:
    """Replace calls of a function in compiled loops by what `emit` writes."""

    def replace(in_python: Function) -> Function:
        given = inspect.signature(in_python)

        def emitter(_typing: Any, *_types: Any) -> Any:
            return types.void(*[types.intp] * len(given.parameters)), emit

        first = inspect.Parameter("_typing", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        emitter.__signature__ = given.replace(parameters=[first, *given.parameters.values()])  # type: ignore[attr-defined]
        made: Any = _Emitted(in_python.__name__, emitter)
        made.in_python, made.__doc__ = in_python, in_python.__doc__
        made._register()
        return made  # type: ignore[no-any-return]

    return replace


def _rows(address: int, count: int, width: int = PANEL, kind: Any = ctypes.c_double) -> NDArray[Any]:
    """Return the memory at an address as an array (count, width)."""
    return np.ctypeslib.as_array((kind * (count * width)).from_address(int(address))).reshape(count, width)


def add_product(left: Floats, right: Floats, total: Floats) -> Floats:
    """Return left · right + total: rounded once if the processor does so, else as Python does."""
    product = left * right
    if not REGISTERS.fused:
        return product + total
    # The exact sum is product + lost + total. It is added up with what each step rounds away, and the last but one
    # sum is rounded to an odd number, so that the last one is right (Boldo and Melquiond 2008).
    lost = _lost(left, right, product)
    low, low_lost = _sum(total, lost)
    high, high_lost = _sum(product, low)
    rest, rest_lost = _sum(low_lost, high_lost)
    even = rest.view(np.int64) % 2 == 0
    up = np.where(rest_lost > 0, np.inf, -np.inf)
    return high + np.where((rest_lost != 0) & even, np.nextafter(rest, up), rest)


def _sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return a + b and what rounding took from it (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _lost(a: Floats, b: Floats, product: Floats) -> Floats:
    """Return what rounding took from a · b (Dekker)."""
    (a, a_low), (b, b_low) = _halves(a), _halves(b)
    return a_low * b_low - (((product - a * b) - a_low * b) - a * b_low)


def _halves(a: Floats) -> tuple[Floats, Floats]:
    """Return two numbers of 26 bits with the sum a."""
    scaled = 134217729.0 * a
    high = scaled - (scaled - a)
    return high, a - high


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
            residue = _at(builder, _offset(builder, residue_row, b, 4 * PANEL), _residues)
            was = builder.load(residue, align=4)
            step = builder.fsub(builder.fpext(was, _users), product)
            new = builder.fadd(old, step)
            left_over = builder.fptrunc(builder.fsub(step, builder.fsub(new, old)), _residues)
            builder.store(builder.select(learns, left_over, was), residue, align=4)
            builder.store(builder.select(learns, new, old), entry, align=8)
    return context.get_dummy_value()


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


def _multiply_panels(
    panels: int, columns: int, out: int, stride: int, length: int, width: int, count: int
) -> None:
    for panel in range(count):
        rows, by = _rows(panels + 8 * PANEL * length * panel, length), _rows(columns, length, width)
        total = np.zeros((width, PANEL))
        for p in range(length):
            total = add_product(rows[p], by[p][:, np.newaxis], total)
        for k in range(width):
            _rows(out + 8 * (stride * k + PANEL * panel), 1)[0] = total[k]


@_emitted(_multiply_each(1))
def multiply(panel: int, columns: int, out: int, stride: int, length: int, width: int) -> None:
    """out[k, j] = Σ_p panel[p, j] · columns[p, k] for at most WIDEST columns.

    panel is (length, 8), columns (length, width), and the rows of out (width, 8) are `stride` numbers apart.
    """
    _multiply_panels(panel, columns, out, stride, length, width, 1)


@_emitted(_multiply_each(PANELS))
def multiply_many(panels: int, columns: int, out: int, stride: int, length: int, width: int) -> None:
    """Do what `multiply` does for PANELS panels (PANELS, length, 8) at once; the rows of out are (8·PANELS,)."""
    _multiply_panels(panels, columns, out, stride, length, width, PANELS)


@_emitted(_apply_symmetric)
def apply_symmetric(packed: int, vector: int, out: int, size: int) -> None:
    """out[a, j] = Σ_b P_j[a, b] · vector[b], where packed (pairs, 8) is the upper triangle of each P_j.

    out (size, 8) must be zero.
    """
    entries, x, into = (
        iter(_rows(packed, size * (size + 1) // 2)),
        _rows(vector, 1, size)[0],
        _rows(out, size),
    )
    for a in range(size):
        into[a] += next(entries) * x[a]
        for b in range(a + 1, size):
            entry = next(entries)
            into[a] += entry * x[b]
            into[b] += entry * x[a]


@_emitted(_subtract_outer)
def subtract_outer(packed: int, lost: int, left: int, right: int, on: int, size: int) -> None:
    """P_j −= left_j right_jᵀ for the users with on[j] ≠ 0, compensated: lost (pairs, 8; float32) is added back.

    left and right are (size, 8), on is (8,).
    """
    pairs, learns = size * (size + 1) // 2, _rows(on, 1)[0] != 0
    entries, factors, others = _rows(packed, pairs), _rows(left, size), _rows(right, size)
    product = np.concatenate([factors[a] * others[a:] for a in range(size)])
    residues = _rows(lost, pairs, kind=ctypes.c_float)
    step = residues - product
    new = entries + step
    residues[:] = np.where(learns, step - (new - entries), residues)
    entries[:] = np.where(learns, new, entries)


@_emitted(_add_scaled)
def add_scaled(out: int, rows: int, factor: int, count: int, minus: int) -> None:
    """out[k, j] ±= factor[j] · rows[k, j] for k < count; minus ≠ 0 subtracts.

    factor is (8,) and read before anything is written.
    """
    by = -_rows(factor, 1)[0] if minus else _rows(factor, 1)[0].copy()
    into, source = _rows(out, count), _rows(rows, count)
    for k in range(count):  # one after the other: they may overlap
        into[k] += by * source[k]


@_emitted(_dot_rows)
def dot_rows(left: int, right: int, out: int, count: int) -> None:
    """out[j] = Σ_k left[k, j] · right[k, j] over k < count."""
    total = np.zeros(PANEL)
    for product in _rows(left, count) * _rows(right, count):
        total += product
    _rows(out, 1)[0] = total


@_emitted(_weigh_rows)
def weigh_rows(rows: int, weights: int, out: int, count: int) -> None:
    """out[k] += Σ_j rows[k, j] · weights[j] for k < count."""
    part = _rows(rows, count) * _rows(weights, 1)
    while part.shape[1] > 1:
        half = part.shape[1] // 2
        part = part[:, :half] + part[:, half:]
    _rows(out, 1, count)[0] += part[:, 0]
