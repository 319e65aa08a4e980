"""Checks, in a separate process, whether a Ray cluster answers and accepts our token.

Ray itself would try for forty seconds, print warnings, and on some errors end the process. A child process has a
time limit, and its output can be hidden. `python -m coterie.engines.probe ADDRESS` prints one line of JSON.
"""

import json
import sys
from typing import Any


def probe(address: str) -> dict[str, Any]:
    """Return the cluster's address and its head's ip, or what went wrong."""
    from ray import _raylet
    from ray._private.services import canonicalize_bootstrap_address
    from ray.exceptions import AuthenticationError, RpcError

    try:
        if address.startswith("ray://"):
            return _probe_as_client(address)
        if address == "auto":
            found = canonicalize_bootstrap_address("auto")
            if found is None:
                return {"wrong": "none"}
            address = found
        nodes = _raylet.GcsClient(address=address).get_all_node_info()
        heads = [node.node_manager_address for node in nodes.values() if node.is_head_node]
        return {"address": address, "head": heads[0] if heads else ""}
    except AuthenticationError:
        return {"wrong": "token"}
    except RpcError as error:
        return {"wrong": "rpc", "said": str(error).splitlines()[0]}


def _probe_as_client(address: str) -> dict[str, Any]:
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import ray_client_pb2, ray_client_pb2_grpc

    kind = ray_client_pb2.ClusterInfoType.PING
    stub = ray_client_pb2_grpc.RayletDriverStub(init_grpc_channel(address.removeprefix("ray://")))
    try:
        stub.ClusterInfo(ray_client_pb2.ClusterInfoRequest(type=kind), timeout=5)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            return {"wrong": "token"}
        return {"wrong": "rpc", "said": f"{error.code().name}: {error.details()}"}
    return {"address": address, "head": ""}


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1])))
