"""`python -m mappa_cli.provider_stub`: the stand-in as a process of its own; prints its address."""

import argparse
import asyncio
import sys

from mappa_cli.provider_stub.script import Fault, no_faults, seeded_faults
from mappa_cli.provider_stub.server import ProviderStub, serving


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--fault-share", type=float, default=0.0)
    parser.add_argument("--faults", nargs="*", type=Fault, default=list(Fault)[1:])
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(_serve(parser.parse_args()))


async def _serve(arguments: argparse.Namespace) -> None:
    share = float(arguments.fault_share)
    script = seeded_faults(share, arguments.seed, tuple(arguments.faults)) if share else no_faults
    stand_in = ProviderStub(script, latency_seconds=arguments.latency)
    async with serving(stand_in, arguments.port) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
