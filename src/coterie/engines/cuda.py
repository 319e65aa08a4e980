"""Users' models on a GPU, through JAX; on its CPU build the same code runs slowly, for tests."""

from importlib.util import find_spec
from typing import final

from coterie.errors import MissingExtraError, ParameterError
from coterie.models.checks import check_count

if find_spec("jax") is None:
    raise MissingExtraError(
        "this needs jax: pip install 'coterie[gpu]', and 'jax[cuda13]' on a machine with a GPU"
    )

from coterie.engines.device.blocks import Blocks, find_device
from coterie.engines.on_device import OnDevice


@final
class Cuda:
    """Keeps users' models in the memory of a GPU.

    device
        None for the first GPU, or as JAX names it: "cuda:1"; "cpu" computes in this process, slowly.
    block
        How many users memory is taken for at a time; a power of two. None for 2²⁰ on a GPU, 4.4 GB with 25 features,
        and 4,096 on a processor.
    most_users
        How many users there may be; None for as many as fit into 7/8 of what JAX takes of the device's memory.
    """

    def __init__(
        self, device: str | None = None, *, block: int | None = None, most_users: int | None = None
    ) -> None:
        if block is not None and (check_count("block", block) < 2 or block & (block - 1)):
            raise ParameterError(f"block is {block!r}, expected a power of two, such as 65536")
        self.most_users = None if most_users is None else check_count("most_users", most_users)
        self.device = find_device(device)
        self.block = block or (1 << 20 if self.device.platform == "gpu" else 4096)

    def models(self, n_features: int | None, one_hot: bool) -> OnDevice:
        """Return empty models over vectors of `n_features`."""
        if one_hot or n_features is None:
            raise ParameterError(
                "Cuda keeps models over feature vectors, but one_hot is True; leave out `engine`: over item ids a "
                "decision does not grow with the number of users"
            )
        check_count("n_features", n_features)
        return OnDevice(n_features, Blocks(n_features, self.device, self.block, self.most_users))
