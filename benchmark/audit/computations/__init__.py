"""Numbers of ours beside published ones that need no run of the paper's setting, computed by the suite's code.

Importing the package enters all computations in `leaderboards.papers.computed`, those of papers' own numbers too: so
`measure` and `of` are taken from here.
"""

from benchmark.audit.computations import costs, fedsc, messages, orchestra
from leaderboards.papers import own_numbers
from leaderboards.papers.computed import measure, of

__all__ = ["costs", "fedsc", "measure", "messages", "of", "orchestra", "own_numbers"]
