"""A Ray cluster of nodes on this machine, one for all tests of this folder."""

from collections.abc import Iterator

import pytest

pytest.importorskip("ray")

from tests.ray_cluster import LocalCluster, local_cluster


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(nodes=2) as started:
        yield started
