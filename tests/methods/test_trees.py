"""Functions on Trees, which are nested dicts of tensors, and the inputs they must not change."""

import pytest
import torch

from methods import trees
from tests.device import SimulatedGPU
from tests.run_helpers import same


def tree() -> trees.Tree:
    return {"a": {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}, 7: torch.tensor([[4.0]])}


def packed() -> trees.Tree:
    return trees.clone(tree())


def test_map_goes_leaf_by_leaf_over_several_trees():
    wider = {**tree(), "unused": torch.tensor(9.0)}
    result = trees.map(lambda x, y, z: x + 10 * y - z, tree(), wider, tree())
    assert same(result, {"a": {"w": torch.tensor([10.0, 20.0]), "b": torch.tensor(30.0)}, 7: torch.tensor([[40.0]])})
    with pytest.raises(KeyError):
        trees.map(torch.add, tree(), {"a": tree()["a"]})


def test_clone_shares_neither_memory_nor_history_and_copies_two_kinds_of_numbers_leaf_by_leaf():
    parameter = torch.nn.Parameter(torch.ones(2))
    given = {"part": {"w": parameter}, "n": torch.tensor(3)}
    copies = [trees.clone(given), trees.clone({"part": given["part"]})]
    assert same(copies[0], given)
    assert copies[0]["n"].dtype == torch.int64
    with torch.no_grad():
        parameter.add_(1)
    for copy in copies:
        assert copy["part"]["w"].tolist() == [1, 1]
        assert not copy["part"]["w"].requires_grad


def test_to_moves_and_leaves_at_home_what_is_there_and_zeros_like_keeps_shapes_and_dtypes():
    original = tree()
    assert trees.to(original, "cpu")["a"]["w"] is original["a"]["w"]
    moved = trees.to(original, "meta")
    assert [{leaf.device.type for _, leaf in trees.leaves(each)} for each in (moved, original)] == [{"meta"}, {"cpu"}]
    zeros = trees.zeros_like({"a": {"w": torch.ones(2, 3, dtype=torch.float64)}, "n": torch.tensor(5)})
    assert same(zeros, {"a": {"w": torch.zeros(2, 3, dtype=torch.float64)}, "n": torch.tensor(0)})
    assert [leaf.dtype for _, leaf in trees.leaves(zeros)] == [torch.float64, torch.int64]


def test_add_scales_the_change_which_may_speak_of_some_leaves_only_as_subtract_does():
    original = tree()
    result = trees.add(original, {"a": {"b": torch.tensor(2.0)}}, scale=-0.5)
    assert same(result, {**tree(), "a": {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(2.0)}})
    assert same(original, tree())
    assert same(trees.add(original, tree()), trees.map(lambda leaf: 2 * leaf, tree()))
    assert same(trees.add(original, {}), tree())
    assert same(trees.subtract({"a": {"b": torch.tensor(5.0)}}, tree()), {"a": {"b": torch.tensor(2.0)}})


def test_overlay_takes_the_leaves_of_both_and_changes_neither():
    under, top = tree(), {"a": {"b": torch.tensor(-1.0), "new": torch.tensor(0.0)}, "other": {"x": torch.tensor(8.0)}}
    merged = trees.overlay(under, top)
    a = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(-1.0), "new": torch.tensor(0.0)}
    assert same(merged, {"a": a, 7: torch.tensor([[4.0]]), "other": {"x": torch.tensor(8.0)}})
    merged["a"] |= {"w": torch.tensor(0.0), "b": torch.tensor(0.0)}
    assert same(under, tree())
    assert same(top["a"], {"b": torch.tensor(-1.0), "new": torch.tensor(0.0)})
    leaf, branch = torch.tensor(1.0), {"b": torch.tensor(2.0)}  # either may replace the other
    assert same(trees.overlay({"a": branch}, {"a": leaf}), {"a": leaf})
    assert same(trees.overlay({"a": leaf}, {"a": branch}), {"a": branch})


def test_put_makes_the_way_to_a_leaf_and_keeps_its_neighbours_and_nbytes_counts_all():
    grown, a = tree(), {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(0.0)}
    trees.put(grown, ("a", "b"), a["b"])
    trees.put(grown, ("x", 3, "y"), torch.tensor(1.0))
    assert same(grown, {"a": a, 7: torch.tensor([[4.0]]), "x": {3: {"y": torch.tensor(1.0)}}})
    assert [path for path, _ in trees.leaves(grown)] == [("a", "w"), ("a", "b"), (7,), ("x", 3, "y")]
    mixed = {"a": {"w": torch.zeros(3, 5), "h": torch.zeros(4, dtype=torch.bfloat16)}, "n": torch.tensor(1)}
    assert (trees.nbytes(mixed), trees.nbytes({})) == (4 * 15 + 2 * 4 + 8, 0)


def test_a_clone_lies_side_by_side_and_a_scattered_tree_does_not_whatever_the_order_of_keys():
    assert (trees.span(tree()), trees.span({})) == (None, None)
    whole = packed()
    span = trees.span(whole)
    assert [offset for _, offset, _, _ in span.layout] == [0, 2, 3]
    assert span.flat.tolist() == [1, 2, 3, 4]
    assert same(span.tree(span.flat), tree())
    turned = {7: whole[7], "a": whole["a"]}
    assert trees.alike(turned, whole) is not None
    assert same(trees.add(turned, whole), trees.add(whole, turned))


def test_leaves_of_one_element_lie_behind_the_others_and_keep_their_place_in_the_tree():
    tree = {"a": {"scale": torch.ones(1), "w": torch.randn(3, 4)}, "b": torch.tensor(2.0), "c": torch.randn(8)}
    copied = trees.clone(tree)
    assert same(copied, tree)
    assert [path for path, *_ in trees.span(copied).layout] == [("a", "w"), ("c",), ("a", "scale"), ("b",)]
    assert trees.alike(copied, trees.zeros_like(copied)) is not None


def test_leaves_in_part_or_of_two_kinds_are_no_span():
    whole = packed()
    assert trees.span({"a": {"w": whole["a"]["w"]}, 7: whole[7]}) is None
    assert trees.span({"a": whole["a"], 7: whole[7].long()}) is None
    assert trees.span({"a": whole["a"]}) is not None  # the first leaves alone are a span
    assert trees.span({"x": torch.ones(4, 4)[:, :2]}) is None
    rows = torch.ones(2, 16)
    assert trees.span({"x": rows[0, :10], "y": rows[1, :10]}) is None  # the gap belongs to another tensor


def test_a_flat_tree_has_dtype_and_device_of_its_first_leaf_and_memory_formats_survive():
    flat = trees.flat(trees.leaves({"x": torch.ones(2, device="meta"), "n": torch.tensor(3)})).flat
    assert (flat.dtype, flat.device.type, flat.numel()) == (torch.float32, "meta", 3)
    image = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    copy = trees.clone({"b": torch.ones(1), "x": image})["x"]
    assert (copy.stride(), copy.tolist()) == (image.stride(), image.tolist())


def test_assign_copies_by_path_whether_flat_or_not():
    for target in (tree(), packed()):
        for values in (trees.map(lambda leaf: leaf + 1, tree()), trees.clone(trees.map(lambda leaf: leaf + 1, tree()))):
            trees.assign(target, trees.zeros_like(target))
            trees.assign(target, values)
            assert same(target, values)
    target = packed()
    trees.assign(target, {"a": {"b": torch.tensor(9.0)}})
    assert same(target, {"a": {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(9.0)}, 7: torch.tensor([[4.0]])})
    with pytest.raises(KeyError):
        trees.assign(target, {"nobody": torch.ones(1)})


def test_arithmetic_on_flat_trees_is_that_on_scattered_ones():
    scattered = trees.map(lambda leaf: leaf * 3, tree())
    for function, others in ((trees.subtract, (scattered,)), (trees.add, (scattered, 0.5)), (trees.zeros_like, ())):
        flat = function(packed(), *(trees.clone(other) if isinstance(other, dict) else other for other in others))
        assert same(flat, function(tree(), *others))
        assert trees.span(flat) is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_finite_sees_one_bad_number_whether_flat_or_not(value: float):
    for candidate in (tree(), packed(), {"n": torch.tensor(3), "none": torch.zeros(0, 3), **tree()}):
        assert trees.finite(candidate)
        candidate["a"]["w"][1] = value
        assert not trees.finite(candidate)
    assert trees.finite({})


def test_zeros_of_an_outline_lie_side_by_side_as_far_as_they_can():
    mixed = {**tree(), "n": {"count": torch.tensor(3)}}
    made = trees.zeros(trees.to(mixed, "meta"), "cpu")
    assert same(made, trees.zeros_like(mixed))
    assert trees.span(made) is None
    assert trees.span({"a": made["a"]}) is not None
    hollow = trees.zeros({**trees.to(tree(), "meta"), "none yet": {}}, "cpu")
    assert hollow.pop("none yet") == {}
    assert trees.span(hollow) is not None


def test_a_tree_moves_to_a_gpu_and_back_with_one_copy_for_each_dtype():
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    tree = {"b": {"w": image, "n": torch.tensor(3), "none": {}}, "a": {"empty": torch.zeros(0), "v": torch.randn(5)}}
    assert trees.move(tree, "cpu") is tree
    with SimulatedGPU() as gpu:
        there = trees.move(tree, "cuda:0")
        assert trees.move(there, "cuda:0") is there
        uploads = len(gpu.of("upload"))
        back = trees.move(there, "cpu")
        assert all(leaf.device.type == "cuda" for _, leaf in trees.leaves(there))
    assert uploads == len(gpu.of("wait")) == 2  # float32, int64
    assert back["b"]["none"] == {}
    assert same(back, tree)
    assert [(path, leaf.stride()) for path, leaf in trees.leaves(back)] == [
        (path, leaf.stride()) for path, leaf in trees.leaves(tree)
    ]
