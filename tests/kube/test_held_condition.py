"""The condition `outrace.io/PodHeld` of the node."""

from monitor.kube.client import ApiClient
from monitor.side.cluster.node_conditions import HELD_S
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.test_cluster_records import Node
from tests.kube.test_cluster_records import node as node


def test_pods_that_are_held_are_a_condition_of_the_node(node: Node, client: ApiClient, api: FakeApiServer) -> None:
    holding = Node(client, api, holds=True)
    holding.holding = set()
    holding.conditions.turn()
    assert holding.seen["outrace.io/PodHeld"]["status"] == "False"
    holding.held = "shop/hog"
    holding.after(1.0)
    seen = holding.seen["outrace.io/PodHeld"]
    assert (seen["status"], seen["reason"], seen["message"]) == ("True", "OutraceHoldsPod", "outrace holds shop/hog")
    holding.held = "shop/cart, shop/hog"
    holding.after(HELD_S)
    assert holding.seen["outrace.io/PodHeld"]["message"] == "outrace holds shop/cart, shop/hog"
    assert holding.changes == []  # events are on the pods
    node.holding = set()  # a daemon after it, in another mode
    node.conditions.turn()
    node.after(1.0)
    seen = node.seen["outrace.io/PodHeld"]
    assert (seen["status"], seen["message"]) == ("False", "outrace holds no pod")


def test_a_pod_held_again_and_again_is_six_writes_a_minute(node: Node, client: ApiClient, api: FakeApiServer) -> None:
    again = Node(client, api, holds=True)
    again.holding = set()
    again.conditions.turn()
    for number in range(60):
        again.held = "shop/hog" if number % 2 else ""
        again.after(1.0)
    assert 5 <= len(api.seen("PATCH")) <= 8
    again.held = ""
    again.after(HELD_S)
    assert again.seen["outrace.io/PodHeld"]["status"] == "False", "how it is in the end is written"


def test_a_node_on_which_nobody_is_held_has_no_such_condition(node: Node) -> None:
    node.holding = set()
    node.conditions.turn()
    assert "outrace.io/PodHeld" not in node.seen
