"""The processor's registers, which determine the size of a block of the panel product.

The processor is the one that Numba compiles for: this machine's, unless NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name
another.
"""

import platform
from typing import NamedTuple

from numba import config
from numba.core.codegen import get_host_cpu_features


class Registers(NamedTuple):
    """The shape of a block: the eight users of each of `panels`, times at most `widest` candidates.

    Its sums are panels * 8 / lanes * widest registers; the others hold a panel's row and one candidate's number.
    """

    lanes: int  # float64 in a register
    panels: int  # multiplied at once if there are many; the next ones are prefetched
    widest: int  # candidates
    fused: bool  # whether one instruction multiplies and adds


# With one panel, AVX-512 reads as many operands as it multiplies. Processors that multiply two a cycle (Intel's) then
# wait for the reads: with two panels, each candidate's number is read half as often, and a round is a quarter faster.
AVX512 = Registers(lanes=8, panels=2, widest=13, fused=True)  # 32 registers
AVX2 = Registers(lanes=4, panels=1, widest=6, fused=True)  # 16
AVX = Registers(lanes=4, panels=1, widest=6, fused=False)  # 16
SSE2 = Registers(lanes=2, panels=1, widest=2, fused=False)  # 16
NEON = Registers(lanes=2, panels=1, widest=6, fused=True)  # 32


def choose_registers(machine: str, features: set[str]) -> Registers:
    """Return the block's shape for a machine (platform.machine()) and the LLVM names of its features."""
    if machine.lower() in ("aarch64", "arm64"):
        return NEON
    if "avx512f" in features:
        return AVX512
    if "avx" in features or "avx2" in features:
        return AVX2 if "fma" in features else AVX
    return SSE2


def target_features() -> set[str]:
    """Return the LLVM names of the features of the processor that Numba compiles for."""
    host = _named(get_host_cpu_features(), "+")
    if config.CPU_FEATURES is None:
        return host
    mine = (
        host if config.CPU_NAME is None else set()
    )  # of another processor, only the named features are known
    return (mine | _named(config.CPU_FEATURES, "+")) - _named(config.CPU_FEATURES, "-")


def _named(features: str, sign: str) -> set[str]:
    """Return the features with this sign: "+avx,-sse4a" has avx with "+"."""
    return {feature[1:] for feature in features.split(",") if feature.startswith(sign)}


REGISTERS = choose_registers(platform.machine(), target_features())
