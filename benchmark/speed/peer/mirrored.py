"""SimCLR over an image and its mirror image: views that cost next to nothing, so that the engine's own cost shows."""

from methods.objectives.simclr import SimCLR


class Mirrored(SimCLR):
    """SimCLR with one view as it is; a recipe that only flips, and always, makes the other its mirror image."""

    views = ("plain", "augment")
