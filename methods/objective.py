"""`methods.core.objective` by the name that own code may import it by; `methods.base` has the same classes."""

from methods.core.objective import AddOn, Objective, Projected, build_addons, check_pair, enqueue, fill, update_ema

__all__ = ["AddOn", "Objective", "Projected", "build_addons", "check_pair", "enqueue", "fill", "update_ema"]
