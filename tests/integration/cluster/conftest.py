"""A Ray cluster of nodes on this machine, one for all tests of this folder."""

from collections.abc import Iterator

import pytest

pytest.importorskip("ray")

from mappa_core.cluster.local_nodes import LocalNodes, local_nodes


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalNodes]:
    with local_nodes(2) as started:
        yield started
