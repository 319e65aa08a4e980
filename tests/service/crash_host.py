"""Forks services quickly: the imports are paid once, so that hundreds of kills take minutes, not hours.

Reads lines with a port and a store each. For each it forks a child that serves, and that prints its process id and,
like every service, where it listens.
"""

import os
import signal
import sys

from coterie.data.logs.rules import Config
from coterie.service.core.warm_up import warm_up
from coterie.service.serve import serve
from coterie.service.settings import read_settings


def main() -> None:
    """Fork a service a line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed children leave no zombies
    warm_up(Config())
    warm_up(Config(policy="linucb"))
    print("ready", flush=True)
    for line in sys.stdin:
        port, _, store = line.strip().partition(" ")
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            print(os.getpid(), flush=True)
            settings = read_settings(
                port=int(port), store=store, snapshot_every="150", log_level="error", config={"wait": 1.0}
            )
            serve(settings)
            os._exit(0)


if __name__ == "__main__":
    main()
