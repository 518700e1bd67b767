"""SimCLR over an image and its mirror image: views of almost no cost, so that the engine's own cost shows."""

from methods.objectives.simclr import SimCLR


class Mirrored(SimCLR):
    """SimCLR with one unchanged view; a recipe that always flips makes the other its mirror image."""

    views = ("plain", "augment")
