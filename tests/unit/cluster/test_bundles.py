"""What a run asks of a cluster, in Ray's words and in a person's."""

from mappa_core.cluster.bundles import Request, assigned, said
from mappa_core.cluster.config import ClusterConfig


def test_servers_come_before_ranks_and_coaches_and_each_has_its_gpus() -> None:
    asked = Request(servers=2, server_gpus=4, ranks=3, rank_gpus=1, coach_gpus=(1, 0), cpus=2.0)
    server, rank = {"CPU": 2.0, "GPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}
    assert asked.bundles == (server, server, rank, rank, rank, rank, {"CPU": 2.0})
    assert (asked.first_rank, asked.first_coach) == (2, 5)


def test_on_cpus_no_bundle_asks_for_a_gpu() -> None:
    asked = Request(servers=1, server_gpus=0, ranks=1, rank_gpus=0, cpus=0.5)
    assert asked.bundles == ({"CPU": 0.5}, {"CPU": 0.5})


def test_it_is_said_in_words() -> None:
    asked = Request(servers=3, server_gpus=2, ranks=0, rank_gpus=0, cpus=1.0)
    assert str(asked) == "3 server(s) of 1 CPU and 2 GPU"
    coached = Request(servers=1, server_gpus=0, ranks=0, rank_gpus=0, coach_gpus=(1, 1), cpus=1.0)
    assert str(coached) == "1 server(s) of 1 CPU, 2 coach(es) of 1 CPU and 1 GPU"


def gpus(*of_nodes: int) -> list[dict[str, float]]:
    return [{"GPU": float(many)} for many in of_nodes]


def asked(servers: int, width: int, ranks: int) -> Request:
    return Request(servers=servers, server_gpus=width, ranks=ranks, rank_gpus=1, cpus=1.0)


def test_wide_servers_are_placed_before_ranks_take_their_room() -> None:
    assert assigned(asked(1, 4, 4), gpus(4, 4), ClusterConfig()) == (0, 1, 1, 1, 1)
    assert assigned(asked(2, 4, 1), gpus(4, 4), ClusterConfig()) == ()


def test_a_server_is_never_spread_over_nodes() -> None:
    assert assigned(asked(1, 8, 0), gpus(4, 4), ClusterConfig()) == ()


def test_strict_is_one_node_for_all_or_one_for_each() -> None:
    together, apart = (ClusterConfig(placement=each) for each in ("strict_pack", "strict_spread"))
    assert assigned(asked(1, 2, 2), gpus(2, 4), together) == (1, 1, 1)
    assert assigned(asked(1, 4, 2), gpus(4, 4), together) == ()
    assert assigned(asked(1, 2, 1), gpus(4, 4), apart) == (0, 1)
    assert assigned(asked(1, 2, 2), gpus(4, 4), apart) == ()


def test_spread_has_a_node_for_each_until_there_are_none_left() -> None:
    spread = ClusterConfig(placement="spread")
    assert assigned(asked(1, 2, 3), gpus(4, 4, 4), spread) == (0, 1, 2, 0)
    # A node for each would leave no room for the second server.
    odd = Request(servers=2, server_gpus=3, ranks=1, rank_gpus=1, coach_gpus=(2,), cpus=1.0)
    assert assigned(odd, gpus(3, 3, 3), spread) == (0, 1, 2, 2)
    assert assigned(asked(1, 2, 3), gpus(2, 2), spread) == ()


def test_cpus_bound_where_a_node_says_how_many_it_has() -> None:
    few = [{"GPU": 8.0, "CPU": 2.0}]
    assert assigned(asked(1, 1, 1), few, ClusterConfig()) == (0, 0)
    assert assigned(asked(1, 1, 2), few, ClusterConfig()) == ()
    assert said(few) == "nodes have 1 x 2 CPU and 8 GPU"


def test_nodes_are_said_in_one_order_however_they_are_listed() -> None:
    mixed = [{"GPU": 8.0, "CPU": 32.0}, {"GPU": 0.0, "CPU": 0.0}, {"GPU": 8.0, "CPU": 32.0}]
    assert (
        said(mixed) == said(mixed[::-1]) == "nodes have 1 x 0 CPU and 0 GPU, 2 x 32 CPU and 8 GPU"
    )
    assert said(mixed[1:] + mixed[:1]) == said(mixed)
