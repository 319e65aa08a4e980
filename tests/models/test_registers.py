"""The panel product's blocks: one shape for each kind of processor, the same sums in all of them."""

import re
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

from coterie.models._kernels.users.registers import (
    AVX,
    AVX2,
    AVX512,
    NEON,
    SSE2,
    Registers,
    choose_registers,
    target_features,
)
from coterie.models._kernels.users.simd import PANEL, multiply_block

LENGTH, WIDTH, COUNT = 40, 5, 2
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


@pytest.mark.parametrize(
    ("machine", "features", "expected"),
    [
        ("x86_64", {"sse2", "avx", "avx2", "fma", "avx512f"}, AVX512),
        ("AMD64", {"sse2", "avx", "avx2", "fma"}, AVX2),
        ("x86_64", {"sse2", "avx"}, AVX),
        ("x86_64", {"sse2"}, SSE2),
        ("x86_64", set(), SSE2),
        ("arm64", set(), NEON),
        ("aarch64", {"neon"}, NEON),
    ],
)
def test_each_kind_of_processor_has_its_block(machine: str, features: set[str], expected: Registers) -> None:
    assert choose_registers(machine, features) == expected


@pytest.mark.parametrize(
    ("name", "named", "expected"),
    [
        (None, None, {"avx", "fma", "avx512f"}),
        (None, "-avx512f", {"avx", "fma"}),
        (None, "-prefer-256-bit", {"avx", "fma", "avx512f"}),
        ("haswell", "+avx2,+fma,-sse4a", {"avx2", "fma"}),
        ("generic", "", set()),
        ("haswell", None, {"avx", "fma", "avx512f"}),  # Numba then takes the host's
    ],
)
def test_what_numba_compiles_for_counts(
    name: str | None, named: str | None, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = "+avx,+fma,-sse4a,+avx512f"
    monkeypatch.setattr("coterie.models._kernels.users.registers.get_host_cpu_features", lambda: host)
    monkeypatch.setattr(config, "CPU_NAME", name)
    monkeypatch.setattr(config, "CPU_FEATURES", named)
    assert target_features() == expected


@pytest.mark.parametrize(
    ("registers", "triple", "processor"),
    [
        (AVX512, X86, "emeraldrapids"),
        (AVX512, X86, "skylake-avx512"),
        (AVX512, X86, "znver4"),
        (AVX2, X86, "haswell"),
        (AVX2, X86, "znver3"),
        (AVX, X86, "sandybridge"),
        (SSE2, X86, "x86-64"),
        (NEON, ARM, "generic"),
        (NEON, ARM, "neoverse-n1"),
    ],
)
def test_the_sums_of_the_widest_block_stay_in_registers(
    registers: Registers, triple: str, processor: str
) -> None:
    code = assembly(registers, registers.widest, triple, processor)
    assert stack_moves(code) == []
    assert ("prefetch" in code) == (registers.panels > 1)
    assert not re.search(r"\bcall|\bbl\b", code), "a multiply-add became a call of the C library"
    assert stack_moves(
        assembly(registers, registers.widest + 8, triple, processor)
    )  # what the first line looks for


@pytest.mark.parametrize("registers", [AVX512, AVX2, NEON])
def test_the_block_does_not_change_a_bit(registers: Registers) -> None:
    rng = np.random.default_rng(5)
    panels, columns = rng.normal(size=(COUNT, LENGTH, PANEL)), rng.normal(size=(LENGTH, WIDTH))
    product = compiled(registers)(panels, columns)
    assert (
        product.tobytes()
        == compiled(Registers(lanes=1, panels=1, widest=1, fused=True))(panels, columns).tobytes()
    )
    assert product == pytest.approx(np.concatenate(columns.T @ panels, axis=1), abs=1e-12)


def test_without_fused_instructions_products_are_rounded_before_they_are_added() -> None:
    rng = np.random.default_rng(6)
    panels, columns = rng.normal(size=(COUNT, LENGTH, PANEL)), rng.normal(size=(LENGTH, WIDTH))
    expected = np.zeros((WIDTH, COUNT * PANEL))
    for p in range(LENGTH):
        expected += np.outer(columns[p], panels[:, p])
    assert compiled(AVX)(panels, columns).tobytes() == expected.tobytes()
    assert compiled(SSE2)(panels, columns).tobytes() == expected.tobytes()
    assert compiled(AVX2)(panels, columns).tobytes() != expected.tobytes()


def compiled(registers: Registers) -> Any:
    """Return the product of two panels (2, length, 8) and 5 columns (length, 5) in one block: (5, 16)."""

    @intrinsic  # type: ignore[untyped-decorator]
    def block(typing: Any, panels: Any, columns: Any, out: Any, stride: Any, length: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            multiply_block(builder, arguments, WIDTH, COUNT, registers)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), emit

    @njit  # type: ignore[untyped-decorator]
    def product(panels: Any, columns: Any) -> Any:
        out = np.empty((WIDTH, COUNT * PANEL))
        block(panels.ctypes.data, columns.ctypes.data, out.ctypes.data, COUNT * PANEL, LENGTH)
        return out

    return product


def assembly(registers: Registers, width: int, triple: str, processor: str) -> str:
    """Return the machine code of one block for a processor that need not be here."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module()
    module.triple = triple
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 5), "block")
    builder = ir.IRBuilder(function.append_basic_block())
    multiply_block(builder, function.args, width, registers.panels, registers)
    builder.ret_void()
    target = llvm.Target.from_triple(triple).create_target_machine(cpu=processor, opt=3)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return str(target.emit_assembly(parsed))


def stack_moves(code: str) -> list[str]:
    """Return the lines that move a vector to the stack or back."""
    return [
        line
        for line in code.splitlines()
        if re.search(r"%rsp|\bsp\b", line) and re.search(r"[xyz]mm\d|\bq\d+\b", line)
    ]
